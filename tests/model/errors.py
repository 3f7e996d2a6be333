"""What a wrong answer raises, and which faults of the product are known and tolerated for now."""

from __future__ import annotations

__all__ = ["KNOWN", "WrongError", "check"]

KNOWN: set[str] = {
    # Each of these is to be deleted once the product holds what the check demands.
    "builds-do-not-seal",
    "ties-at-the-cut",
    "bare-os-errors",
    "ids-of-deleted-records",
    "reused-request-id",
    "moved-id-stands-twice",
    "gc-takes-running-builds",
    "empty-listing-forgets-index",
    "fork-keeps-turn",
    "relative-paths",
    "log-gone-in-silence",
    "compaction-undoes-rollback",
    "replaced-store",
    "restore-over-log",
}
"""Faults of the product that the checks tolerate."""


class WrongError(AssertionError):
    """The product is not what the model says."""


def check(holds: object, message: str) -> None:
    """Raise a WrongError if something does not hold."""
    if not holds:
        raise WrongError(message)
