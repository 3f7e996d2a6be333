"""Errors of stored indexes.

IndexerError
├── InvalidSpecError       the spec is not valid; `field` is the dotted path to the key
├── InvalidRecordError     one input record cannot become a datapoint; `reason` is its dead-letter category
├── NotFoundError          no such store, index, version, segment or object
│   └── MissingFileError   a version to be committed names a file that is not in the store
├── AlreadyExistsError     another writer created the object or published the version first
│   └── ReplacedError      another index with the same name has replaced the index
├── InUseError             an index cannot be dropped, because it is in use; or it was dropped, and files are left
├── CorruptError           a stored file is damaged, or its hash is not the one in the manifest
├── FormatError            data of a newer release of Scannery
├── BuildError             a segment could not be built; the message names the shard
└── StoreError             the object store refused or failed (permission, network, disk full)
    └── StoreUriError      the URI cannot name a store (unknown scheme, a file)
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "AlreadyExistsError",
    "BuildError",
    "CorruptError",
    "FormatError",
    "InUseError",
    "IndexerError",
    "InvalidRecordError",
    "InvalidSpecError",
    "MissingFileError",
    "NotFoundError",
    "ReplacedError",
    "StoreError",
    "StoreUriError",
]


class IndexerError(Exception):
    """Base of every error that `scannery.indexer` raises on purpose.

    Attributes:
        message: the text of the error.
        field: the input field that is wrong, or None.

    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidSpecError(IndexerError, ValueError):
    """The spec is not valid; the message names the key, the allowed values and the value got."""


class InvalidRecordError(IndexerError, ValueError):
    """One input record cannot become a datapoint. Other records are not affected.

    Attributes:
        reason: category of the dead letter.

    """

    def __init__(self, message: str, *, reason: str, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.reason = reason

    @classmethod
    def merged(cls, errors: Sequence[InvalidRecordError]) -> InvalidRecordError:
        """Return one error of a record that names all of some; reason and field are those of the first."""
        if len(errors) == 1:
            return errors[0]
        message = "; ".join(error.message for error in errors)
        return cls(message, reason=errors[0].reason, field=errors[0].field)

    def __reduce__(self) -> tuple[object, ...]:
        # Beam pickles exceptions, and default pickling loses keyword-only arguments.
        return _restore_record_error, (self.message, self.reason, self.field)


class NotFoundError(IndexerError, LookupError):
    """There is no such store, index, version or object."""


class MissingFileError(NotFoundError):
    """A version to be committed names a file that is not in the store, or has another size there."""


class AlreadyExistsError(IndexerError):
    """Another writer created the object or published the version first."""


class ReplacedError(AlreadyExistsError):
    """A version was made for an index that another index with the same name has replaced."""


class InUseError(IndexerError):
    """An index is in use and cannot be dropped, or it was dropped and its files are being removed."""


class CorruptError(IndexerError):
    """A file is damaged or truncated, or its hash is not the one in the manifest."""


class FormatError(IndexerError):
    """The data has a format that this release cannot read."""


class BuildError(IndexerError):
    """A segment could not be built."""


class StoreError(IndexerError):
    """The object store refused an operation or failed."""


class StoreUriError(StoreError, ValueError):
    """The URI cannot name a store."""


def _restore_record_error(message: str, reason: str, field: str | None) -> InvalidRecordError:
    return InvalidRecordError(message, reason=reason, field=field)
