"""The conformance suite catches faults: each deliberately wrong backend breaks the law that names its fault."""

from typing import ClassVar

import attrs
import numpy as np
import pytest
from lqcd_backends.numpy.backend import NumpyBackend

from lqcd_core import BackendInfo, Option, hookimpl
from lqcd_core.fields import from_storage, to_storage
from lqcd_core.gamma import GAMMA
from lqcd_core.geometry import FULL
from lqcd_core.registry import registered
from lqcd_core.spaces import ArraySpace
from lqcd_core.testing.laws import LAWS, Case, NotApplicable, check
from lqcd_core.testing.loopback import FullLoopbackSpace, SolvingLoopbackBackend

FAULTS = {
    # fault -> laws that must break (others may)
    "projector sign": {"hopping_agrees_with_loops", "free_plane_waves_are_eigenvectors"},
    "shift direction": {"hopping_agrees_with_loops", "hopping_is_gauge_covariant"},
    "missing conjugation": {"hopping_agrees_with_loops", "hopping_is_gauge_covariant", "hopping_is_gamma5_hermitian"},
    "missing transpose": {"hopping_agrees_with_loops", "hopping_is_gauge_covariant"},
    "phase on the wrong edge": {"boundary_phases_sit_on_the_edge", "hopping_agrees_with_loops"},
    "phase not conjugated": {"boundary_phases_sit_on_the_edge", "hopping_is_gamma5_hermitian"},
    "phase in t only": {"boundary_phases_sit_on_the_edge"},
    "gammas of t and x exchanged": {"hopping_agrees_with_loops", "free_plane_waves_are_eigenvectors"},
    "factor of a half": {"hopping_agrees_with_loops", "operators_agree_with_loops"},
    "coefficients ignored": {"hop_coefficients_scale_directions", "operators_agree_with_loops"},
    "single accumulation": {"reductions_accumulate_in_double"},
    "inner without conjugate": {"inner_products_are_right"},
    "inner on the wrong side": {"inner_products_are_right"},
    "mutated input": {"inputs_are_unchanged"},
    "links changed": {"inputs_are_unchanged"},
    "links kept as a view": {"inputs_are_unchanged"},
    "shared state": {"binds_share_no_state"},
    "shared output": {"results_do_not_alias"},
    "dropped column": {"hopping_agrees_with_loops", "columns_are_independent"},
    "mixed columns": {"columns_are_independent", "nan_passes_through"},
    "gamma5 sign": {"gamma5_is_diagonal", "hopping_is_gamma5_hermitian"},
    "gamma5 aliases": {"results_do_not_alias"},
    "axpy ignores columns": {"axpy_is_y_plus_a_x"},
    "axpy drops the imaginary part": {"axpy_is_y_plus_a_x"},
    "pack is a view": {"unpack_and_pack_share_no_memory"},
    "pack broadcasts": {"pack_refuses_wrong_shapes"},
    "rounds in pack": {"unpack_inverts_pack"},
    "clamps NaN": {"nan_passes_through"},
    "not linear": {"hopping_is_linear"},
    "stays on its parity": {"hopping_flips_parity"},
    "wrong neighbour at extent two": {"hopping_agrees_with_loops"},
    "not thread safe": {"two_threads_bind_and_apply"},
    "puts in the wrong place": {"columns_leave_and_come_back"},
    "slices depend on the batch": {"slices_sum_to_the_inner_product"},
    "conversion aliases": {"conversion_rounds_once"},
    "twist forgotten": {"site_terms_agree_with_the_host", "twisted_dagger_flips_mu"},
    "blocks transposed": {"site_terms_agree_with_the_host", "operators_agree_with_loops"},
    "resizable without take": {"record_tells_the_truth"},
    "favours the first column": {"derived_operators_work_on_fewer_columns", "columns_are_independent"},
    "one zeros for all": {"zeros_are_new_zeros"},
    "reads memory order": {"pack_takes_any_strides_and_types"},
    "blocks counted twice": {"clover_without_csw_is_wilson", "schur_complement_eliminates_a_parity"},
}  # fmt: skip
FAULTS["gamma5 sign"] |= {"dagger_is_the_adjoint", "schur_dagger_is_the_adjoint"}

OPTIONAL_FAULTS = {
    "hop onto the wrong parity's order": {"parity_hops_are_parts_of_the_full_hop"},
    "parity space twice as large": {"parity_spaces_are_spaces"},
    "M^dagger without the conjugate twist": {"fused_operators_agree_with_derived"},
    "Schur complement of the other form": {"fused_operators_agree_with_derived"},
    "residual updated with the wrong sign": {"fused_updates_agree_with_axpy"},
    "norm before the update": {"fused_updates_agree_with_axpy"},
    "slices of the residual before the update": {"fused_slices_agree_with_axpy"},
    "solution of half the source": {"device_solve_reaches_its_target"},
    "plaquettes of one plane twice": {"gauge_kernels_agree_with_the_formulas"},
    "numbers in the description": {"description_is_plain_data"},
}


class FaultySpace(ArraySpace):
    def __init__(self, fault, *args):
        super().__init__(np, *args)
        self.fault = fault

    def pack(self, array):
        if self.fault == "pack is a view" and not self.precision.is_split:
            super().pack(array)
            return np.moveaxis(np.asarray(array), (5, 6), (1, 2)).astype(self.precision.complex_dtype, copy=False)
        if self.fault == "reads memory order" and np.asarray(array).flags.f_contiguous:
            array = np.asarray(array).T.reshape(np.shape(array))
        if self.fault == "pack broadcasts":
            array = np.broadcast_to(array, (self.n_rhs, *self.geometry.parity_shape(self.parity)))
        if self.fault == "rounds in pack":
            array = np.asarray(array).astype(np.complex64) * np.float32(1.0001)
        return super().pack(array)

    def zeros(self):
        if self.fault != "one zeros for all":
            return super().zeros()
        if not hasattr(self, "kept"):
            self.kept = super().zeros()
        return self.kept

    def axpy(self, a, x, y):
        if self.fault == "axpy ignores columns":
            a = np.asarray(a).reshape(-1)[0]
        if self.fault == "axpy drops the imaginary part":
            a = np.real(a)
        return super().axpy(a, x, y)

    def gamma5(self, x):
        if self.fault == "gamma5 sign":
            return -super().gamma5(x)[:, [0, 2, 1, 3]]
        if self.fault == "gamma5 aliases":
            x[:, 2:] *= -1
            self.flip = x
            return x
        return super().gamma5(x)

    def _slices(self, x, y):
        if self.fault == "single accumulation":
            a, b = (self.load(v).astype(np.complex64) for v in (x, y))
            out = np.zeros((len(a), self._site[0]), np.complex64)
            for t in range(self._site[0]):
                # one running sum, as a plain loop over sites would have it
                flat = (a[:, :, :, t].conj() * b[:, :, :, t]).reshape(len(a), -1)
                out[:, 0] = np.cumsum(np.concatenate([out[:, :1], flat], 1), axis=1, dtype=np.complex64)[:, -1]
            return out.astype(np.complex128)
        out = super()._slices(x, y)
        if self.fault == "inner without conjugate":
            out = out.real + 0j
        if self.fault == "inner on the wrong side":
            out = out.conj()
        if self.fault == "slices depend on the batch":
            out = out * (1 + 1e-16 * 3 * (len(out) - 1))
        return out

    def put(self, x, columns, part):
        if self.fault == "puts in the wrong place":
            columns = list(reversed(columns))
        return super().put(x, columns, part)

    def convert_from(self, handle, source):
        if self.fault == "conversion aliases" and source.precision == self.precision and not self.precision.is_split:
            return handle
        return super().convert_from(handle, source)


class SpaceWithoutTake(FaultySpace):
    take = put = None


class FaultyBackend:
    """A plain, right backend with one fault; with fault=None it obeys every law."""

    last: ClassVar[dict] = {}

    def __init__(self, fault=None):
        self.fault = fault

    def space(self, geometry, precision, n_rhs=1, parity=FULL):
        kind = SpaceWithoutTake if self.fault == "resizable without take" else FaultySpace
        return kind(self.fault, geometry, precision, n_rhs, parity)

    def site_diagonal(self, term, space):
        if self.fault == "twist forgotten":
            term = attrs.evolve(term, twist=0.0)
        if self.fault == "blocks transposed" and term.blocks is not None:
            term = attrs.evolve(term, blocks=term.blocks.swapaxes(-1, -2))
        if self.fault == "blocks counted twice" and term.blocks is not None:
            term = attrs.evolve(term, scalar=2 * term.scalar, blocks=2 * term.blocks)
        return space.site_diagonal(term)

    def hopping(self, links, space):
        fault, precision = self.fault, space.precision
        if fault == "links changed":
            links.array[...] *= 1 + 1e-3
        u = np.array(links.array, complex)
        for mu in range(4):
            edge = [slice(None)] * 4
            edge[mu] = 0 if fault == "phase on the wrong edge" else -1
            if fault != "coefficients ignored":
                u[..., mu, :, :] *= links.coefficients[mu]
            if not (fault == "phase in t only" and mu):
                u[(*edge, mu)] *= links.phases[mu]
        u = from_storage(to_storage(u, precision), precision)
        back = u.conj()
        if fault == "phase not conjugated":
            for mu in range(4):
                edge = [slice(None)] * 4
                edge[mu] = -1
                if links.phases[mu]:
                    back[(*edge, mu)] *= links.phases[mu] ** 2
        if fault == "missing conjugation":
            back = u
        view = links.array
        state = {"u": u, "back": back}
        if fault in ("shared state", "not thread safe"):
            self.last.update(state)
            state = self.last
        buffer = []
        gammas = GAMMA[[3, 1, 2, 0]] if fault == "gammas of t and x exchanged" else GAMMA
        transposed = "ba" if fault != "missing transpose" else "ab"

        def hop(handle):
            psi = space.load(handle)
            uu, bb = state["u"], state["back"]
            if fault == "not thread safe":
                import time

                time.sleep(1e-3)
                uu, bb = state["u"], state["back"]
            if fault == "links kept as a view":
                uu = uu * (np.abs(view).max() > 0)
            out = np.zeros_like(psi)
            sign = -1 if fault == "projector sign" else 1
            for mu in range(4):
                axis, one = mu - 4, np.eye(4)
                step = 1 if fault == "shift direction" else -1
                ahead = np.roll(psi, step, axis)
                if fault == "wrong neighbour at extent two" and psi.shape[axis] == 2:
                    ahead = psi
                behind = np.einsum(f"tzyx{transposed},njbtzyx->njatzyx", bb[..., mu, :, :], psi)
                behind = np.roll(behind, -step, axis)
                out += np.einsum("ij,tzyxab,njbtzyx->niatzyx", one - sign * gammas[mu], uu[..., mu, :, :], ahead)
                out += np.einsum("ij,njatzyx->niatzyx", one + sign * gammas[mu], behind)
            out *= 1 if fault == "factor of a half" else 0.5
            if fault == "dropped column" and len(out) > 1:
                out[-1] = 0
            if fault == "favours the first column":
                out[0] *= 1.001
            if fault == "mixed columns" and len(out) > 1:
                out[0] += 1e-3 * out[1]
            if fault == "clamps NaN":
                out = np.nan_to_num(out)
            if fault == "not linear":
                out = out + 1e-3 * np.abs(psi)
            if fault == "stays on its parity":
                out = out + 1e-3 * psi
            if fault == "mutated input":
                handle *= handle.dtype.type(0.5)
            if fault == "shared output":
                if not buffer:
                    buffer.append(np.empty_like(out))
                buffer[0][...] = out
                return buffer[0] if not precision.is_split else space.store(out)
            return space.store(out.astype(psi.dtype))

        return hop


class FaultyFullSpace(FullLoopbackSpace):
    fault = None

    def pack(self, array):
        if self.fault == "parity space twice as large" and self.parity is not FULL:
            array = array[:, :, :, :, : self.geometry.X // 2]
        return super().pack(array)

    def cg_update(self, a, p, ap, x, r):
        if self.fault == "residual updated with the wrong sign":
            return self.axpy(a, p, x), *self.axpy_norm2(a, ap, r)
        if self.fault == "norm before the update":
            before = self.norm2(r)
            return *super().cg_update(a, p, ap, x, r)[:2], before
        return super().cg_update(a, p, ap, x, r)

    def cg_update_slices(self, a, p, ap, x, r):
        if self.fault == "slices of the residual before the update":
            before = self.norm2_slices(r)
            return *super().cg_update_slices(a, p, ap, x, r)[:2], before
        return super().cg_update_slices(a, p, ap, x, r)


class FaultyOptionalBackend(SolvingLoopbackBackend):
    """The loopback backend with every optional protocol, one of them wrong."""

    space_class = FaultyFullSpace

    def __init__(self, fault=None):
        super().__init__()
        self.fault = fault

    def space(self, *args, **kwargs):
        space = super().space(*args, **kwargs)
        space.fault = self.fault
        return space

    def parity_hopping(self, links, target):
        if self.fault == "hop onto the wrong parity's order":
            target.scramble.order = target.scramble.order[::-1].copy()
        return super().parity_hopping(links, target)

    def fused(self, kind, terms, space):
        if self.fault == "M^dagger without the conjugate twist" and kind == "Mdag":
            terms = attrs.evolve(terms, diagonal=attrs.evolve(terms.diagonal, twist=-terms.diagonal.twist))
        if self.fault == "Schur complement of the other form":
            terms = attrs.evolve(terms, form="symmetric")
        return super().fused(kind, terms, space)

    def solve(self, bound, inner_bound, b, x0, parameters, callback):
        if self.fault == "solution of half the source":
            b = bound.vectors.scale(0.5, bound.vectors.copy(b))
        return super().solve(bound, inner_bound, b, x0, parameters, callback)

    def gauge_kernel(self, kind, nc):
        kernel = super().gauge_kernel(kind, nc)
        if kernel is None or self.fault != "plaquettes of one plane twice":
            return kernel
        return lambda links: kernel(links)[[0, 1, 2, 3, 4, 4]]

    def describe(self):
        return {"threads": 1} if self.fault == "numbers in the description" else super().describe()


class FaultyHaloBackend(NumpyBackend):
    """The NumPy backend with its faces handed to the wrong sides."""

    def __init__(self, fault=None):
        super().__init__()
        self.fault = fault

    def halo_hopping(self, links, target):
        hop = super().halo_hopping(links, target)
        return ExchangedFaces(hop) if self.fault == "faces exchanged" else hop


def faulty_fused_halo_backend(fault=None):
    """The torch backend with the faces of its fused operators handed to the wrong sides."""
    from lqcd_backends.torch.backend import TorchBackend

    class FaultyFusedHaloBackend(TorchBackend):
        def halo_fused(self, kind, terms, space):
            hop = super().halo_fused(kind, terms, space)
            return ExchangedFaces(hop) if fault == "faces exchanged" and hop is not None else hop

    return FaultyFusedHaloBackend()


class ExchangedFaces:
    def __init__(self, hop):
        self.faces, self.interior, self._hop = hop.faces, hop.interior, hop

    def exterior(self, x, partial, below, above):
        return self._hop.exterior(x, partial, above, below)


class Plugin:
    @hookimpl
    def lqcd_register_backends(self):
        options = {"fault": Option(help="what is wrong")}
        common = dict(precisions={"double", "single"}, options=options)
        return [
            BackendInfo(name="faulty", load=f"{__name__}:FaultyBackend", **common),
            BackendInfo(name="faulty-optional", load=f"{__name__}:FaultyOptionalBackend", **common),
            BackendInfo(name="faulty-halo", load=f"{__name__}:FaultyHaloBackend", **common),
            BackendInfo(name="faulty-fused-halo", load=f"{__name__}:faulty_fused_halo_backend", **common),
        ]


PLUGIN = Plugin()
HALO_LAWS = {
    "faulty-halo": "slabs_with_faces_are_the_whole",
    "faulty-fused-halo": "fused_slabs_are_the_whole",
}
SLOW_TO_JUDGE = {"solution_has_the_true_residual"}


def broken_laws(fault, names, backend="faulty") -> set[str]:
    broken = set()
    for name in names:
        for precision in ("double", "single"):
            case = Case(backend=backend, options={"fault": fault} if fault else {}, precision=precision)
            try:
                check(name, case)
            except NotApplicable:
                pass
            except Exception:
                broken.add(name)
    return broken


def test_the_backend_without_a_fault_obeys_every_law():
    with registered(PLUGIN):
        assert broken_laws(None, LAWS) == set()


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_fault_breaks_its_law(fault):
    with registered(PLUGIN):
        assert broken_laws(fault, FAULTS[fault]) == FAULTS[fault]


@pytest.mark.parametrize("fault", OPTIONAL_FAULTS)
def test_a_fault_in_an_optional_protocol_breaks_its_law(fault):
    with registered(PLUGIN):
        assert broken_laws(fault, OPTIONAL_FAULTS[fault], "faulty-optional") == OPTIONAL_FAULTS[fault]


@pytest.mark.parametrize(("backend", "law"), list(HALO_LAWS.items()))
def test_exchanged_faces_break_the_law_of_slabs(backend, law):
    if "fused" in backend:
        pytest.importorskip("torch")
    with registered(PLUGIN):
        assert broken_laws(None, {law}, backend) == set()
        assert broken_laws("faces exchanged", {law}, backend) == {law}


def test_every_law_is_broken_by_some_fault():
    caught = set().union(*FAULTS.values(), *OPTIONAL_FAULTS.values(), HALO_LAWS.values())
    assert LAWS.keys() - caught == SLOW_TO_JUDGE | {"arrays_are_canonical"}  # a backend with another array library
