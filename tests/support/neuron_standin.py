"""A machine that pretends to have Neuron devices: device files, sysfs, and a stand-in torch_neuronx.

``python tests/support/neuron_standin.py script.py`` runs a script on it. Nothing that it prints is a measurement.
"""

import contextlib
import os
import runpy
import sys
import tempfile
from pathlib import Path
from unittest import mock

HERE = Path(__file__).parent
CHIPS = {
    "inf2.xlarge": (1, 2, "NDv2", "Inferentia2"),
    "trn1.32xlarge": (16, 2, "NDv2", "Trainium1"),
    "trn2.3xlarge": (1, 8, "NDv3", "Trainium2"),
    "no chip": (0, 0, "", ""),
}


def make_machine(root: Path, instance: str) -> tuple[Path, Path]:
    """Folders that look like /dev and the driver's sysfs."""
    chips, cores, architecture, name = CHIPS[instance]
    dev, sysfs = root / "dev", root / "sys"
    dev.mkdir(parents=True, exist_ok=True)
    for k in range(chips):
        (dev / f"neuron{k}").touch()
        facts = sysfs / f"neuron{k}" / "info" / "architecture"
        facts.mkdir(parents=True, exist_ok=True)
        (sysfs / f"neuron{k}" / "core_count").write_text(f"{cores}\n")
        for file, text in (("arch_type", architecture), ("device_name", name), ("instance_type", instance)):
            (facts / file).write_text(text + "\n")
    return dev, sysfs


@contextlib.contextmanager
def standin(instance="inf2.xlarge", package="trace", cache=None, on_cpu=False):
    """The pretended machine inside the block; everything is put back after it.

    ``on_cpu`` lets the native adapter take torch's CPU for the device ``neuron``, which Python cannot make.
    """
    from lqcd_backends.neuron import device

    from lqcd_core.registry import REGISTRY

    def forget():
        REGISTRY._instances = {k: v for k, v in REGISTRY._instances.items() if k[0] != "neuron-traced"}

    with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
        dev, sysfs = make_machine(Path(root), instance)
        stack.enter_context(mock.patch.object(device, "DEV", dev))
        stack.enter_context(mock.patch.object(device, "SYSFS", sysfs))
        environment = {"LQCD_NEURON_CACHE": str(cache or Path(root) / "cache"), "TORCH_NEURONX_NEFF_CACHE_DIR": root}
        stack.enter_context(mock.patch.dict(os.environ, environment))
        if on_cpu:
            import torch
            from lqcd_backends.neuron.traced import adapters

            stack.enter_context(mock.patch.object(adapters, "native_place", lambda: torch.device("cpu")))
        sys.modules.pop("torch_neuronx", None)
        path = [p for p in sys.path if Path(p).parent != HERE]  # a stand-in inside another one hides it
        stack.enter_context(mock.patch.object(sys, "path", [str(HERE / package), *path]))
        forget()  # an instance of an earlier machine
        try:
            yield
        finally:
            sys.modules.pop("torch_neuronx", None)
            forget()


if __name__ == "__main__":
    print("STAND-IN: no Neuron device is used; times printed here mean nothing.", flush=True)
    sys.argv = sys.argv[1:]
    with standin():
        runpy.run_path(sys.argv[0], run_name="__main__")
