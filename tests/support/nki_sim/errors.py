"""The one way in which the stand-in says no."""


class NkiValidationError(Exception):
    """A documented rule of the hardware or of the language is broken."""


def refuse(where: str, constraint: str, found, allowed):
    """Raise :class:`NkiValidationError` that names the constraint, what was found and what is allowed."""
    raise NkiValidationError(f"{where}: {constraint}: found {found!r}, allowed {allowed}")


def require(good, where: str, constraint: str, found, allowed):
    """:func:`refuse` unless ``good``."""
    if not good:
        refuse(where, constraint, found, allowed)
