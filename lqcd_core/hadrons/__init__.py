"""What needs propagators: sources, smearing, contractions, effective masses, statistics, the quark condensate."""

from .baryons import (
    DELTA,
    NUCLEON,
    NUCLEON_LOWER,
    NUCLEON_UPPER,
    BaryonOperator,
    baryon_correlator,
    delta_correlator,
    nucleon_correlator,
)
from .condensate import Condensate, quark_condensate
from .contractions import gamma_bar, meson_correlator, meson_correlators, pion_correlator
from .effective_mass import effective_mass, effective_mass_jackknife
from .smearing import gaussian_smear, jacobi_smear
from .sources import (
    Source,
    momentum_source,
    noise_source,
    point_source,
    sequential_source,
    smeared_source,
    wall_source,
)
from .statistics import Estimate, bin_samples, bootstrap, covariance, jackknife

__all__ = [
    "DELTA", "NUCLEON", "NUCLEON_LOWER", "NUCLEON_UPPER", "BaryonOperator", "Condensate", "Estimate", "Source", "baryon_correlator",
    "bin_samples", "bootstrap", "covariance", "delta_correlator", "effective_mass", "effective_mass_jackknife",
    "gamma_bar", "gaussian_smear", "jackknife", "jacobi_smear", "meson_correlator", "meson_correlators",
    "momentum_source", "noise_source", "nucleon_correlator", "pion_correlator", "point_source", "quark_condensate",
    "sequential_source", "smeared_source", "wall_source",
]  # fmt: skip
