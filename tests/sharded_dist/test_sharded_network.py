"""Four ranks in four network namespaces, as four hosts on a switch: a whole propagator, and a link that is cut."""

import itertools
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
import rank_launch
import ranks_script

import lqcd_core as lqcd

pytest.importorskip("torch.distributed", reason="torch is not installed")
RANKS = 4
TIMEOUT = 8.0


def ip(*arguments: str) -> None:
    """Run ip; raises with what it said."""
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Network:
    """Namespaces joined by a bridge. Names carry the process id, so that two runs do not meet."""

    def __init__(self):
        tag = f"{os.getpid() % 100000}"
        self.bridge = f"lqb{tag}"
        self.names = [f"lqn{tag}x{k}" for k in range(RANKS)]
        self.links = [f"lqv{tag}x{k}" for k in range(RANKS)]

    def open(self) -> None:
        """Make everything."""
        ip("link", "add", self.bridge, "type", "bridge")
        ip("link", "set", self.bridge, "up")
        for k, (name, link) in enumerate(zip(self.names, self.links, strict=True)):
            ip("netns", "add", name)
            ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", link, "master", self.bridge)
            ip("link", "set", link, "up")
            ip("-n", name, "addr", "add", f"10.213.7.{k + 1}/24", "dev", "eth0")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", "eth0", "up")

    def close(self) -> None:
        """Remove everything that is there."""
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=30)
        for link in (*self.links, self.bridge):
            subprocess.run(["ip", "link", "del", link], capture_output=True, timeout=30)


_ports = itertools.count(29511)


@pytest.fixture
def network():
    if shutil.which("ip") is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("network namespaces need ip and root")
    made = Network()
    try:
        try:
            made.open()
        except OSError as error:
            pytest.skip(f"network namespaces cannot be made here: {error}")
        yield made
    finally:
        made.close()


def launch(network: Network, case: str, folder: Path) -> list[subprocess.Popen]:
    """A rank in every namespace."""
    port = next(_ports)
    return [
        subprocess.Popen(
            ["ip", "netns", "exec", network.names[k], sys.executable, str(rank_launch.SCRIPT), case, str(folder)],
            env=rank_launch.environment(
                RANK=k, WORLD_SIZE=RANKS, MASTER_ADDR="10.213.7.1", MASTER_PORT=port, GLOO_SOCKET_IFNAME="eth0",
                LQCD_TEST_TIMEOUT=TIMEOUT if case == "network" else 60,
            ),
            stdout=subprocess.DEVNULL, stderr=(folder / f"stderr-{k}").open("w"),
        )
        for k in range(RANKS)
    ]  # fmt: skip


def test_four_hosts_compute_a_propagator(network, tmp_path):
    codes = rank_launch.end(launch(network, "propagator", tmp_path), 240)
    assert codes == [0] * RANKS, [rank_launch.said(tmp_path, k)[-1500:] for k in range(RANKS)]
    U, _ = ranks_script.problem(T=8)
    D = ranks_script.OPERATORS["clover"].bind(U, backend="numpy", n_rhs=12)
    want = lqcd.propagator(D, lqcd.point_source(U.geometry), lqcd.ConjugateGradient(tol=1e-8)).array
    for k in range(RANKS):
        assert np.array_equal(np.load(tmp_path / f"propagator-{k}.npy"), want)


def test_a_cut_link_ends_every_rank_by_an_error_within_the_time_out(network, tmp_path):
    processes = launch(network, "network", tmp_path)
    try:
        limit = time.monotonic() + 120
        while not all((tmp_path / f"begun-{k}").exists() for k in range(RANKS)):
            assert time.monotonic() < limit, [rank_launch.said(tmp_path, k)[-1500:] for k in range(RANKS)]
            time.sleep(0.1)
        ip("link", "set", network.links[2], "down")
        cut = time.time()
    finally:
        codes = rank_launch.end(processes, 90)
    assert None not in codes and 0 not in codes, codes
    for k in range(RANKS):
        when, _, text = (tmp_path / f"error-{k}").read_text().partition("\n")
        assert float(when) - cut < 3 * TIMEOUT, (k, float(when) - cut)  # generous: the machine may be busy
        if k in (0, 1, 3):
            assert "rank 2 (process" in text, text
