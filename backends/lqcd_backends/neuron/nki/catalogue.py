"""Which kernel serves which operation of the backend on which layout, for one compiler target.

The formulation is chosen once for a lattice, precision and number of right-hand sides: every vector of a space then has one
layout, and operators, vector updates and sums all read it.
"""

from __future__ import annotations

import numpy as np

from lqcd_core.backend import Links, SiteDiagonal
from lqcd_core.geometry import FULL, LatticeGeometry
from lqcd_core.precision import Precision

from . import blas_specs, cost, kernel_specs
from .driver import TARGETS
from .layout import VectorLayout, why_not
from .spec import KernelSpec, TensorArg


class Catalogue:
    """See the module.

    Parameters
    ----------
    target
        ``trn1``, ``inf2``, ``trn2`` or ``trn3``.
    lnc
        Physical cores per logical core.
    formulation
        ``vector``, ``tensor``, or ``auto``.
    """

    def __init__(self, target: str, lnc: int, formulation: str = "auto"):
        self.target, self.lnc, self.formulation = target, lnc, formulation
        self._choices: dict[tuple, cost.Choice] = {}
        self.generation = int(TARGETS[target].removeprefix("gen"))

    def why_not(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int) -> str | None:
        """None, or why the kernels cannot serve: a clause."""
        return why_not(geometry, n_rhs)

    def choose(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int) -> cost.Choice:
        """The formulation, by the cost model unless the option names one; for both parities that of the whole lattice.

        Raises
        ------
        ParameterError
            If no kernel fits, or the one that was named does not.
        """
        key = (geometry, precision.name, n_rhs)
        if key not in self._choices:
            self._choices[key] = cost.choose(
                geometry, n_rhs, precision.spinor_storage, precision.link_storage, self.generation,
                force=None if self.formulation == "auto" else self.formulation,
            )  # fmt: skip
        return self._choices[key]

    def layout(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int, parity=FULL) -> VectorLayout:
        """Where the vectors of a space lie."""
        return VectorLayout(
            geometry=geometry, parity=parity, n_rhs=n_rhs, dtype=precision.spinor_storage, link_dtype=precision.link_storage,
            formulation=self.choose(geometry, precision, n_rhs).formulation, generation=self.generation,
        )  # fmt: skip

    @staticmethod
    def vector(layout: VectorLayout) -> TensorArg:
        """One batch in device memory."""
        return TensorArg("vector", layout.shape, layout.dtype)

    # -- operators ----------------------------------------------------------------------------------------------------

    def links(self, links: Links, layout: VectorLayout) -> dict[str, np.ndarray]:
        """Packed links of the hop that lands on the layout's sites."""
        return {"links": layout.pack_links(links)}

    def term(self, term: SiteDiagonal, layout: VectorLayout) -> tuple[str, dict[str, np.ndarray]]:
        """(form, tensors) of a site-diagonal term."""
        arrays = {"scalars": layout.pack_scalars(term.scalar, term.twist)}
        diagonal = layout.pack_diagonal(term)
        if diagonal is not None:
            arrays["diagonal"] = diagonal
        return layout.diagonal_kind(term), arrays

    def hop(self, layout: VectorLayout) -> tuple[KernelSpec, dict[str, np.ndarray]]:
        """H, and the tensors that its kernel wants beside links."""
        return kernel_specs.hop(layout), {"scalars": layout.pack_scalars()}

    def dirac(self, layout: VectorLayout, form: str, dagger: bool) -> KernelSpec:
        """A psi - H psi, or with H^dagger."""
        return kernel_specs.dirac(layout, form, dagger)

    def normal(self, layout: VectorLayout, form: str) -> KernelSpec | None:
        """M^dagger M psi and the sums of Re psi^dagger M^dagger M psi in one launch, or None where it takes two."""
        if layout.parity is not FULL or form == "blocks" or (form == "twist" and layout.formulation == "tensor"):
            return None
        return kernel_specs.normal(layout, form, inner=True)

    def scale(self, layout: VectorLayout, scale: np.ndarray) -> np.ndarray:
        """The scale of sums, as kernels read it."""
        return blas_specs.pack_scale(layout, scale)

    def site(self, layout: VectorLayout, form: str) -> KernelSpec:
        """A psi."""
        return kernel_specs.site_term(layout, form)

    # -- vectors ------------------------------------------------------------------------------------------------------

    def blas(
        self, what: str, layout: VectorLayout, a=None, scale=None, gamma5: bool = False
    ) -> tuple[KernelSpec, dict[str, np.ndarray]]:
        """A vector update or a sum, with its coefficients and the scale of its sums."""
        real = a is None or not np.any(np.imag(a))
        arrays = {}
        if a is not None:
            arrays["coefficients"] = blas_specs.pack_coefficients(layout, a, gamma5)
        if scale is not None:
            arrays["scale"] = blas_specs.pack_scale(layout, scale)
        return blas_specs.blas(layout, what, real, gamma5), arrays

    def fold(self, layout: VectorLayout, sums: np.ndarray, scale: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(sums of the columns, largest product of each); a column out of range of its scale is NaN."""
        return blas_specs.fold_sums(layout, sums, scale)

    # -- said ---------------------------------------------------------------------------------------------------------

    def plan(self, geometry: LatticeGeometry, precision: Precision, n_rhs: int) -> str:
        """The choice with the model's numbers."""
        return f"{self.target}, lnc={self.lnc}: {self.choose(geometry, precision, n_rhs)}"


__all__ = ["Catalogue"]
