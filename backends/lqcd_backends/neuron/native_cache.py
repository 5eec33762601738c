"""Names the folder in which the native torch-neuronx keeps what it compiled. To be imported before torch.

``import torch`` itself loads the native package, and when that reads ``TORCH_NEURONX_NEFF_CACHE_DIR`` is not documented. So
the variable is set, unless it is there, by whoever imports this first; if torch was there already, what is set now holds
only if the package reads it later, and :data:`TORCH_CAME_FIRST` says so.
"""

from __future__ import annotations

import os
import sys

from .cache import cache_root

VARIABLE = "TORCH_NEURONX_NEFF_CACHE_DIR"
"""Read by the native package alone; harmless to the other."""

TORCH_CAME_FIRST = VARIABLE not in os.environ and "torch" in sys.modules
"""True if the variable was set here, after somebody had imported torch."""

os.environ.setdefault(VARIABLE, str(cache_root() / "native"))

__all__ = ["TORCH_CAME_FIRST", "VARIABLE"]
