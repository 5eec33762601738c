"""Values that only the device knows: traced scalars and sequencer registers. Neither can steer Python."""

from .errors import NkiValidationError, refuse


def wrap(value: int, dtype: str) -> int:
    """Two's complement of the width: a scalar is never widened."""
    bits = 64 if dtype == "int64" else 32
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


class DeviceValue:
    """What :class:`NkiScalar` and :class:`VirtualRegister` refuse alike."""

    def _steers(self, *_):
        raise NkiValidationError(
            f"{type(self).__name__}: data-dependent Python control flow: found a device value where Python needs a number, "
            "allowed: arithmetic of NkiScalar, .ap(scalar_offset=), a bound of nl.fori_loop"
        )

    __bool__ = __int__ = __index__ = __float__ = __len__ = __iter__ = _steers
    __lt__ = __le__ = __gt__ = __ge__ = _steers
    __floordiv__ = __truediv__ = __mod__ = __rfloordiv__ = __rmod__ = __and__ = __rshift__ = __lshift__ = __pow__ = (
        _steers
    )

    def __eq__(self, other):
        return True if self is other else self._steers()

    def __ne__(self, other):
        return False if self is other else self._steers()

    __hash__ = object.__hash__


class NkiScalar(DeviceValue):
    """A traced integer: ``evaluate(env)`` gives its value while the program runs."""

    def __init__(self, evaluate, dtype="int32", loops=()):
        self.evaluate, self.dtype, self.loops = evaluate, dtype, frozenset(loops)

    def _with(self, other, combine):
        if isinstance(other, NkiScalar):
            if other.dtype != self.dtype:
                refuse("NkiScalar arithmetic", "dtypes of both sides", (self.dtype, other.dtype), "the same dtype")
            right = other.evaluate
        elif isinstance(other, int) and not isinstance(other, bool):
            right = lambda env: other  # noqa: E731
        else:
            refuse("NkiScalar arithmetic", "operand", type(other).__name__, "int or NkiScalar")
        from .program import current

        current().count_register_work()
        left, dtype = self.evaluate, self.dtype
        loops = self.loops | getattr(other, "loops", frozenset())
        return NkiScalar(lambda env: wrap(combine(left(env), right(env)), dtype), dtype, loops)

    def check_scope(self, where, inside):
        """A value of a loop body does not exist after the loop."""
        if not self.loops <= set(inside):
            refuse(
                where,
                "scope of an NkiScalar",
                "a value of a fori_loop body used outside of it",
                "values made in the loops around",
            )

    def __add__(self, other):
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other):
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other):
        return self._with(other, lambda a, b: a * b)

    def __rsub__(self, other):
        return self._with(other, lambda a, b: b - a)

    def __neg__(self):
        return self._with(-1, lambda a, b: a * b)

    __radd__, __rmul__ = __add__, __mul__


class VirtualRegister(DeviceValue):
    """A 32-bit register of the sequencers; no arithmetic is documented."""

    def __init__(self, state=None, frozen=False):
        self.frozen = frozen

    def evaluate(self, env):
        if self not in env.registers:
            raise NkiValidationError(
                "VirtualRegister: read before it was written: found no value, allowed after register_move or register_load"
            )
        return env.registers[self]

    dtype = "int32"
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __neg__ = DeviceValue._steers
