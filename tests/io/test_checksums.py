"""Checksums against their definitions, written out as loops."""

import zlib

import numpy as np
import pytest

from lqcd_core.io.checksum import (
    MilcChecksum,
    NerscChecksum,
    ScidacChecksum,
    SiteXorChecksum,
    crc32_sites,
    rotl32,
    same_hex,
)


def some_bytes(n, seed=0):
    return np.frombuffer(np.random.default_rng(seed).bytes(n), np.uint8)


def rotate(word, by):
    return ((word << by) | (word >> (32 - by))) & 0xFFFFFFFF if by else word


@pytest.mark.parametrize(("sites", "size"), [(1, 4), (100, 72), (8193, 12), (61, 2304)])
def test_crc_of_every_site_is_zlibs(sites, size):
    rows = some_bytes(sites * size).reshape(sites, size)
    assert [int(c) for c in crc32_sites(rows)] == [zlib.crc32(r.tobytes()) for r in rows]


def test_crc_refuses_sites_that_are_not_whole_words():
    with pytest.raises(ValueError, match="32-bit"):
        crc32_sites(np.zeros((2, 6), np.uint8))


def test_rotation_by_zero_is_the_identity():
    values = np.array([0xDEADBEEF, 1, 0x80000000], np.uint32)
    assert (rotl32(values, np.zeros(3, int)) == values).all()
    assert rotl32(values, np.full(3, 4)).tolist() == [0xEADBEEFD, 16, 8]


def feed(checksum, data, cuts):
    for part in np.split(data, cuts):
        checksum.update(part)
    return checksum.result()


def test_scidac_sums_follow_the_definition_however_they_are_fed():
    data, site = some_bytes(73 * 24), 24
    suma = sumb = 0
    for rank, row in enumerate(data.reshape(-1, site)):
        crc = zlib.crc32(row.tobytes())
        suma ^= rotate(crc, rank % 29)
        sumb ^= rotate(crc, rank % 31)
    want = {"suma": f"{suma:08x}", "sumb": f"{sumb:08x}"}
    for cuts in ([], [24], [5 * 24, 36 * 24, 60 * 24]):
        assert feed(ScidacChecksum(site), data, cuts) == want


@pytest.mark.parametrize("order", ["<", ">"])
def test_milc_sums_follow_the_definition(order):
    data = some_bytes(4 * 200, seed=1)
    a = b = 0
    for i, word in enumerate(data.view(order + "u4").tolist()):
        a ^= rotate(word, i % 29)
        b ^= rotate(word, i % 31)
    for cuts in ([], [4], [40, 44, 400]):
        assert feed(MilcChecksum(order), data, cuts) == {"sum29": f"{a:08x}", "sum31": f"{b:08x}"}


def test_nersc_sum_in_both_byte_orders():
    data = some_bytes(4 * 1000, seed=2)
    little, big = (sum(data.view(o + "u4").tolist()) % 2**32 for o in "<>")
    sums = NerscChecksum(">")
    sums.both = True
    assert feed(sums, data, [400, 404]) == {"checksum": f"{big:08x}"}
    assert sums.swapped() == f"{little:08x}"


def test_site_xor_sums_follow_the_definition():
    data, site = some_bytes(70 * 16, seed=3), 16
    a = b = 0
    for rank, row in enumerate(data.view("<u4").reshape(-1, site // 4).tolist()):
        word = 0
        for w in row:
            word ^= w
        a ^= rotate(word, rank % 29)
        b ^= rotate(word, rank % 31)
    assert feed(SiteXorChecksum(site), data, [16 * 9]) == {"sum29": f"{a:08x}", "sum31": f"{b:08x}"}


def test_hexadecimal_numbers_compare_as_numbers():
    assert same_hex("0x00AB", "ab") and not same_hex("ab", "ac") and not same_hex("zz", "zz")
