r"""How a cut lattice scales: seconds of a hop and of a CG iteration on 1 to many hosts, from a few measured numbers.

With :math:`V_3` sites in a time slice, :math:`T_\ell` slices on a host, n right-hand sides, w bytes per real number:

.. math::

    B = 4 N_c\, w\, n\, V_3, \qquad
    t_x = 2 (\lambda + B/\beta), \qquad
    t_{\rm hop} = t_c + \max(t_{\rm int}, t_x) + t_{\rm ext},

with :math:`t_{\rm int} = (T_\ell - 2) V_3 n\, t_s` the interior, which runs while the faces travel, :math:`t_{\rm ext} = 2 V_3 n\,
t_s` the first and the last slice, which wait for them, and :math:`t_c` what a command costs whatever it does. A face of B bytes is
one half spinor, 2 Nc complex numbers, per site of a slice. An exact sum gathers the sums of all slices and spreads the result,

.. math::

    t_\Sigma = 2 \lceil \log_2 P \rceil \lambda + 8\, T n / \beta ,

and an iteration of CG on :math:`M^\dagger M` is two hops, two sums and the vector updates, :math:`T_\ell V_3 n\, t_v`.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Mapping
from queue import Empty

import attrs
import numpy as np

from lqcd_core.errors import BackendError, LQCDError, ParameterError
from lqcd_core.geometry import LatticeGeometry
from lqcd_core.precision import as_precision

HOSTS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of hosts in the table."""


def _positive(instance, attribute, value) -> None:
    if not (isinstance(value, (int, float)) and math.isfinite(value) and value >= 0):
        raise ParameterError(f"{attribute.name} must be a number, 0 or more; got {value!r}.")


@attrs.frozen
class Machine:
    """What the model needs to know."""

    site_seconds: float = attrs.field(validator=_positive)
    """Seconds of a hop per site and right-hand side on one host, neighbours busy too."""
    vector_seconds: float = attrs.field(validator=_positive)
    """Seconds of the vector updates of a CG iteration per site and right-hand side."""
    command_seconds: float = attrs.field(validator=_positive)
    """Seconds that a command of the executor costs, whatever it does."""
    latency: float = attrs.field(validator=_positive)
    """Seconds until a message of no size arrives."""
    bandwidth: float = attrs.field(validator=_positive)
    """Bytes per second of a face between neighbours."""

    def __attrs_post_init__(self):
        if not self.bandwidth > 0 or not self.site_seconds > 0:
            raise ParameterError("site_seconds and bandwidth must be positive.")


@attrs.frozen
class Point:
    """A prediction."""

    hosts: int
    """Hosts."""
    slices: int
    """Time slices on the largest slab."""
    hop: float
    """Seconds of a hop."""
    iteration: float
    """Seconds of a CG iteration on M^dagger M."""
    hidden: float
    """Fraction of the exchange behind the interior, 0 to 1."""
    efficiency: float
    """Speed per host in a CG iteration over that of one host, 0 to 1 and a little more."""


def face_bytes(geometry: LatticeGeometry, n_rhs: int, precision) -> int:
    r"""Bytes of one face, one way: a half spinor, :math:`2 N_c` complex numbers, per site of a slice and right-hand side.

    Both directions of a hop together are the 12 complex numbers of Nc = 3.

    >>> face_bytes(LatticeGeometry(T=8, Z=4, Y=4, X=4), 12, "single") == 4**3 * 12 * 6 * 8
    True
    """
    return geometry.Z * geometry.Y * geometry.X * n_rhs * 2 * geometry.nc * 2 * as_precision(precision).bytes_per_real


def predict(geometry: LatticeGeometry, n_rhs: int, precision, machine: Machine, hosts: int) -> Point:
    """The formulas of the module for one number of hosts; ``efficiency`` is left at 1.

    Parameters
    ----------
    geometry
        The whole lattice.
    n_rhs
        Right-hand sides, n.
    precision
        Precision of the spinors, which gives w.
    machine
        The measured numbers.
    hosts
        P; on one host there is no exchange.

    Raises
    ------
    ParameterError
        If a slab would have fewer than two time slices.
    """
    if hosts < 1 or geometry.T < 2 * hosts:
        raise ParameterError(f"{hosts} hosts need at least two time slices each, and T = {geometry.T}.")
    m, volume3 = machine, geometry.Z * geometry.Y * geometry.X
    slices = geometry.T if hosts == 1 else 2 * math.ceil(geometry.T / 2 / hosts)  # even; the largest slab sets the pace
    site = volume3 * n_rhs * m.site_seconds
    if hosts == 1:
        hop, hidden, total = m.command_seconds + slices * site, 1.0, 0.0
    else:
        exchange = 2 * (m.latency + face_bytes(geometry, n_rhs, precision) / m.bandwidth)
        interior = (slices - 2) * site
        hop = m.command_seconds + max(interior, exchange) + 2 * site
        hidden = min(1.0, interior / exchange) if exchange else 1.0
        total = 2 * math.ceil(math.log2(hosts)) * m.latency + 8 * geometry.T * n_rhs / m.bandwidth
    vectors = slices * volume3 * n_rhs * m.vector_seconds
    iteration = 2 * hop + vectors + 2 * (total + m.command_seconds)
    return Point(hosts, slices, hop, iteration, hidden, 1.0)


def scaling(
    geometry: LatticeGeometry, n_rhs: int, precision, machine: Machine, weak: bool, hosts: Iterable[int] = HOSTS
) -> list[Point]:
    """Predictions for several numbers of hosts: ``geometry`` is one host's in weak scaling, the whole in strong.

    >>> g = LatticeGeometry(T=16, Z=16, Y=16, X=16)
    >>> m = Machine(1e-7, 2e-8, 1e-5, 5e-6, 1e10)
    >>> [round(p.efficiency, 2) for p in scaling(g, 12, "single", m, weak=True, hosts=(1, 64))]
    [1.0, 1.0]
    """
    out = []
    for count in hosts:
        whole = geometry if not weak else LatticeGeometry(
            T=geometry.T * count, Z=geometry.Z, Y=geometry.Y, X=geometry.X, nc=geometry.nc
        )  # fmt: skip
        if whole.T < 2 * count:
            break
        point = predict(whole, n_rhs, precision, machine, count)
        one = predict(geometry, n_rhs, precision, machine, 1)
        ideal = one.iteration if weak else one.iteration / count
        out.append(attrs.evolve(point, efficiency=ideal / point.iteration))
    if not out:
        raise ParameterError("no number of hosts leaves two time slices to each.")
    return out


# -- measured ------------------------------------------------------------------------------------------------------------


@attrs.frozen
class Measured:
    """The numbers of this machine and what two shards took beside what the model says."""

    machine: Machine
    """Parameters, measured."""
    hop: Mapping[int, tuple[float, float]] = attrs.field(hash=False)
    """Seconds of a hop by shards: (predicted, measured)."""
    iteration: Mapping[int, tuple[float, float]] = attrs.field(hash=False)
    """Seconds of a CG iteration by shards: (predicted, measured)."""


def measure(inner: str, geometry: LatticeGeometry, n_rhs: int, precision, repeats: int = 7) -> Measured:
    """Measure the parameters of the model with one and two processes of this host, and compare.

    Nothing is fitted to the two-shard time: ``site_seconds`` is that of the inner backend on one slab while a second
    process does the same, ``command_seconds`` and ``latency`` come from a lattice that is all overhead, ``bandwidth``
    from copies of a face while the other process copies too.

    Parameters
    ----------
    inner
        Backend on each slab.
    geometry
        The whole lattice of the comparison, T at least 4.
    n_rhs
        Right-hand sides.
    precision
        Precision of the spinors.
    repeats
        Repeats of each measurement; medians count.

    Raises
    ------
    ParameterError
        If T is too small for two.
    LQCDError
        What the backend says if it cannot run there.
    BackendError
        If a process that measures dies.
    """
    if geometry.T < 4:
        raise ParameterError(f"two processes need two time slices each to be measured, and T = {geometry.T}.")
    half = LatticeGeometry(
        T=max(4, 2 * math.ceil(geometry.T / 4)), Z=geometry.Z, Y=geometry.Y, X=geometry.X, nc=geometry.nc
    )
    alone = _pair(inner, geometry, n_rhs, precision, repeats, processes=1)
    both = _pair(inner, half, n_rhs, precision, repeats, processes=2)
    tiny = LatticeGeometry(T=4, Z=2, Y=2, X=2, nc=geometry.nc)
    overhead = {k: _shards(inner, tiny, 1, precision, k, max(repeats, 50)) for k in (1, 2)}
    command = overhead[1][0]
    common = {
        "command_seconds": command, "latency": max(0.0, (overhead[2][0] - command) / 2), "bandwidth": both["bandwidth"],
    }  # fmt: skip
    machines = {k: Machine(found["site"], found["vector"], **common) for k, found in ((1, alone), (2, both))}
    hop, iteration = {}, {}
    for shards in (1, 2):
        point = predict(geometry, n_rhs, precision, machines[shards], shards)
        found = _shards(inner, geometry, n_rhs, precision, shards, repeats)
        hop[shards], iteration[shards] = (point.hop, found[0]), (point.iteration, found[1])
    return Measured(machines[2], hop, iteration)


def _shards(inner, geometry, n_rhs, precision, shards, repeats) -> tuple[float, float]:
    """Median seconds of a hop and of a CG iteration on ``shards`` processes."""
    import lqcd_core as lqcd

    options = {"inner": inner, "shards": shards, "executor": "processes"}
    U = lqcd.GaugeField.random(geometry, seed=1)
    M = lqcd.WilsonDirac(mass=0.4).bind(U, backend=("sharded", options), precision=precision, n_rhs=n_rhs)
    x = M.space.pack(_spinors(geometry, n_rhs))
    solver = lqcd.ConjugateGradient(tol=1e-12 if str(precision) == "double" else 1e-6, maxiter=4)
    times = []
    for repeat in range(repeats + 1):
        a = time.perf_counter()
        M.hopping(x)
        b = time.perf_counter()
        if repeat < 6:
            solver.solve_handles(M.normal_linear, x)
        c = time.perf_counter()
        if repeat:
            times.append((b - a, (c - b) / 4 if repeat < 6 else math.nan))
    return statistics.median(t[0] for t in times), statistics.median(t[1] for t in times if t[1] == t[1])


def _spinors(geometry, n_rhs):
    rng = np.random.default_rng(0)
    return rng.normal(size=(n_rhs, *geometry.spinor_shape)) + 1j * rng.normal(size=(n_rhs, *geometry.spinor_shape))


def _pair(inner, geometry, n_rhs, precision, repeats, processes: int) -> dict[str, float]:
    """Medians over processes that work side by side on a lattice of their own each."""
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    barrier, queue = context.Barrier(processes), context.Queue()
    arguments = (inner, geometry, n_rhs, str(as_precision(precision).name), repeats, barrier, queue)
    started = [context.Process(target=_alone, args=arguments, daemon=True) for _ in range(processes)]
    for process in started:
        process.start()
    try:
        found = [_answer(queue, started) for _ in started]
    finally:
        for process in started:
            process.terminate()
            process.join()
    return {key: statistics.median(f[key] for f in found) for key in found[0]}


def _answer(queue, started) -> dict[str, float]:
    """What one process measured; one that dies, or says why it cannot, ends the wait."""
    while True:
        codes = [p.exitcode for p in started]  # before the look: what a process said is there when it has gone
        try:
            found = queue.get(timeout=0.5)
        except Empty:
            if any(codes) or None not in codes:
                ended = ", ".join(str(code) for code in codes if code is not None)
                raise BackendError(f"a process that measured ended with code {ended} and no number.") from None
            continue
        if isinstance(found, LQCDError):
            raise found
        return found


def _alone(inner, geometry, n_rhs, precision, repeats, barrier, queue) -> None:
    try:
        queue.put(_measured_alone(inner, geometry, n_rhs, precision, repeats, barrier))
    except LQCDError as error:  # a backend that is not there, a lattice that it does not take
        queue.put(error)


def _measured_alone(inner, geometry, n_rhs, precision, repeats, barrier) -> dict[str, float]:
    import lqcd_core as lqcd

    U = lqcd.GaugeField.random(geometry, seed=1)
    M = lqcd.WilsonDirac(mass=0.4).bind(U, backend=inner, precision=precision, n_rhs=n_rhs)
    x, y = M.space.pack(_spinors(geometry, n_rhs)), M.space.pack(_spinors(geometry, n_rhs))
    face = np.ones(face_bytes(geometry, n_rhs, precision), np.uint8)
    there = np.empty_like(face)
    sites = geometry.volume * n_rhs
    solver = lqcd.ConjugateGradient(tol=1e-12 if precision == "double" else 1e-6, maxiter=4)
    hops, solves, copies = [], [], []
    for _ in range(repeats + 1):
        barrier.wait(600)
        a = time.perf_counter()
        M.hopping(x)
        b = time.perf_counter()
        solver.solve_handles(M.normal_linear, y)
        c = time.perf_counter()
        for _ in range(2):  # into the segment and out of it
            np.copyto(there, face)
        d = time.perf_counter()
        hops.append(b - a)
        solves.append((c - b) / 4)
        copies.append(d - c)
    hop, iteration = statistics.median(hops[1:]), statistics.median(solves[1:])
    return {
        "site": hop / sites, "vector": max(0.0, iteration - 2 * hop) / sites, "bandwidth": face.nbytes / statistics.median(copies[1:]),
    }  # fmt: skip


__all__ = ["HOSTS", "Machine", "Measured", "Point", "face_bytes", "measure", "predict", "scaling"]
