"""Checks of option values that several backends declare: each gives None for a good value, or why it is refused."""

from __future__ import annotations

from collections.abc import Callable

Check = Callable[[object], "str | None"]


def one_of(*allowed) -> Check:
    """One of some values.

    >>> check = one_of("auto", "vector")
    >>> check("auto"), check("scalar")
    (None, "must be one of 'auto', 'vector'")
    """
    listed = ", ".join(map(repr, allowed))
    return lambda value: None if value in allowed and not isinstance(value, bool) else f"must be one of {listed}"


def whole(least: int, most: int | None = None, none: bool | str = False) -> Check:
    """A whole number in a range.

    Parameters
    ----------
    least, most
        Both included; without ``most`` there is no upper end.
    none
        Whether None is allowed too; a string says what it stands for.

    Examples
    --------
    >>> whole(1, none="the backend's own choice")(0)
    "must be a whole number of at least 1, or None for the backend's own choice"
    >>> whole(1, 3)(4)
    'must be a whole number from 1 to 3'
    """
    span = f"of at least {least}" if most is None else f"from {least} to {most}"
    end = f", or None for {none}" if isinstance(none, str) else ", or None" if none else ""

    def check(value) -> str | None:
        if none and value is None:
            return None
        fine = isinstance(value, int) and not isinstance(value, bool) and value >= least
        return None if fine and (most is None or value <= most) else f"must be a whole number {span}{end}"

    return check


def flag(value) -> str | None:
    """True or False.

    >>> flag(1)
    'must be True or False'
    """
    return None if isinstance(value, bool) else "must be True or False"


def path(value) -> str | None:
    """A path as text, or None.

    >>> path("cache")
    """
    return None if value is None or isinstance(value, str) else "must be a path as text, or None"


__all__ = ["Check", "flag", "one_of", "path", "whole"]
