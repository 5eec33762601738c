"""Pack and unpack: the only doors between host and backend."""

from __future__ import annotations

from .common import BACKENDS, N_RHS, PRECISIONS, median_seconds, operator_of


class Transfer:
    """Spinors at 8^4; GB/s of the host's array."""

    params = [BACKENDS, PRECISIONS, N_RHS]
    param_names = ["backend", "precision", "n_rhs"]
    rounds = 4

    def setup(self, backend, precision, n_rhs):
        self.operator, self.x = operator_of(backend, precision, n_rhs=n_rhs)
        self.host = self.operator.space.unpack(self.x)
        self.operator.space.norm2(self.operator.space.pack(self.host))

    def time_pack(self, backend, precision, n_rhs):
        self.operator.space.pack(self.host)

    def time_unpack(self, backend, precision, n_rhs):
        self.operator.space.unpack(self.x)

    def track_pack_gbytes(self, backend, precision, n_rhs):
        return self.host.nbytes / median_seconds(lambda: self.operator.space.pack(self.host)) / 1e9

    def track_unpack_gbytes(self, backend, precision, n_rhs):
        return self.host.nbytes / median_seconds(lambda: self.operator.space.unpack(self.x)) / 1e9

    track_pack_gbytes.unit = track_unpack_gbytes.unit = "GB/s"
