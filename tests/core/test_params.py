"""Parameter records: validated, and really used."""

import attrs
import numpy as np
import pytest

import lqcd_core as lqcd
from lqcd_core import ColorSpinorField, GaugeField, LatticeGeometry, errors
from lqcd_core.params import (
    CloverParam,
    DslashType,
    EigParam,
    GaugeParam,
    InverterType,
    InvertParam,
    LinkType,
    NeuronCompileParam,
    Precision,
    TBoundary,
)

EXTENTS = (4, 2, 2, 2)
G = LatticeGeometry.from_shape(EXTENTS)


@pytest.fixture(scope="module")
def U():
    return GaugeField.random(G, seed=1)


@pytest.fixture(scope="module")
def b():
    return ColorSpinorField.gaussian(G, seed=2)


# -- gauge ------------------------------------------------------------------------------------------------------------


def test_gauge_param_makes_reads_and_checks_a_configuration(tmp_path):
    p = GaugeParam(lattice_size=EXTENTS, precision="double")
    assert p.geometry == G and p.volume == 32
    U = p.random(seed=1)
    p.check(U)
    p.check(p.cold())
    path = tmp_path / "cfg.ildg"
    U.write(path, format="ildg")
    V = p.read(path)
    assert np.array_equal(V.array, U.array)
    with pytest.raises(errors.FieldShapeError, match="record"):
        GaugeParam(lattice_size=(4, 4, 4, 4)).read(path)


def test_gauge_param_refuses_another_lattice_precision_or_group(U):
    p = GaugeParam(lattice_size=EXTENTS)
    with pytest.raises(errors.FieldShapeError):
        p.check(GaugeField.random(LatticeGeometry(T=2, Z=2, Y=2, X=4), seed=1))
    with pytest.raises(errors.FieldShapeError):
        p.check(GaugeField.random(LatticeGeometry.from_shape(EXTENTS, nc=2), seed=1))
    with pytest.raises(errors.FieldTypeError, match="single"):
        p.check(U.to("single"))
    off = GaugeField(G, 1.1 * U.array)
    with pytest.raises(errors.NonUnitaryLinksError):
        p.check(off)
    attrs.evolve(p, link_type="general").check(off)


@pytest.mark.parametrize(
    "bad",
    [
        dict(lattice_size=(0, 2, 2, 2)),
        dict(lattice_size=(2, 2, 2)),
        dict(lattice_size=EXTENTS, nc=1),
        dict(lattice_size=EXTENTS, precision="quad"),
        dict(lattice_size=EXTENTS, anisotropy=0.0),
        dict(lattice_size=EXTENTS, anisotropy=float("nan")),
        dict(lattice_size=EXTENTS, t_boundary=0),
        dict(lattice_size=EXTENTS, link_type="su4"),
    ],
)
def test_gauge_param_refuses_what_makes_no_sense(bad):
    with pytest.raises(errors.LQCDError):
        GaugeParam(**bad)


def test_extents_have_no_default():
    with pytest.raises(TypeError, match="lattice_size"):
        GaugeParam()


# -- solves -----------------------------------------------------------------------------------------------------------

RECORDS = {
    "wilson": InvertParam(mass=0.3),
    "wilson, bicgstab": InvertParam(kappa=0.115, inv_type="bicgstab"),
    "clover, gcr": InvertParam(dslash_type="clover", mass=0.3, clover=CloverParam(csw=1.0), inv_type="gcr"),
    "twisted": InvertParam(dslash_type="twisted_mass", mass=0.3, mu=0.2),
    "twisted clover": InvertParam(dslash_type="twisted_mass", mass=0.3, mu=0.2, clover=CloverParam(csw=1.0)),
    "mixed": InvertParam(mass=0.3, tol=1e-11, precision_sloppy="single", inv_type="bicgstab"),
    "single": InvertParam(mass=0.3, tol=1e-5, precision="single"),
}


@pytest.mark.parametrize("name", RECORDS)
def test_invert_param_solves_the_operator_it_names(name, U, b):
    p = RECORDS[name]
    b = b.to(p.precision)
    x, info = p.solve(U, b)
    D = p.operator()
    M = D.bind(U, precision=p.precision)
    assert info.converged and (M(x) - b).norm() / b.norm() <= p.tol
    assert x.precision.name == p.precision


def test_operator_has_the_parameters_of_all_three_records():
    gauge = GaugeParam(lattice_size=EXTENTS, t_boundary=TBoundary.PERIODIC, anisotropy=2.5)
    p = InvertParam(dslash_type="clover", kappa=0.12, clover=CloverParam(csw_r=0.9, csw_t=1.1), nu=0.95)
    assert p.operator(gauge) == lqcd.CloverWilsonDirac(
        kappa=0.12, csw_r=0.9, csw_t=1.1, boundary="periodic", xi0=2.5, nu=0.95
    )
    assert p.operator().boundary == (-1, 1, 1, 1)
    assert p.operator(boundary="periodic").boundary == (1, 1, 1, 1)
    with pytest.raises(errors.ParameterError, match="both"):
        p.operator(gauge, boundary="periodic")


def test_boundary_of_the_gauge_record_changes_the_solution(U, b):
    p = InvertParam(mass=0.3)
    anti, periodic = (
        p.solve(U, b, GaugeParam(lattice_size=EXTENTS, t_boundary=t)).x.array for t in (TBoundary.ANTI_PERIODIC, 1)
    )
    assert np.array_equal(anti, p.solve(U, b).x.array)
    assert np.abs(anti - periodic).max() > 1e-3


def test_solver_has_the_parameters_of_the_record():
    s = InvertParam(mass=0.1, tol=1e-9, maxiter=77, inv_type=InverterType.BICGSTAB, verbosity=1).solver()
    assert isinstance(s, lqcd.BiCGStab) and (s.tol, s.maxiter, s.verbose) == (1e-9, 77, True)
    m = InvertParam(mass=0.1, tol=1e-9, maxiter=77, precision_sloppy=Precision.FLOAT32).solver()
    assert isinstance(m, lqcd.MixedPrecision) and isinstance(m.inner, lqcd.ConjugateGradient)
    assert (m.tol, m.maxiter, m.precision) == (1e-9, 77, "single")


def test_a_batch_solves_column_by_column(U):
    batch = ColorSpinorField.gaussian(G, seed=3, n_rhs=3)
    x = InvertParam(mass=0.3, tol=1e-10).solve(U, batch).x
    M = lqcd.WilsonDirac(mass=0.3).bind(U)
    assert ((M(x) - batch).norm() / batch.norm() <= 1e-10).all()


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (dict(), "neither"),
        (dict(mass=0.1, kappa=0.125), "both"),
        (dict(mass=float("nan")), "finite"),
        (dict(mass=0.1, dslash_type="clover"), "CloverParam"),
        (dict(mass=0.1, clover=CloverParam(csw=1.0)), "clover"),
        (dict(mass=0.1, dslash_type="clover", clover=1.0), "CloverParam"),
        (dict(mass=0.1, mu=0.1), "twisted"),
        (dict(mass=0.1, dslash_type="twisted_mass"), "needed"),
        (dict(mass=0.1, dslash_type="clovr"), "did you mean 'clover'"),
        (dict(mass=0.1, inv_type="bicgstap"), "did you mean 'bicgstab'"),
        (dict(mass=0.1, tol=0.0), "tol"),
        (dict(mass=0.1, maxiter=0), "maxiter"),
        (dict(mass=0.1, precision="doubel"), "did you mean 'double'"),
    ],
)
def test_invert_param_refuses_what_makes_no_sense(bad, says):
    with pytest.raises(errors.ParameterError, match=says):
        InvertParam(**bad)


def test_a_tolerance_below_the_precision_is_refused_before_the_first_iteration(U, b):
    with pytest.raises(errors.ToleranceError, match="MixedPrecision"):
        InvertParam(mass=0.3, tol=1e-12, precision="single").solve(U, b.to("single"))


@pytest.mark.parametrize("bad", [dict(), dict(csw_r=1.0), dict(csw=1.0, csw_t=2.0), dict(csw=float("inf"))])
def test_clover_param_refuses_missing_and_doubled_coefficients(bad):
    with pytest.raises(errors.ParameterError, match="csw"):
        CloverParam(**bad)


def test_records_are_frozen_and_evolve():
    p = InvertParam(mass=0.1)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        p.mass = 0.2
    assert attrs.evolve(p, mass=0.2).operator().mass == 0.2
    assert attrs.evolve(CloverParam(csw=1.0), csw=2.0).planes == (2.0, 2.0)


def test_names_of_the_ancestor_are_understood():
    p = InvertParam(dslash_type=DslashType.CLOVER_WILSON, inv_type="CG", mass=0.1, clover=CloverParam(csw=1.0),
                    precision=Precision.FLOAT64)  # fmt: skip
    assert p == InvertParam(
        dslash_type="clover", inv_type="cg", mass=0.1, clover=CloverParam(csw=1.0), precision="double"
    )
    assert GaugeParam(lattice_size=EXTENTS, precision=np.complex64).precision == "single"
    assert GaugeParam(lattice_size=EXTENTS, link_type="SU3").link_type is LinkType.SU3


# -- eigenvalues and compilation ----------------------------------------------------------------------------------------


def test_eig_param_bounds_the_operator_of_an_invert_param(U):
    M = InvertParam(mass=0.3).bind(U, backend="numpy")
    bounds = EigParam(n_kr=24, tol=1e-3).spectral_bounds(M)
    psi = ColorSpinorField.gaussian(G, seed=5)
    rayleigh = M(psi).norm2() / psi.norm2()
    assert 0 < bounds.smallest < rayleigh < bounds.largest


def test_neuron_compile_param_gives_options_that_a_backend_can_check():
    """A backend that declares these options takes them; one that does not names the stranger."""
    from lqcd_core import BackendInfo, Option

    options = NeuronCompileParam(
        dtype="bfloat16", optimize_level=3, num_neuroncores=2, compiler_workdir="work", sram_threshold_bytes=1 << 20
    ).backend_options()
    assert options == {
        "dtype": "bf16", "optimize_level": 3, "num_cores": 2, "inline_weights": False, "workdir": "work",
        "sram_threshold_bytes": 1 << 20,
    }  # fmt: skip
    declared = {name: Option(name) for name in options}
    info = BackendInfo(name="traced", load="pkg:Class", precisions={"bf16"}, options=declared)
    assert info.settle_options(options) == options
    del declared["num_cores"]
    with pytest.raises(errors.UnknownOptionError, match="num_cores"):
        BackendInfo(name="traced", load="pkg:Class", precisions={"bf16"}, options=declared).settle_options(options)


@pytest.mark.parametrize(
    "bad",
    [
        dict(dtype="double"),
        dict(optimize_level=0),
        dict(optimize_level=4),
        dict(num_neuroncores=0),
        dict(sram_threshold_bytes=0),
        dict(inline_weights="yes"),
        dict(dtype="fp8"),
    ],
)
def test_neuron_compile_param_refuses_what_makes_no_sense(bad):
    with pytest.raises(errors.ParameterError):
        NeuronCompileParam(**bad)
