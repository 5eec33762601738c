"""The torch backend: against the reference backend, its gradients against differences, its bits against threads."""

# ruff: noqa: E402  (torch must be there before anything that imports it)

import subprocess
import sys
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from lqcd_backends.numpy.backend import NumpyBackend
from lqcd_backends.torch.backend import TorchBackend
from lqcd_backends.torch.hopping import plan

from lqcd_core.backend import DiracTerms, Links, SiteDiagonal
from lqcd_core.errors import BackendUnavailable, FieldShapeError
from lqcd_core.gamma import GAMMA
from lqcd_core.geometry import EVEN, FULL, ODD, LatticeGeometry
from lqcd_core.precision import as_precision

PRECISIONS = ("double", "single", "half", "bf16")
PHASES = (-1, 1j, 1, np.exp(0.3j))
COEFFICIENTS = (1.0, 0.7, 0.7, 0.7)
DOUBLE = as_precision("double")


def gaussian(*shape, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return rng.normal(size=shape) + 1j * rng.normal(size=shape)


def links_on(g, array=None, phases=PHASES, coefficients=COEFFICIENTS):
    return Links(g, gaussian(*g.gauge_shape, seed=1) if array is None else array, phases, coefficients)


def distance(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def spaces_and_hop(backend, links, p, n, parity):
    g = links.geometry
    if parity is FULL:
        space = backend.space(g, p, n)
        return space, space, backend.hopping(links, space)
    target = backend.space(g, p, n, parity)
    return backend.space(g, p, n, 1 - parity), target, backend.parity_hopping(links, target)


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("nc", (2, 3, 4))
@pytest.mark.parametrize("shape", ((3, 1, 5, 2), (4, 2, 6, 4), (1, 3, 1, 1)))
@pytest.mark.parametrize("chunk", (None, 1, 30))
def test_hopping_agrees_with_the_reference(name, nc, shape, chunk):
    g, p = LatticeGeometry.from_shape(shape, nc=nc), as_precision(name)
    links = links_on(g)
    for parity in (FULL,) if g.why_no_parity() else (FULL, EVEN, ODD):
        psi = gaussian(3, *g.parity_shape(parity))
        got, want = (
            target.unpack(hop(source.pack(psi)))
            for source, target, hop in (
                spaces_and_hop(b, links, p, 3, parity) for b in (TorchBackend(chunk=chunk), NumpyBackend())
            )
        )
        assert got.dtype == want.dtype == p.complex_dtype
        assert distance(got, want) < p.tolerance


@pytest.mark.parametrize("chunk", (1, 7, 24, 100, 10**6))
@pytest.mark.parametrize("sites", ((4, 2, 6, 4), (3, 5, 1, 2), (1, 1, 1, 1), (5, 4, 3, 2)))
def test_every_block_plan_writes_each_site_once_per_hop(chunk, sites):
    T, Z, Y, X = sites
    index = np.arange(T * Z * Y * X).reshape(sites)
    for mu in range(4):
        for forward in (True, False):
            read = np.full(index.size, -1)
            for _, _, tasks in plan(sites, chunk):
                for k in (k for k in tasks if (k.mu, k.forward) == (mu, forward)):
                    source = np.arange(k.source, k.source + k.sites)
                    if k.shift:
                        stride, extent = k.shift
                        source = np.roll(source.reshape(-1, extent, stride), -1 if forward else 1, axis=1).ravel()
                    assert (read[k.target : k.target + k.sites] == -1).all()
                    read[k.target : k.target + k.sites] = source
            assert (read == np.roll(index, -1 if forward else 1, axis=mu).ravel()).all()


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("twist", (0.0, 0.3))
@pytest.mark.parametrize("with_blocks", (False, True))
def test_site_term_agrees_with_the_reference(name, twist, with_blocks):
    g, p = LatticeGeometry(T=2, Z=2, Y=4, X=6), as_precision(name)
    blocks = gaussian(*g.shape, 2, 6, 6, seed=3) if with_blocks else None
    term = SiteDiagonal(scalar=1.7, blocks=blocks, twist=twist, hermitian_blocks=False)
    for parity in (FULL, EVEN, ODD):
        psi = gaussian(2, *g.parity_shape(parity))
        out = []
        for backend in (TorchBackend(), NumpyBackend()):
            space = backend.space(g, p, 2, parity)
            out.append(space.unpack(backend.site_diagonal(term.on_parity(g, parity), space)(space.pack(psi))))
        assert distance(*out) < p.tolerance


def test_vector_operations_agree_with_the_reference():
    g = LatticeGeometry(T=3, Z=2, Y=2, X=5)
    for name in PRECISIONS:
        p = as_precision(name)
        x, y = gaussian(3, *g.spinor_shape), gaussian(3, *g.spinor_shape, seed=5)
        t, r = TorchBackend().space(g, p, 3), NumpyBackend().space(g, p, 3)
        for a in (0.3, -1.2j, np.array([1.0, 2.0, -0.5]), np.array([1j, 2.0, -0.5 + 1j])):
            got = t.unpack(t.axpy(a, t.pack(x), t.pack(y)))
            want = r.unpack(r.axpy(a, r.pack(x), r.pack(y)))
            assert distance(got, want) < p.tolerance
            column = np.broadcast_to(np.asarray(a), (3,)).reshape(3, *[1] * 6)
            assert distance(t.unpack(t.scale(a, t.pack(x))), column * x) < 2 * p.tolerance
            assert distance(t.unpack(t.xpay(t.pack(x), a, t.pack(y))), x + column * y) < 2 * p.tolerance
        np.testing.assert_allclose(t.inner(t.pack(x), t.pack(y)), r.inner(r.pack(x), r.pack(y)), rtol=1e-12)
        np.testing.assert_allclose(t.norm2(t.pack(x)), r.norm2(r.pack(x)), rtol=1e-13)
        assert (t.unpack(t.gamma5(t.pack(x)))[..., 2:, :] == -t.unpack(t.pack(x))[..., 2:, :]).all()


def test_conversions_round_once_and_stay_inside():
    g = LatticeGeometry(T=2, Z=3, Y=2, X=2)
    psi, backend = gaussian(2, *g.spinor_shape), TorchBackend()
    double = backend.space(g, DOUBLE, 2)
    for name in PRECISIONS:
        space = backend.space(g, as_precision(name), 2)
        handle = double.pack(psi)
        converted = space.convert_from(handle, double)
        assert (space.unpack(converted) == space.unpack(space.pack(psi))).all()
        assert converted.data_ptr() != handle.data_ptr()
        back = double.convert_from(converted, space)
        assert (double.unpack(back) == space.unpack(converted)).all()
    assert double.convert_from(NumpyBackend().space(g, DOUBLE, 2).pack(psi), NumpyBackend().space(g, DOUBLE, 2)) is None


def test_columns_do_not_know_their_batch():
    """take and put move columns exactly, and a column's H psi has the same bits alone and among others."""
    g = LatticeGeometry(T=4, Z=4, Y=4, X=4)
    backend = TorchBackend()
    for name in PRECISIONS:
        space = backend.space(g, as_precision(name), 5)
        hop, x = backend.hopping(links_on(g), space), space.pack(gaussian(5, *g.spinor_shape))
        whole = hop(x)
        part = hop(space.take(x, [3, 1]))
        assert torch.equal(part, space.take(whole, [3, 1]))
        assert (space.norm2(part) == space.norm2(whole)[[3, 1]]).all()
        merged = space.put(space.copy(x), [3, 1], part)
        assert torch.equal(merged[3], whole[3]) and torch.equal(merged[0], x[0])


@pytest.mark.parametrize("form", ("asymmetric", "symmetric"))
def test_fused_operators_have_adjoint_gradients(form):
    """The fused maps differentiate with respect to the spinor: the gradient of |A x|^2 / 2 is A^dagger A x."""
    g, backend = LatticeGeometry(T=2, Z=2, Y=2, X=4), TorchBackend()
    blocks = gaussian(*g.shape, 2, 6, 6, seed=3)
    term = SiteDiagonal(scalar=9.0, blocks=blocks + blocks.conj().swapaxes(-1, -2), twist=0.4)
    for kinds, parity in ((("M", "Mdag", "MdagM"), FULL), (("schur", "schur_dag", "schur_normal"), ODD)):
        terms = DiracTerms(links=links_on(g), diagonal=term, parity=parity, form=form)
        space = backend.space(g, DOUBLE, 2, parity)
        m, m_dagger, normal = (backend.fused(kind, terms, space) for kind in kinds)
        psi = torch.from_numpy(gaussian(2, *g.parity_shape(parity))).requires_grad_()
        (0.5 * space.to_array(m(space.pack(psi))).abs().square().sum()).backward()
        handle = space.pack(psi.detach())
        assert distance(psi.grad.numpy(), space.unpack(m_dagger(m(handle)))) < 50 * DOUBLE.tolerance
        assert torch.equal(normal(handle), m_dagger(m(handle)))


def h_of(g, parity=FULL, n=2, precision=DOUBLE):
    backend = TorchBackend()

    def function(psi, u):
        source, target, hop = spaces_and_hop(backend, links_on(g, u), precision, n, parity)
        return target.to_array(hop(source.pack(psi)))

    return function


@pytest.mark.parametrize(("shape", "parity"), (((2, 2, 2, 4), FULL), ((3, 1, 2, 1), FULL), ((2, 2, 2, 2), EVEN)))
def test_hopping_gradients_match_differences(shape, parity):
    """torch's gradcheck: analytic against central differences, for psi and U, as complex numbers."""
    g = LatticeGeometry.from_shape(shape, nc=2)
    psi = torch.from_numpy(gaussian(1, *g.parity_shape(parity))).requires_grad_()
    u = torch.from_numpy(gaussian(*g.gauge_shape, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(h_of(g, parity, 1), (psi, u), fast_mode=True)
    assert torch.autograd.gradgradcheck(h_of(g, parity, 1), (psi, u), fast_mode=True)


def test_hopping_gradients_match_differences_entry_by_entry():
    g = LatticeGeometry(T=2, Z=1, Y=1, X=3, nc=2)
    psi = torch.from_numpy(gaussian(1, *g.spinor_shape)).requires_grad_()
    u = torch.from_numpy(gaussian(*g.gauge_shape, seed=1)).requires_grad_()
    assert torch.autograd.gradcheck(h_of(g, FULL, 1), (psi, u))


def test_link_gradient_is_that_of_plain_torch():
    """An independent differentiable H (complex, rolls and einsum) gives the same gradients, Nc = 3, two columns."""
    g = LatticeGeometry(T=2, Z=3, Y=2, X=4)
    psi0, u0 = gaussian(2, *g.spinor_shape), gaussian(*g.gauge_shape, seed=1)

    def plain(psi, u):
        out = 0
        for mu in range(4):
            edge = torch.ones(g.shape[mu], dtype=u.dtype)
            edge[-1] = PHASES[mu]
            w = COEFFICIENTS[mu] * edge.reshape([-1 if k == mu else 1 for k in range(4)] + [1, 1]) * u[..., mu, :, :]
            gm = torch.from_numpy(np.array(GAMMA[mu]))
            ahead = torch.einsum("tzyxab,ntzyxsb->ntzyxsa", w, torch.roll(psi, -1, mu + 1))
            back = torch.roll(torch.einsum("tzyxba,ntzyxsb->ntzyxsa", w.conj(), psi), 1, mu + 1)
            out = out + 0.5 * (ahead + back + torch.einsum("rs,ntzyxsa->ntzyxra", gm, back - ahead))
        return out

    weight = torch.from_numpy(gaussian(2, *g.spinor_shape, seed=9))
    grads = []
    for function in (plain, h_of(g)):
        psi, u = (torch.from_numpy(v.copy()).requires_grad_() for v in (psi0, u0))
        out = function(psi, u)
        loss = (weight.conj() * out).sum().real + 0.1 * out.abs().square().sum()
        loss.backward()
        grads.append((psi.grad.numpy(), u.grad.numpy()))
    for a, b in zip(*grads):
        assert distance(b, a) < 1e-13


def test_gradients_reach_the_blocks_and_pass_the_vector_operations():
    g = LatticeGeometry(T=2, Z=1, Y=2, X=1, nc=2)
    space = TorchBackend().space(g, DOUBLE, 1)

    def function(psi, phi, blocks):
        term = SiteDiagonal(scalar=2.0, blocks=blocks, twist=0.3, hermitian_blocks=False)
        y = TorchBackend().site_diagonal(term, space)(space.pack(psi))
        y = space.axpy(0.7 - 0.2j, space.gamma5(space.pack(phi)), y)
        y = space.xpay(space.pack(phi), np.array([1.5j]), space.scale(0.5, y))
        return space.to_array(space.put(y, [0], space.take(y, [0])))

    inputs = [gaussian(1, *g.spinor_shape), gaussian(1, *g.spinor_shape, seed=2), gaussian(*g.shape, 2, 4, 4, seed=3)]
    assert torch.autograd.gradcheck(function, [torch.from_numpy(v).requires_grad_() for v in inputs], fast_mode=True)


@pytest.mark.parametrize("name", ("single", "half", "bf16"))
def test_gradients_in_low_precision_follow_double(name):
    g, p = LatticeGeometry(T=2, Z=2, Y=2, X=2), as_precision(name)
    grads = []
    for precision in (p, DOUBLE):
        psi = torch.from_numpy(gaussian(2, *g.spinor_shape)).requires_grad_()
        u = torch.from_numpy(gaussian(*g.gauge_shape, seed=1)).requires_grad_()
        h_of(g, precision=precision)(psi, u).abs().square().sum().backward()
        grads.append((psi.grad.numpy(), u.grad.numpy()))
    for got, want in zip(*grads):
        assert distance(got, want) < 4 * p.tolerance


def test_inputs_are_left_alone_and_lazy_conjugates_resolved():
    g, backend = LatticeGeometry(T=2, Z=2, Y=2, X=2), TorchBackend()
    array = torch.from_numpy(gaussian(1, *g.spinor_shape))
    space = backend.space(g, DOUBLE, 1)
    handle = space.pack(array.conj())
    assert (space.unpack(handle) == array.numpy().conj()).all()
    u = torch.from_numpy(gaussian(*g.gauge_shape, seed=1))
    before, links = handle.clone(), u.clone()
    hop = backend.hopping(links_on(g, u.conj()), space)
    want = NumpyBackend().hopping(links_on(g, u.numpy().conj()), NumpyBackend().space(g, DOUBLE, 1))
    got = space.unpack(hop(handle))
    assert distance(got, want(NumpyBackend().space(g, DOUBLE, 1).pack(array.numpy().conj()))
                    .transpose(0, 3, 4, 5, 6, 1, 2)) < DOUBLE.tolerance  # fmt: skip
    assert torch.equal(handle, before) and torch.equal(u, links)
    space.axpy(2.0, handle, handle.clone())
    assert torch.equal(handle, before)
    packed = space.pack(array)
    packed.zero_()  # a handle owns its memory
    assert array.abs().min() > 0


def test_packing_a_read_only_array_warns_of_nothing(recwarn):
    g, backend = LatticeGeometry(T=2, Z=2, Y=2, X=2), TorchBackend()
    psi, u = gaussian(1, *g.spinor_shape), gaussian(*g.gauge_shape, seed=1)
    psi.setflags(write=False)
    u.setflags(write=False)
    space = backend.space(g, DOUBLE, 1)
    backend.hopping(links_on(g, u), space)(space.pack(psi))
    assert not recwarn.list


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_nan_reaches_its_neighbours_and_every_norm(name):
    g, backend = LatticeGeometry(T=4, Z=4, Y=4, X=4), TorchBackend()
    psi = gaussian(2, *g.spinor_shape)
    psi[1, 1, 2, 3, 0, 2, 1] = np.nan
    space = backend.space(g, as_precision(name), 2)
    x = space.pack(psi)
    assert np.isnan(space.norm2(x)).tolist() == [False, True]
    out = space.unpack(backend.hopping(links_on(g), space)(x))
    assert np.isfinite(out[0]).all()
    assert sorted(map(tuple, np.argwhere(np.isnan(out[1]).any(axis=(-1, -2))))) == sorted(
        [(0, 2, 3, 0), (2, 2, 3, 0), (1, 1, 3, 0), (1, 3, 3, 0), (1, 2, 2, 0), (1, 2, 0, 0), (1, 2, 3, 1), (1, 2, 3, 3)]
    )


def test_wrong_scalars_and_shapes_are_refused():
    g, space = LatticeGeometry(T=2, Z=2, Y=2, X=2), TorchBackend().space(LatticeGeometry(T=2, Z=2, Y=2, X=2), DOUBLE, 3)
    x = space.pack(gaussian(3, *g.spinor_shape))
    with pytest.raises(FieldShapeError, match="3 columns"):
        space.axpy(np.ones(2), x, space.copy(x))
    with pytest.raises(FieldShapeError):
        space.pack(torch.zeros(3, 2, 2, 2, 3, 4, 3, dtype=torch.complex128))


def test_a_missing_device_is_the_reason():
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    with pytest.raises(BackendUnavailable, match="no CUDA device"):
        TorchBackend(device="cuda:1")


@pytest.mark.parametrize("name", ("single", "half"))
def test_several_python_threads_share_an_operator(name):
    g, backend, p = LatticeGeometry(T=4, Z=4, Y=4, X=4), TorchBackend(chunk=64), as_precision(name)
    space = backend.space(g, p, 1)
    hop = backend.hopping(links_on(g), space)
    vectors = [space.pack(gaussian(1, *g.spinor_shape, seed=k)) for k in range(6)]
    want = [hop(v) for v in vectors]
    wrong = []

    def work(k):
        for _ in range(5):
            if not torch.equal(hop(vectors[k]), want[k]):
                wrong.append(k)

    workers = [threading.Thread(target=work, args=(k,)) for k in range(len(vectors))]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


_BITS = """
import sys, hashlib, numpy as np, torch
from lqcd_backends.torch.backend import TorchBackend
from lqcd_core.backend import Links
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.precision import as_precision
before = torch.get_num_threads()
backend = TorchBackend()
assert torch.get_num_threads() == before
threads = int(sys.argv[1])
backend = TorchBackend(threads=threads)
assert torch.get_num_threads() == threads
g = LatticeGeometry(T=7, Z=8, Y=10, X=9)
rng = np.random.default_rng(1)
c = lambda *s: rng.normal(size=s) + 1j * rng.normal(size=s)
u, psi = c(*g.gauge_shape), c(2, *g.spinor_shape)
digest = hashlib.sha256()
for name in ("single", "double"):
    space = backend.space(g, as_precision(name), 2)
    x = space.pack(psi)
    y = backend.hopping(Links(g, u), space)(x)
    digest.update(space.unpack(y).tobytes())
    digest.update(space.inner_slices(x, y).tobytes())
    y, rr = space.axpy_norm2(0.3 - 1j, x, y)
    digest.update(rr.tobytes())
    digest.update(space.norm2(y).tobytes())
print(digest.hexdigest())
"""


def test_bits_do_not_depend_on_threads():
    """Operator and reductions, 1 against 3 threads, in processes of their own; threads= is the only thing that sets them."""
    digests = [
        subprocess.run([sys.executable, "-c", _BITS, str(k)], capture_output=True, text=True, check=True).stdout.strip()
        for k in (1, 3)
    ]
    assert digests[0] == digests[1] != ""


def test_the_record_imports_no_torch():
    code = "import sys, lqcd_backends.torch.plugin; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_describe_says_what_runs():
    facts = TorchBackend().describe()
    assert facts["torch"] == torch.__version__ and facts["device"] == "cpu" and int(facts["threads"]) >= 1
    assert facts["instruction_set"]


def test_links_are_packed_once_and_released_with_their_operator():
    g, backend = LatticeGeometry(T=2, Z=2, Y=2, X=2), TorchBackend()
    space, even = backend.space(g, DOUBLE, 1), backend.space(g, DOUBLE, 1, EVEN)
    links, other = links_on(g), links_on(g, gaussian(*g.gauge_shape, seed=2))
    terms = DiracTerms(links=links, diagonal=SiteDiagonal(scalar=4.1), parity=EVEN)
    operators = [backend.hopping(links, space), backend.parity_hopping(links, even)]
    operators += [backend.fused(kind, terms, space) for kind in ("M", "Mdag", "MdagM")]
    operators += [backend.fused(kind, terms, even) for kind in ("schur", "schur_dag", "schur_normal")]
    tensors = [v for v in backend._packed[links].values() if isinstance(v, torch.Tensor)]
    assert sum(v.numel() for v in tensors) == 2 * 2 * np.prod(g.gauge_shape)  # the whole and the two halves
    x = space.pack(gaussian(1, *g.spinor_shape))
    assert not torch.equal(backend.hopping(other, space)(x), operators[0](x))
    want = operators[0](x)
    del links, terms
    assert len(backend._packed) == 1  # only the other field is still there
    assert torch.equal(operators[0](x), want)
