"""Errors of migrations."""

from __future__ import annotations

from scannery.runtime.errors import DEFECT, ServingError

__all__ = [
    "MigrationError",
    "MirrorBrokenError",
    "MirrorRenewedError",
    "UnencodableError",
    "exchanged_meanwhile",
    "not_exchanged",
]


class MigrationError(ServingError, code="FAILED_PRECONDITION"):
    """A migration cannot begin, or not go on as it was begun."""


class MirrorBrokenError(MigrationError):
    """The mirrored index has changed otherwise than by live updates: its mirror must begin again (`renew_mirror`)."""


class MirrorRenewedError(MigrationError):
    """Another process has had the mirror begin again from a later version, where results of units may be of use."""


class UnencodableError(MigrationError, exit_code=DEFECT):
    """A datapoint cannot get a vector of the new encoder."""


def exchanged_meanwhile(index: str) -> MigrationError:
    """Return the error of a process beside one that has exchanged the contents of an index and its mirror."""
    return MigrationError(
        f"another process has exchanged the contents of index {index!r} and its mirror: run this again",
        field="index",
    )


def not_exchanged(index: str, field: str) -> MigrationError:
    """Return the error where an exchange is to be undone that was not made; `field` of the request wants that."""
    return MigrationError(
        f"the contents of index {index!r} and its mirror are not exchanged: nothing to undo", field=field
    )
