r"""Checksums of the file formats, over whole arrays at once.

=========  =====================================================================================================
NERSC      sum of all 32-bit words, as numbers in the file's byte order, modulo 2^32
SciDAC     XOR over sites of rotl(crc32(site bytes), rank mod 29), and the same with 31
MILC       XOR over 32-bit words of rotl(word i, i mod 29), and the same with 31
=========  =====================================================================================================

Each is a small accumulator: ``update(bytes)`` in file order, as many times as convenient, then ``result()``; so a file is
checked while it streams through one time slice of memory.
"""

from __future__ import annotations

import numpy as np

_CHUNK = 8192  # sites whose CRC runs side by side: 8192 x 576 bytes stay in a few megabytes of cache


def _crc_tables() -> tuple[np.ndarray, np.ndarray]:
    """Two tables of 65536 entries that move a CRC-32 over four bytes: crc' = LOW[crc & 0xffff] ^ HIGH[crc >> 16]."""
    byte = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        byte = np.where(byte & 1, (byte >> 1) ^ np.uint32(0xEDB88320), byte >> 1).astype(np.uint32)

    def two_bytes(c):
        for _ in range(2):
            c = byte[c & 0xFF] ^ (c >> 8)
        return c

    high = two_bytes(np.arange(65536, dtype=np.uint32))
    return two_bytes(high), high


_LOW, _HIGH = _crc_tables()


def crc32_sites(sites: np.ndarray) -> np.ndarray:
    """CRC-32 (zlib's polynomial) of every row of a uint8 array ``(sites, bytes per site)``.

    The recurrence over the bytes of one site is sequential, but all sites take the same step together: per four bytes
    one XOR and two table look-ups over the sites of a chunk.

    Raises
    ------
    ValueError
        If the bytes per site are not a multiple of 4 (no format here has such sites).

    Examples
    --------
    >>> import zlib
    >>> rows = np.arange(24, dtype=np.uint8).reshape(2, 12)
    >>> [int(c) for c in crc32_sites(rows)] == [zlib.crc32(r) for r in rows]
    True
    """
    count, size = sites.shape
    if size % 4:
        raise ValueError(f"sites of {size} bytes are not made of 32-bit words.")
    out = np.empty(count, np.uint32)
    for start in range(0, count, _CHUNK):
        rows = np.ascontiguousarray(sites[start : start + _CHUNK])
        words = np.ascontiguousarray(rows.view("<u4").T)  # one contiguous row per step
        crc = np.full(words.shape[1], 0xFFFFFFFF, np.uint32)
        for word in words:
            crc ^= word
            crc = _LOW.take(crc & 0xFFFF) ^ _HIGH.take(crc >> 16)
        np.bitwise_xor(crc, np.uint32(0xFFFFFFFF), out=out[start : start + _CHUNK])
    return out


def rotl32(values: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Rotate uint32 values left; done in 64 bits, where the shift by 32 that belongs to shift 0 is defined."""
    wide = values.astype(np.uint64) << shift.astype(np.uint64)
    return ((wide | (wide >> np.uint64(32))) & np.uint64(0xFFFFFFFF)).astype(np.uint32)


class _RotatedXor:
    """XOR of rotl(v_i, i mod 29) and of rotl(v_i, i mod 31), fed in order."""

    def __init__(self):
        self.count = 0
        self.sums = {29: 0, 31: 0}

    def add(self, values: np.ndarray) -> None:
        values = values.astype(np.uint32, copy=False)
        for period in self.sums:
            # values of one residue class are rotated alike, and rotation distributes over XOR: reduce first, rotate after
            padded = np.zeros(-(-(values.size + self.count % period) // period) * period, np.uint32)
            first = self.count % period
            padded[first : first + values.size] = values
            classes = np.bitwise_xor.reduce(padded.reshape(-1, period), axis=0)
            self.sums[period] ^= int(np.bitwise_xor.reduce(rotl32(classes, np.arange(period))))
        self.count += values.size


class ScidacChecksum:
    """``scidac-checksum``: feed the bytes of whole sites in lexicographic order (x fastest).

    Parameters
    ----------
    site_bytes
        Bytes of one site in the record (a double SU(3) gauge field: 4 links of 144).
    """

    def __init__(self, site_bytes: int):
        self.site_bytes = site_bytes
        self._xor = _RotatedXor()

    def update(self, data: np.ndarray) -> None:
        """Take the bytes of some whole sites, as a uint8 array."""
        self._xor.add(crc32_sites(data.reshape(-1, self.site_bytes)))

    def skip(self, size: int) -> None:
        """Count bytes (of whole sites) as passed without taking them: another reader has those."""
        self._xor.count += size // self.site_bytes

    def result(self) -> dict[str, str]:
        """``suma`` and ``sumb``, 8 hexadecimal digits each."""
        return {"suma": f"{self._xor.sums[29]:08x}", "sumb": f"{self._xor.sums[31]:08x}"}


class NerscChecksum:
    """NERSC ``CHECKSUM``. ``result()`` is for the byte order given; ``swapped()`` for the other one."""

    def __init__(self, order: str):
        self._other = ">" if order == "<" else "<"
        self._order = order
        self._sums = {"<": 0, ">": 0}
        self.both = False
        """Set before feeding to sum in both byte orders (for files whose header does not settle the order)."""

    def update(self, data: np.ndarray) -> None:
        """Take the next bytes of the file, as a uint8 array."""
        for order in self._sums if self.both else (self._order,):
            self._sums[order] += int(np.sum(data.reshape(-1).view(order + "u4"), dtype=np.uint64))

    def skip(self, size: int) -> None:
        """Nothing: a sum does not know where its words stand."""

    def result(self) -> dict[str, str]:
        """``checksum``, 8 hexadecimal digits."""
        return {"checksum": f"{self._sums[self._order] & 0xFFFFFFFF:08x}"}

    def swapped(self) -> str:
        """The checksum with the words read in the other byte order; needs ``both``."""
        return f"{self._sums[self._other] & 0xFFFFFFFF:08x}"


class MilcChecksum:
    """MILC ``sum29`` and ``sum31`` over the 32-bit words as numbers in the file's byte order."""

    def __init__(self, order: str):
        self._dtype = order + "u4"
        self._xor = _RotatedXor()

    def update(self, data: np.ndarray) -> None:
        """Take the next bytes of the file, as a uint8 array."""
        self._xor.add(data.reshape(-1).view(self._dtype))

    def skip(self, size: int) -> None:
        """Count bytes (of whole words) as passed without taking them: another reader has those."""
        self._xor.count += size // 4

    def result(self) -> dict[str, str]:
        """``sum29`` and ``sum31``, 8 hexadecimal digits each."""
        return {"sum29": f"{self._xor.sums[29]:08x}", "sum31": f"{self._xor.sums[31]:08x}"}


class SiteXorChecksum:
    """PyQUDA's HDF5 sums: XOR of the 32-bit words of a site (no CRC), then rotated by rank as SciDAC does."""

    def __init__(self, site_bytes: int):
        self.site_bytes = site_bytes
        self._xor = _RotatedXor()

    def update(self, data: np.ndarray) -> None:
        """Take the bytes of some whole sites, as a uint8 array."""
        self._xor.add(np.bitwise_xor.reduce(data.reshape(-1, self.site_bytes).view("<u4"), axis=1))

    def skip(self, size: int) -> None:
        """Count bytes (of whole words) as passed without taking them: another reader has those."""
        self._xor.count += size // 4

    def result(self) -> dict[str, str]:
        """``sum29`` and ``sum31``, 8 hexadecimal digits each."""
        return {"sum29": f"{self._xor.sums[29]:08x}", "sum31": f"{self._xor.sums[31]:08x}"}


def same_hex(a: str, b: str) -> bool:
    """True if two hexadecimal numbers agree (leading zeros, ``0x`` and case do not matter)."""
    try:
        return int(a, 16) == int(b, 16)
    except ValueError:
        return False


def join_checksums(parts: list[dict[str, str]]) -> dict[str, str]:
    """The checksums of a whole from those of its parts, each fed its bytes after ``skip`` of what stands before.

    The NERSC checksum is a sum modulo 2^32, all others are XORs.

    Examples
    --------
    >>> data = np.arange(48, dtype=np.uint8)
    >>> whole, first, second = (ScidacChecksum(12) for _ in range(3))
    >>> whole.update(data); first.update(data[:24]); second.skip(24); second.update(data[24:])
    >>> join_checksums([first.result(), second.result()]) == whole.result()
    True
    """
    out = {}
    for name in parts[0]:
        values = [int(part[name], 16) for part in parts]
        total = sum(values) & 0xFFFFFFFF if name == "checksum" else int(np.bitwise_xor.reduce(values))
        out[name] = f"{total:08x}"
    return out
