r"""One instruction, repeated: kernels that show what an instruction of an engine costs. Needs ``nki`` only.

A launch with :math:`n` repetitions takes :math:`t(n) = t_0 + n\,\tau`; two counts give :math:`\tau`, and what is done once (loads,
stores) is in :math:`t_0`. Repetitions are unrolled, except in ``loop``. They go round a ring of destinations, so that an
instruction does not wait for the one before it; every one changes a result that is stored, so none of them can be left out.
"""

import nki
import nki.isa as nisa
import nki.language as nl


def _destinations(y, width, ring):
    """Tiles of [partitions, width], loaded from the columns of y."""
    tiles = []
    for j in range(ring):
        tile = nl.ndarray((y.shape[0], width), y.dtype, nl.sbuf)
        nisa.dma_copy(tile, y[:, j * width : (j + 1) * width])
        tiles.append(tile)
    return tiles


def _stored(out, tiles, width):
    for j in range(len(tiles)):
        nisa.dma_copy(out[:, j * width : (j + 1) * width], tiles[j])
    return out


def _once(x):
    tile = nl.ndarray(x.shape, x.dtype, nl.sbuf)
    nisa.dma_copy(tile, x)
    return tile


@nki.jit
def empty(x):
    """x, through SBUF: as little as a launch can be."""
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    nisa.dma_copy(out, _once(x))
    return out


@nki.jit
def tensor_tensor(x, y, ring, repetitions):
    """y = x - y on one of ``ring`` tiles after the other; exact, and every repetition changes it."""
    width = x.shape[1]
    out = nl.ndarray(y.shape, y.dtype, nl.shared_hbm)
    left, tiles = _once(x), _destinations(y, width, ring)
    for k in range(repetitions):
        tile = tiles[k % ring]
        nisa.tensor_tensor(tile, left, tile, nl.subtract)
    return _stored(out, tiles, width)


@nki.jit
def scalar_tensor_tensor(x, y, ring, repetitions):
    """y = (y * -1) + x, as in ``tensor_tensor``."""
    width = x.shape[1]
    out = nl.ndarray(y.shape, y.dtype, nl.shared_hbm)
    added, tiles = _once(x), _destinations(y, width, ring)
    for k in range(repetitions):
        tile = tiles[k % ring]
        nisa.scalar_tensor_tensor(tile, tile, nl.multiply, -1.0, nl.add, added)
    return _stored(out, tiles, width)


@nki.jit
def loop(x, y, ring, repetitions):
    """``tensor_tensor`` on one tile, in a hardware loop with one instruction per turn."""
    width = x.shape[1]
    out = nl.ndarray(y.shape, y.dtype, nl.shared_hbm)
    left, tiles = _once(x), _destinations(y, width, ring)

    def body(i):
        nisa.tensor_tensor(tiles[0], left, tiles[0], nl.subtract)

    nl.fori_loop(0, repetitions, body)
    return _stored(out, tiles, width)


@nki.jit
def nc_matmul(stationary, moving, tile, slots, ring, repetitions):
    """Sums of stationary^T moving in ``ring`` PSUM banks.

    ``tile``: size of a square tile of the array, 0 for all of it; the ring goes over the first ``slots`` tiles of the diagonal.
    """
    m, n = stationary.shape[1], moving.shape[1]
    out = nl.ndarray((ring * m, n), nl.float32, nl.shared_hbm)
    weights, data = _once(stationary), _once(moving)
    banks = [nl.ndarray((128, 512), nl.float32, nl.psum) for _ in range(ring)]
    result = nl.ndarray((128, ring * n), nl.float32, nl.sbuf)
    for k in range(repetitions):
        j = k % ring
        first = tile * (j % slots)
        rows = slice(first, first + m)  # K = M
        target = banks[j][rows, 0:n]
        if tile:
            nisa.nc_matmul(
                target, weights[rows, :], data[rows, :], accumulate=k >= ring, tile_position=(first, first),
                tile_size=(tile, tile),
            )  # fmt: skip
        else:
            nisa.nc_matmul(target, weights[rows, :], data[rows, :], accumulate=k >= ring)
    for j in range(ring):
        first = tile * (j % slots)
        rows, columns = slice(first, first + m), slice(j * n, (j + 1) * n)
        nisa.tensor_copy(result[rows, columns], banks[j][rows, 0:n])
        nisa.dma_copy(out[j * m : (j + 1) * m, :], result[rows, columns])
    return out


@nki.jit
def dma_copy(x, ring, repetitions):
    """Loads of 128 runs, at most ``ring`` of them outstanding: VectorE adds one column of a tile to a sum before it is loaded again."""
    width = x.shape[1] // ring
    out = nl.ndarray(x.shape, x.dtype, nl.shared_hbm)
    sums = nl.ndarray((x.shape[0], ring), nl.float32, nl.shared_hbm)
    tiles = [nl.ndarray((x.shape[0], width), x.dtype, nl.sbuf) for _ in range(ring)]
    total = nl.ndarray((x.shape[0], ring), nl.float32, nl.sbuf)
    nisa.memset(total, 0.0)
    for k in range(repetitions):
        j = k % ring
        column = total[:, j : j + 1]
        nisa.dma_copy(tiles[j], x[:, j * width : (j + 1) * width])
        nisa.tensor_tensor(column, column, tiles[j][:, 0:1], nl.add)
    nisa.dma_copy(sums, total)
    return _stored(out, tiles, width), sums
