"""Start-up: the core must stay light."""

from __future__ import annotations

import lqcd_core as lqcd
from lqcd_core.backend import make_request
from lqcd_core.registry import Registry
from lqcd_core.selection import choose

from .common import geometry


def timeraw_import_core():
    return "import lqcd_core"


def time_discovery():
    Registry().records()


class Selection:
    def setup(self):
        self.request = make_request("wilson", "double", geometry("4x4x4x4"))
        lqcd.backends()

    def time_choose_named(self):
        choose(self.request, "numpy")
