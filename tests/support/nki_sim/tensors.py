"""Memory and access patterns: :class:`Storage` is an allocation, :class:`NkiTensor` a strided view of it."""

import math

import attrs
import numpy as np

from . import dtypes
from .chips import PARTITIONS, PSUM_BANK_BYTES
from .errors import NkiValidationError, refuse, require
from .scalars import NkiScalar, VirtualRegister

ON_CHIP = ("sbuf", "psum")
HBM = ("private_hbm", "shared_hbm")
INT16_MAX, UINT16_MAX = 32767, 65535
HBM_REACH_32 = 1 << 32
_GOOD = (
    set()
)  # (shape, strides, start partition, destination) of operands that were found legal: kernels repeat few of them


@attrs.define(eq=False)
class Storage:
    """One allocation. On chip, ``shape[0]`` partitions of ``row_bytes`` each."""

    shape: tuple
    """Extents as allocated."""
    dtype: str
    """NKI name."""
    buffer: str
    """sbuf, psum, private_hbm or shared_hbm."""
    name: str
    """For messages and for inputs and outputs."""
    start: int = 0
    """First partition (on chip)."""
    address: tuple | None = None
    """As given by hand."""
    loops: tuple = ()
    """Loops inside which it was allocated: its content is lost when one turns."""
    kind: str = "local"
    """local, input or constant."""
    written: bool = False
    """Some instruction writes it."""
    array: np.ndarray | None = None
    """Bytes, made when a program runs."""
    matmul: np.ndarray | None = None
    """PSUM only: bytes written last by the tensor engine."""
    initial: np.ndarray | None = None
    """Content before the program starts (constants)."""
    row_bytes: int = attrs.field(init=False)
    """Bytes of one partition (on chip)."""
    total: int = attrs.field(init=False)
    """Bytes of it all."""

    def __attrs_post_init__(self):
        self.row_bytes = math.prod(self.shape[1:]) * dtypes.itemsize(self.dtype)
        self.total = self.row_bytes * self.shape[0]

    @property
    def on_chip(self):
        return self.buffer in ON_CHIP

    @property
    def banks(self):
        """Whole PSUM banks it occupies."""
        return -(-self.row_bytes // PSUM_BANK_BYTES)

    def allocate(self):
        self.array = np.empty(self.shape, dtypes.STORAGE[self.dtype])
        self.poison()

    def poison(self):
        if self.array is None:
            self.array = np.empty(self.shape, dtypes.STORAGE[self.dtype])
        if self.initial is not None:
            self.array[...] = self.initial
        else:
            dtypes.poison(self.array)
        if self.buffer == "psum":
            self.matmul = np.zeros(self.array.nbytes, np.uint8)


def row_major(shape):
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return tuple(reversed(strides))


def coalesce(pairs):
    """Merge neighbouring ``(stride, count)`` pairs that walk memory as one; drop counts of one."""
    out = []
    for stride, count in pairs:
        if count == 1:
            continue
        if out and out[-1][0] == stride * count:
            out[-1] = (stride, out[-1][1] * count)
        else:
            out.append((stride, count))
    return out


class NkiTensor:
    """A view: shape, strides and offset in elements of ``dtype``; the data belong to its storage."""

    def __init__(
        self,
        shape,
        dtype,
        storage,
        buffer=None,
        name="",
        address=None,
        *,
        _strides=None,
        _offset=0,
        _dynamic=(),
        _vector=None,
    ):
        if not isinstance(storage, Storage):
            raise NkiValidationError(
                "NkiTensor: storage: found an object of the user, allowed: tensors of nl.ndarray and views of them"
            )
        self.shape, self.dtype, self._storage = tuple(shape), dtype, storage
        self.buffer, self.name = storage.buffer, name or storage.name
        self._strides = tuple(_strides) if _strides is not None else row_major(self.shape)
        self._offset, self._dynamic, self._vector = _offset, tuple(_dynamic), _vector

    # -- what Python must not ask -----------------------------------------------------------------------------------------
    def _data(self, *_):
        raise NkiValidationError(
            f"NkiTensor {self.name!r}: data-dependent Python control flow: found a device tensor where Python needs a value, "
            "allowed: its shape, dtype, buffer and name"
        )

    __bool__ = __int__ = __float__ = __index__ = __array__ = __iter__ = _data
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __neg__ = __lt__ = __gt__ = __le__ = (
        __ge__
    ) = _data

    def __setitem__(self, key, value):
        refuse(
            f"NkiTensor {self.name!r}",
            "assignment to a slice",
            "tensor[...] = value",
            "an instruction with dst=tensor[...]",
        )

    def __len__(self):
        return self.shape[0]

    def __repr__(self):
        return f"<NkiTensor {self.name!r} {self.shape} {self.dtype} in {self.buffer}>"

    # -- geometry ---------------------------------------------------------------------------------------------------------
    @property
    def ndim(self):
        return len(self.shape)

    @property
    def _on_chip(self):
        return self._storage.on_chip

    @property
    def _itemsize(self):
        return dtypes.itemsize(self.dtype)

    @property
    def _row(self):
        """Elements of one partition, in this view's dtype."""
        return self._storage.row_bytes // self._itemsize

    @property
    def _start(self):
        """First partition."""
        return self._storage.start + self._offset // self._row

    @property
    def _free(self):
        return math.prod(self.shape[1:])

    def get_pattern(self):
        return [[s, n] for s, n in zip(self._strides, self.shape)]

    def is_contiguous(self):
        return (
            not self._dynamic
            and self._vector is None
            and all(n == 1 or s == r for s, r, n in zip(self._strides, row_major(self.shape), self.shape))
        )

    def is_indirect(self):
        return self._vector is not None

    def _view(self, shape, strides, offset=None, dtype=None):
        if self._vector is not None:
            refuse(
                f"NkiTensor {self.name!r}",
                "view of an indirect access",
                "a view after vector_offset",
                "the access itself, as an operand",
            )
        return NkiTensor(
            shape, dtype or self.dtype, self._storage, name=self.name, _strides=strides,
            _offset=self._offset if offset is None else offset, _dynamic=self._dynamic,
        )  # fmt: skip

    def _axis(self, dim, what, free=True):
        require(
            isinstance(dim, int) and -self.ndim <= dim < self.ndim,
            f"NkiTensor.{what}",
            "dim",
            dim,
            f"an axis of {self.shape}",
        )
        dim %= self.ndim
        if free and self._on_chip and dim == 0:
            refuse(f"NkiTensor.{what}", "dim of an on-chip tensor", 0, "free axes; axis 0 is the partition axis")
        return dim

    def __getitem__(self, key):
        keys = key if isinstance(key, tuple) else (key,)
        if any(k is Ellipsis for k in keys):
            require(sum(k is Ellipsis for k in keys) == 1, "NkiTensor[]", "ellipses", keys, "one")
            at = next(i for i, k in enumerate(keys) if k is Ellipsis)
            keys = keys[:at] + (slice(None),) * (self.ndim - len(keys) + 1) + keys[at + 1 :]
        require(len(keys) <= self.ndim, "NkiTensor[]", "number of indices", len(keys), f"at most {self.ndim}")
        out, axis = self, 0
        for k in keys:
            if isinstance(k, slice) and k.start is None and k.stop is None and k.step is None:
                axis += 1
                continue
            if isinstance(k, (NkiScalar, VirtualRegister)) or (
                isinstance(k, slice)
                and any(isinstance(v, (NkiScalar, VirtualRegister)) for v in (k.start, k.stop, k.step))
            ):
                refuse(
                    "NkiTensor[]",
                    "dynamic index",
                    "a device value",
                    "integers; use .ap(pattern, scalar_offset=, indirect_dim=)",
                )
            if isinstance(k, slice):
                n = out.shape[axis]
                start, stop, step = (
                    (0 if k.start is None else k.start),
                    (n if k.stop is None else k.stop),
                    (1 if k.step is None else k.step),
                )
                start, stop = (start + n if start < 0 else start), (stop + n if stop < 0 else stop)
                out = out.slice(axis, start, stop, step)
                axis += 1
            else:
                out = out.select(axis, k)
        return out

    def slice(self, dim, start, end, step=1):
        axis = self._axis(dim, "slice", free=False)
        n = self.shape[axis]
        require(
            all(isinstance(v, (int, np.integer)) for v in (start, end, step)),
            "NkiTensor.slice",
            "bounds",
            (start, end, step),
            "Python integers",
        )
        require(
            0 <= start < end <= n,
            "NkiTensor.slice",
            f"bounds on an axis of {n}",
            (start, end),
            f"0 <= start < end <= {n}",
        )
        require(step >= 1, "NkiTensor.slice", "step", step, ">= 1")
        if axis == 0 and self._on_chip:
            require(step == 1, "NkiTensor.slice", "partition step", step, "1: consecutive partitions only")
        shape, strides = list(self.shape), list(self._strides)
        shape[axis] = -(-(end - start) // step)
        offset = self._offset + start * strides[axis]
        strides[axis] *= step
        return self._view(shape, strides, offset)

    def select(self, dim, index):
        axis = self._axis(dim, "select")
        require(
            isinstance(index, (int, np.integer)),
            "NkiTensor.select",
            "index",
            type(index).__name__,
            "int; .ap(scalar_offset=) for device values",
        )
        n = self.shape[axis]
        index = int(index) + n if index < 0 else int(index)
        require(0 <= index < n, "NkiTensor.select", "index", index, f"0..{n - 1}")
        keep = [i for i in range(self.ndim) if i != axis]
        return self._view(
            [self.shape[i] for i in keep], [self._strides[i] for i in keep], self._offset + index * self._strides[axis]
        )

    def permute(self, dims):
        require(
            sorted(dims) == list(range(self.ndim)),
            "NkiTensor.permute",
            "dims",
            dims,
            f"a permutation of 0..{self.ndim - 1}",
        )
        if self._on_chip:
            require(dims[0] == 0, "NkiTensor.permute", "dims of an on-chip tensor", dims, "axis 0 stays first")
        return self._view([self.shape[i] for i in dims], [self._strides[i] for i in dims])

    def broadcast(self, dim, size):
        axis = self._axis(dim, "broadcast")
        require(self.shape[axis] == 1, "NkiTensor.broadcast", "extent", self.shape[axis], "1")
        shape, strides = list(self.shape), list(self._strides)
        shape[axis], strides[axis] = size, 0
        return self._view(shape, strides)

    def expand_dim(self, dim):
        require(isinstance(dim, int) and 0 <= dim <= self.ndim, "NkiTensor.expand_dim", "dim", dim, f"0..{self.ndim}")
        if self._on_chip:
            require(
                dim > 0, "NkiTensor.expand_dim", "dim of an on-chip tensor", dim, "> 0: axis 0 is the partition axis"
            )
        return self._view((*self.shape[:dim], 1, *self.shape[dim:]), (*self._strides[:dim], 0, *self._strides[dim:]))

    def squeeze_dim(self, dim):
        axis = self._axis(dim, "squeeze_dim")
        require(self.shape[axis] == 1, "NkiTensor.squeeze_dim", "extent", self.shape[axis], "1")
        return self.select(axis, 0)

    def reshape_dim(self, dim, shape):
        axis = self._axis(dim, "reshape_dim")
        shape = tuple(shape)
        require(
            math.prod(shape) == self.shape[axis],
            "NkiTensor.reshape_dim",
            "shape",
            shape,
            f"a product of {self.shape[axis]}",
        )
        steps = tuple(s * self._strides[axis] for s in row_major(shape))
        return self._view(
            self.shape[:axis] + shape + self.shape[axis + 1 :], self._strides[:axis] + steps + self._strides[axis + 1 :]
        )

    def flatten_dims(self, start_dim, end_dim):
        a, b = self._axis(start_dim, "flatten_dims"), self._axis(end_dim, "flatten_dims")
        require(a <= b, "NkiTensor.flatten_dims", "dims", (a, b), "start_dim <= end_dim")
        pairs = coalesce(zip(self._strides[a : b + 1], self.shape[a : b + 1]))
        require(len(pairs) <= 1, "NkiTensor.flatten_dims", "pattern", pairs, "axes that walk memory as one")
        stride = pairs[0][0] if pairs else 1
        n = math.prod(self.shape[a : b + 1])
        return self._view(
            (*self.shape[:a], n, *self.shape[b + 1 :]), (*self._strides[:a], stride, *self._strides[b + 1 :])
        )

    def reshape(self, shape):
        shape = tuple(shape)
        require(
            math.prod(shape) == math.prod(self.shape),
            "NkiTensor.reshape",
            "shape",
            shape,
            f"{math.prod(self.shape)} elements",
        )
        if self._on_chip:
            require(shape[0] == self.shape[0], "NkiTensor.reshape", "partitions", shape[0], self.shape[0])
            pairs = coalesce(zip(self._strides[1:], self.shape[1:]))
            head, tail = (self.shape[0],), shape[1:]
            first = (self._strides[0],)
        else:
            pairs, head, tail, first = coalesce(zip(self._strides, self.shape)), (), shape, ()
        require(len(pairs) <= 1, "NkiTensor.reshape", "pattern", pairs, "a view that walks memory as one")
        stride = pairs[0][0] if pairs else 1
        return self._view(head + tail, first + tuple(s * stride for s in row_major(tail)))

    def rearrange(self, src_pattern, dst_pattern, fixed_sizes=None):
        """Names for axes, a tuple of names for axes to be split or merged: ``(("p", ("a", "b")), ("p", "b", "a"), {"a": 2})``."""
        sizes, out, axis = dict(fixed_sizes or {}), self, 0
        require(
            len(src_pattern) == self.ndim, "NkiTensor.rearrange", "src_pattern", src_pattern, f"{self.ndim} entries"
        )
        names = []
        for entry in src_pattern:
            parts = entry if isinstance(entry, tuple) else (entry,)
            unknown = [p for p in parts if p not in sizes]
            known = math.prod(sizes[p] for p in parts if p in sizes)
            require(
                len(unknown) <= 1 and out.shape[axis] % known == 0,
                "NkiTensor.rearrange",
                "sizes",
                sizes,
                f"that divide {out.shape[axis]}",
            )
            for p in unknown:
                sizes[p] = out.shape[axis] // known
            if len(parts) > 1:
                out = out.reshape_dim(axis, tuple(sizes[p] for p in parts))
            names.extend(parts)
            axis += len(parts)
        flat = [p for entry in dst_pattern for p in (entry if isinstance(entry, tuple) else (entry,))]
        require(sorted(flat) == sorted(names), "NkiTensor.rearrange", "dst_pattern", dst_pattern, f"the names {names}")
        out, axis = out.permute(tuple(names.index(p) for p in flat)), 0
        for entry in dst_pattern:
            if isinstance(entry, tuple) and len(entry) > 1:
                out = out.flatten_dims(axis, axis + len(entry) - 1)
            axis += 1
        return out

    def view(self, dtype):
        dtype = dtypes.name_of(dtype, "NkiTensor.view")
        old, new = self._itemsize, dtypes.itemsize(dtype)
        require(
            self._strides[-1] == 1 or self.shape[-1] == 1 or old == new,
            "NkiTensor.view",
            "last stride",
            self._strides[-1],
            "1",
        )
        require(
            (self.shape[-1] * old) % new == 0,
            "NkiTensor.view",
            "bytes of the last axis",
            self.shape[-1] * old,
            f"a multiple of {new}",
        )
        require(
            all(s * old % new == 0 for s in self._strides[:-1]) and self._offset * old % new == 0,
            "NkiTensor.view",
            "alignment",
            self._strides,
            f"multiples of {new} bytes",
        )
        if self._dynamic:
            refuse("NkiTensor.view", "dynamic offset", "view after scalar_offset", "ap(dtype=)")
        return self._view(
            (*self.shape[:-1], self.shape[-1] * old // new), [s * old // new for s in self._strides[:-1]] + [self._strides[-1] if old == new else 1],
            self._offset * old // new, dtype,
        )  # fmt: skip

    def ap(self, pattern, offset=None, scalar_offset=None, vector_offset=None, indirect_dim=0, dtype=None):
        where = f"ap of {self.name!r}"
        require(
            not (self._dynamic or self._vector),
            where,
            "nested access",
            "ap of a dynamic access",
            "ap of a tensor or a static view",
        )
        require(
            scalar_offset is None or vector_offset is None,
            where,
            "offsets",
            "scalar_offset and vector_offset",
            "one of them",
        )
        base, row = self, None
        if dtype is not None:
            dtype = dtypes.name_of(dtype, where)
        else:
            dtype = self.dtype
        old, new = self._itemsize, dtypes.itemsize(dtype)
        require(
            self._offset * old % new == 0,
            where,
            "dtype",
            dtype,
            f"an element size that divides the start {self._offset * old} B",
        )
        start = self._offset * old // new + (offset or 0)
        pairs = []
        for pair in pattern:
            require(
                len(pair) == 2 and all(isinstance(v, (int, np.integer)) for v in pair) and pair[1] >= 1,
                where,
                "pattern entry",
                pair,
                "[stride, count >= 1] of integers",
            )
            pairs.append((int(pair[0]), int(pair[1])))
        shape, strides = tuple(n for _, n in pairs), tuple(s for s, _ in pairs)
        if self._on_chip:
            row = self._storage.row_bytes // new
            require(
                strides[0] == row or shape[0] == 1,
                where,
                "partition stride",
                strides[0],
                f"{row}: consecutive partitions only",
            )
            strides = (row, *strides[1:])
        out = NkiTensor(shape, dtype, self._storage, name=self.name, _strides=strides, _offset=start)
        if scalar_offset is not None or vector_offset is not None:
            require(
                0 <= indirect_dim < base.ndim,
                where,
                "indirect_dim",
                indirect_dim,
                f"an axis of the base tensor {base.shape}",
            )
            require(
                base.is_contiguous(),
                where,
                "base of a dynamic access",
                base.get_pattern(),
                "a contiguous tensor or view: its shape gives the stride",
            )
            step = math.prod(base.shape[indirect_dim + 1 :]) * old // new
            if self._on_chip and indirect_dim == 0:
                refuse(where, "indirect_dim of an on-chip tensor", 0, "a free axis: start partitions are static")
            if vector_offset is not None:
                require(not self._on_chip, where, "vector_offset", f"a tensor in {self.buffer}", "HBM tensors only")
                require(indirect_dim == 0, where, "indirect_dim with vector_offset", indirect_dim, "0")
                require(
                    isinstance(vector_offset, NkiTensor) and vector_offset.buffer == "sbuf",
                    where,
                    "vector_offset",
                    vector_offset,
                    "an index tile in SBUF",
                )
                require(
                    vector_offset.shape == (shape[0], 1),
                    where,
                    "shape of vector_offset",
                    vector_offset.shape,
                    (shape[0], 1),
                )
                require(
                    vector_offset.dtype in ("int32", "uint32"),
                    where,
                    "dtype of vector_offset",
                    vector_offset.dtype,
                    "int32, uint32",
                )
                out._vector = (vector_offset, step)
            else:
                if isinstance(scalar_offset, NkiTensor):
                    require(
                        scalar_offset.buffer == "sbuf" and math.prod(scalar_offset.shape) == 1,
                        where,
                        "scalar_offset tensor",
                        scalar_offset,
                        "a 1x1 SBUF tensor",
                    )
                    require(
                        scalar_offset.dtype in ("int32", "uint32"),
                        where,
                        "dtype of scalar_offset",
                        scalar_offset.dtype,
                        "int32, uint32",
                    )
                else:
                    require(
                        isinstance(scalar_offset, (NkiScalar, VirtualRegister)),
                        where,
                        "scalar_offset",
                        type(scalar_offset).__name__,
                        "NkiScalar, VirtualRegister or a 1x1 SBUF tensor",
                    )
                    if self._on_chip:
                        require(
                            scalar_offset.dtype == "int32", where, "scalar_offset on chip", scalar_offset.dtype, "int32"
                        )
                out._dynamic = ((scalar_offset, step),)
        out._check_bounds(where)
        return out

    def vector_select(self, dim, vector_offset):
        refuse("NkiTensor.vector_select", "stand-in", "vector_select", "ap(vector_offset=)")

    def indirect(self, index, num_elem=None):
        refuse("NkiTensor.indirect", "stand-in", "indirect (gen4)", "ap(vector_offset=)")

    # -- while a program runs ---------------------------------------------------------------------------------------------
    def _span(self):
        """Smallest and largest element offset relative to the start."""
        ends = [s * (n - 1) for s, n in zip(self._strides, self.shape)]
        return sum(min(e, 0) for e in ends), sum(max(e, 0) for e in ends)

    def _check_bounds(self, where, shift=0):
        low, high = self._span()
        start = self._offset + shift
        total = self._storage.total // self._itemsize
        if self._vector is not None:
            return
        require(
            start + low >= 0 and start + high < total,
            where,
            "bounds",
            (start + low, start + high),
            f"elements 0..{total - 1} of {self._storage.name!r} {self._storage.shape}",
        )
        if self._on_chip:
            row = self._row
            free = [(s, n) for s, n in zip(self._strides[1:], self.shape[1:])]
            a = start % row + sum(min(s * (n - 1), 0) for s, n in free)
            b = start % row + sum(max(s * (n - 1), 0) for s, n in free)
            require(0 <= a and b < row, where, "free range of one partition", (a, b), f"0..{row - 1}")

    def _shift(self, env):
        shift = 0
        for scalar, step in self._dynamic:
            if isinstance(scalar, NkiTensor):
                value = int(scalar._array(env).reshape(()))
            else:
                value = scalar.evaluate(env)
            if not self._on_chip and getattr(scalar, "dtype", "int32") != "int64":
                reach = (self._offset + value * step) * self._itemsize
                require(
                    reach < HBM_REACH_32,
                    f"ap of {self.name!r}",
                    "byte offset of a 32-bit scalar_offset",
                    reach,
                    f"< {HBM_REACH_32}; load an int64 scalar",
                )
            shift += value * step
        return shift

    def _array(self, env):
        """The NumPy view of the data."""
        shift = 0
        if self._dynamic:
            shift = self._shift(env)
            self._check_bounds(f"dynamic access of {self.name!r} (out of bounds at run time, NRT status 1006)", shift)
        size = self._itemsize
        return np.ndarray(
            self.shape, dtypes.STORAGE[self.dtype], buffer=self._storage.array, offset=(self._offset + shift) * size,
            strides=tuple(s * size for s in self._strides),
        )  # fmt: skip

    def _mask(self, env):
        """One byte for each element: written last by the tensor engine?"""
        size = self._itemsize
        shift = self._shift(env) if self._dynamic else 0
        return np.ndarray(
            self.shape,
            np.uint8,
            buffer=self._storage.matmul,
            offset=(self._offset + shift) * size,
            strides=tuple(s * size for s in self._strides),
        )

    # -- rules of an engine operand ---------------------------------------------------------------------------------------
    def _check_operand(self, where, role, destination=False):
        """What every compute engine asks of an on-chip operand."""
        label = f"{where} {role}"
        seen = (self.shape, self._strides, self._start, destination)
        if seen not in _GOOD:
            self._check_pattern(label, destination)
            _GOOD.add(seen)
        if not self._dynamic:
            self._check_bounds(label)

    def _check_pattern(self, label, destination):
        """The part that depends on shape, strides and start partition alone."""
        require(1 <= self.shape[0] <= PARTITIONS, label, "partitions", self.shape[0], f"1..{PARTITIONS}")
        start, n = self._start, self.shape[0]
        legal = (0,) if n > 64 else (0, 64) if n > 32 else (0, 32, 64, 96)
        require(start in legal, label, f"start partition of {n} partitions", start, legal)
        given = [(s, n) for s, n in zip(self._strides[1:], self.shape[1:]) if n > 1]
        merged = coalesce(given)
        if destination:
            require(
                all(s for s, _ in given),
                label,
                "stride of a destination",
                0,
                "nonzero: elements would be written twice",
            )
        fits = [
            len(pairs) <= 4 and all(n <= UINT16_MAX and abs(s) <= INT16_MAX for s, n in pairs)
            for pairs in (given, merged)
        ]
        if not any(fits):
            require(len(merged) <= 4, label, "free axes", len(merged), "up to 4")
            for stride, count in merged:
                require(count <= UINT16_MAX, label, "free size", count, f"<= {UINT16_MAX} (uint16)")
                require(abs(stride) <= INT16_MAX, label, "free stride", stride, "int16, in elements")

    def _slow(self):
        """True where the innermost stride exceeds 16 bytes: half the bandwidth."""
        pairs = coalesce(zip(self._strides[1:], self.shape[1:]))
        return bool(pairs) and abs(pairs[-1][0]) * self._itemsize > 16

    def _packed(self):
        """True where the free elements are contiguous."""
        pairs = coalesce(zip(self._strides[1:], self.shape[1:]))
        return not pairs or (len(pairs) == 1 and pairs[0][0] == 1)
