"""Configurations on disk: write, read, check, per format; GB/s of the links in memory. The file stays in the page cache."""

from __future__ import annotations

import tempfile
from pathlib import Path

import lqcd_core as lqcd
from lqcd_core.errors import LQCDError
from lqcd_core.io import inspect_gauge, read_gauge, write_gauge

from .common import geometry, median_seconds, skip

FORMATS = ["nersc", "ildg", "scidac", "milc", "openqcd", "npy"]


class Files:
    """A random field of 8^4 sites, in double."""

    params = [FORMATS]
    param_names = ["format"]
    rounds = 4
    timeout = 120

    def setup(self, format):
        self.format, self.folder = format, tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / f"field.{format}"
        self.field = lqcd.GaugeField.random(geometry("8x8x8x8"), seed=42)
        try:
            self.write()
            self.read()
        except LQCDError as error:
            raise skip(str(error)) from None

    def teardown(self, format):
        self.folder.cleanup()

    def write(self):
        self.path.unlink(missing_ok=True)
        write_gauge(self.field, self.path, format=self.format)

    def read(self):
        read_gauge(self.path, check_links=False)

    def check(self):
        if not inspect_gauge(self.path).ok:
            raise RuntimeError(f"{self.path} does not agree with its own checksums")

    def _rate(self, function):
        return self.field.array.nbytes / median_seconds(function, 5) / 1e9

    def time_write(self, format):
        self.write()

    def time_read(self, format):
        self.read()

    def time_checksum(self, format):
        self.check()

    def track_write_gbytes(self, format):
        return self._rate(self.write)

    def track_read_gbytes(self, format):
        return self._rate(self.read)

    def track_checksum_gbytes(self, format):
        return self._rate(self.check)

    track_write_gbytes.unit = track_read_gbytes.unit = "GB/s"
    track_checksum_gbytes.unit = "GB/s (read, every checksum, plaquette, traces, unitarity)"
