"""What a wrong answer raises."""

from __future__ import annotations

__all__ = ["WrongError", "check"]


class WrongError(AssertionError):
    """The product is not what the model says."""


def check(holds: object, message: str) -> None:
    """Raise a WrongError if something does not hold."""
    if not holds:
        raise WrongError(message)
