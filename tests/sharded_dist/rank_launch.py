"""How the tests start ranks."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = Path(__file__).with_name("ranks_script.py")


def environment(**more) -> dict[str, str]:
    """This process's, with one thread a rank and without a launch of its own."""
    out = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")}
    return {**out, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **{k: str(v) for k, v in more.items()}}


def launcher(case: str, folder: Path, ranks: int) -> list[str]:
    """The command that runs a case under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [*command, str(SCRIPT), case, str(folder)]


def torchrun(case: str, folder: Path, ranks: int) -> None:
    """Run a case to its good end under torchrun."""
    command = launcher(case, folder, ranks)
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def start(
    case: str, folder: Path, ranks: int, timeout: float, script: Path = SCRIPT, inner='"numpy"'
) -> list[subprocess.Popen]:
    """One process a rank, by the environment alone: nobody ends the others when one fails. ``inner`` is JSON."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return [
        subprocess.Popen(
            [sys.executable, str(script), case, str(folder)],
            env=environment(
                RANK=k,
                WORLD_SIZE=ranks,
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                LQCD_TEST_TIMEOUT=timeout,
                LQCD_TEST_INNER=inner,
            ),
            stdout=subprocess.DEVNULL,
            stderr=(folder / f"stderr-{k}").open("w"),
        )
        for k in range(ranks)
    ]


def end(processes: list[subprocess.Popen], seconds: float, but: tuple[int, ...] = ()) -> list[int | None]:
    """Exit codes once all but these ranks have ended by themselves; kills what is left and says so by None."""
    limit = time.monotonic() + seconds
    codes = []
    try:
        for k, process in enumerate(processes):
            if k in but:
                codes.append(None)
                continue
            try:
                codes.append(process.wait(max(0.1, limit - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
    return codes


def begun(folder: Path, ranks: int, seconds: float) -> list[int]:
    """Process ids of the ranks, once each has written its own to ``begun-RANK``."""
    limit = time.monotonic() + seconds
    files = [folder / f"begun-{k}" for k in range(ranks)]
    while not all(f.exists() and f.read_text() for f in files):
        assert time.monotonic() < limit, "the ranks did not begin"
        time.sleep(0.05)
    return [int(f.read_text()) for f in files]


def left(pids: list[int], seconds: float) -> list[str]:
    """What these processes left behind: themselves if they still run after a while, and segments of shared memory."""
    limit = time.monotonic() + seconds
    while (alive := [f"process {pid}" for pid in pids if _runs(pid)]) and time.monotonic() < limit:
        time.sleep(0.05)
    shared = Path("/dev/shm")
    names = [f.name for f in shared.iterdir()] if shared.is_dir() else []
    return alive + [name for name in names if any(str(pid) in name.replace("_", "-").split("-") for pid in pids)]


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    return not (status.exists() and status.read_text().rpartition(")")[2].split()[0] == "Z")


def said(folder: Path, rank: int) -> str:
    """What a rank wrote to its standard error."""
    return (folder / f"stderr-{rank}").read_text()
