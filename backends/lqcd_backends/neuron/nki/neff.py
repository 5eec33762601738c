"""The head of a NEFF file: 1024 bytes, then a tar. Enough to refuse a wrong file before the runtime sees it."""

from __future__ import annotations

import struct

import attrs

from .status import NeuronCallError

HEADER_BYTES = 1024
HEADER = struct.Struct("<QQQQQ128sI32s16s256sI64sQI468s")
"""pkg_version, header_size, data_size, major, minor, build_version, num_tpb, hash, uuid, name, requested_tpb_count, tpb_per_node,
feature_bits, lnc_size, padding."""
assert HEADER.size <= HEADER_BYTES


@attrs.frozen(kw_only=True)
class NeffHeader:
    """What the head says."""

    package: int
    """Version of the container."""
    data_size: int
    """Bytes of the tar behind the head."""
    version: tuple[int, int]
    """NEFF version, major and minor."""
    build: str
    """Version of the compiler that wrote it, as it wrote it."""
    name: str
    """Name of the graph."""
    lnc: int
    """Physical cores per logical core that it was compiled for; 0 or 1: one."""

    def pack(self, data: bytes = b"") -> bytes:
        """The 1024 bytes."""
        import hashlib

        head = HEADER.pack(
            self.package, HEADER_BYTES, self.data_size, *self.version, self.build.encode(), 1, hashlib.sha256(data).digest(), b"",
            self.name.encode()[:255], 1, b"", 0, self.lnc, b"",
        )  # fmt: skip
        return head.ljust(HEADER_BYTES, b"\0")


def read_header(neff: bytes, what: str = "the file") -> NeffHeader:
    """The head of a NEFF.

    Raises
    ------
    NeuronCallError
        If the bytes are no NEFF, or fewer than its head says.

    Examples
    --------
    >>> head = NeffHeader(package=2, data_size=3, version=(2, 0), build="x", name="k", lnc=1)
    >>> read_header(head.pack() + b"abc").lnc
    1
    """
    if len(neff) < HEADER_BYTES:
        raise NeuronCallError(f"{what} has {len(neff)} bytes; a NEFF begins with a head of {HEADER_BYTES}.")
    package, header_size, data_size, major, minor, build, _, _, _, name, _, _, _, lnc, _ = HEADER.unpack_from(neff)
    if header_size != HEADER_BYTES:
        raise NeuronCallError(f"{what} is no NEFF: its head says it is {header_size} bytes long, not {HEADER_BYTES}.")
    if len(neff) < HEADER_BYTES + data_size:
        raise NeuronCallError(f"{what} is cut short: {len(neff):,} bytes of {HEADER_BYTES + data_size:,}.")
    text = [part.split(b"\0")[0].decode(errors="replace") for part in (build, name)]
    return NeffHeader(
        package=package, data_size=data_size, version=(major, minor), build=text[0], name=text[1], lnc=lnc
    )


__all__ = ["HEADER_BYTES", "NeffHeader", "read_header"]
