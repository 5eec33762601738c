"""A NaN that nobody put in is charged to the worker that made it; one that was put in goes through."""

import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from lqcd_backends.numpy.backend import NumpyBackend

import lqcd_core as lqcd
from lqcd_core.errors import BackendError


def problem():
    g = lqcd.LatticeGeometry(T=12, Z=2, Y=2, X=2)
    psi = np.random.default_rng(1).normal(size=(1, *g.spinor_shape)) + 0j
    return lqcd.GaugeField.random(g, seed=1), psi


def poisoned(victim):
    """NumpyBackend.halo_hopping whose hops, in the thread of the victim, end in a NaN in mid-slab."""
    make = NumpyBackend.halo_hopping

    def halo_hopping(self, links, space):
        hop = make(self, links, space)

        class Hop:
            faces, interior = hop.faces, hop.interior

            def exterior(self, *arguments):
                out = hop.exterior(*arguments)
                if threading.current_thread().name == victim:
                    out[:, 0, 0, 1, 0, 0, 0] = np.nan
                return out

        return Hop()

    return halo_hopping


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_thread_that_makes_a_nan_is_named(victim, monkeypatch):
    U, psi = problem()
    monkeypatch.setattr(NumpyBackend, "halo_hopping", poisoned(f"lqcd-shard-{victim}"))
    options = {"inner": "numpy", "shards": 3, "executor": "threads", "timeout": 20.0 + victim}
    M = lqcd.WilsonDirac(mass=0.5).bind(U, backend=("sharded", options))
    with pytest.raises(
        BackendError, match=f"^rank {victim} .thread. on .* returned NaN, from finite numbers"
    ) as caught:
        lqcd.solve(M, psi, lqcd.ConjugateGradient(tol=1e-6))
    assert sum(f"rank {k} " in str(caught.value) for k in range(3)) == 1


def test_a_nan_of_the_caller_goes_through_and_the_workers_stay():
    U, psi = problem()
    M = lqcd.WilsonDirac(mass=0.5).bind(U, backend=("sharded", {"inner": "numpy", "shards": 3}))
    bad = psi.copy()
    bad[0, 3, 0, 0, 0, 0, 0] = np.nan
    assert np.isnan(M.space.norm2(M.apply(M.space.pack(bad)))).all()
    assert np.isnan(M.space.norm2(M.space.scale(np.nan, M.space.pack(psi)))).all()
    assert np.isfinite(M.space.norm2(M.apply(M.space.pack(psi)))).all()


def test_a_process_that_makes_a_nan_is_named(tmp_path):
    script = tmp_path / "nan.py"
    script.write_text(
        textwrap.dedent("""
        import multiprocessing
        import numpy as np
        import lqcd_core as lqcd
        from lqcd_backends.numpy.backend import NumpyBackend

        make = NumpyBackend.halo_hopping

        def halo_hopping(self, links, space):
            hop = make(self, links, space)

            class Hop:
                faces, interior = hop.faces, hop.interior

                def exterior(self, *arguments):
                    out = hop.exterior(*arguments)
                    out[...] = np.nan
                    return out

            return Hop()

        if multiprocessing.current_process().name == "lqcd-shard-1":
            NumpyBackend.halo_hopping = halo_hopping

        if __name__ == "__main__":
            U = lqcd.GaugeField.random(lqcd.LatticeGeometry(T=6, Z=2, Y=2, X=2), seed=1)
            options = {"inner": "numpy", "shards": 3, "executor": "processes"}
            M = lqcd.WilsonDirac(mass=0.5).bind(U, backend=("sharded", options))
            M.space.norm2(M.apply(M.apply(M.space.pack(np.ones((1, *U.geometry.spinor_shape))))))
    """)
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=200)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode != 0 and "rank 1 (process" in last and "returned NaN, from finite numbers" in last, (
        done.stderr
    )
    assert "rank 0" not in last and "rank 2" not in last
