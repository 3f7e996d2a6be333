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
├── LevelError             a key needs a store of a higher level, which former releases cannot open
├── BuildError             a segment could not be built; the message names the shard
└── StoreError             the object store refused or failed (permission, network, disk full)
    └── StoreUriError      the URI cannot name a store (unknown scheme, a file)
"""

from __future__ import annotations

from collections.abc import Sequence

from scannery.runtime.errors import DEFECT, NOT_NOW, CodedError

__all__ = [
    "AlreadyExistsError",
    "BuildError",
    "CorruptError",
    "FormatError",
    "InUseError",
    "IndexerError",
    "InvalidRecordError",
    "InvalidSpecError",
    "LevelError",
    "MissingFileError",
    "NotFoundError",
    "ReplacedError",
    "StoreError",
    "StoreUriError",
]


class IndexerError(CodedError):
    """Base of every error that `scannery.indexer` raises on purpose."""


class InvalidSpecError(IndexerError, ValueError, code="INVALID_ARGUMENT", private=True):
    """The spec is not valid; the message names the key, the allowed values and the value got."""


class InvalidRecordError(IndexerError, ValueError, code="INVALID_ARGUMENT", quotes_request=True):
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


class NotFoundError(IndexerError, LookupError, code="NOT_FOUND"):
    """There is no such store, index, version or object."""


class MissingFileError(NotFoundError, exit_code=NOT_NOW):
    """A version to be committed names a file that is not in the store, or has another size there."""


class AlreadyExistsError(IndexerError, code="ALREADY_EXISTS"):
    """Another writer created the object or published the version first."""


class ReplacedError(AlreadyExistsError):
    """A version was made for an index that another index with the same name has replaced."""


class InUseError(IndexerError, code="FAILED_PRECONDITION", exit_code=NOT_NOW):
    """An index is in use and cannot be dropped, or it was dropped and its files are being removed."""


class CorruptError(IndexerError, code="DATA_LOSS"):
    """A file is damaged or truncated, or its hash is not the one in the manifest."""


class FormatError(IndexerError, code="FAILED_PRECONDITION", exit_code=DEFECT):
    """The data has a format that this release cannot read."""


class LevelError(IndexerError, code="FAILED_PRECONDITION"):
    """A key needs a store of a higher level, which former releases cannot open; `field` is the dotted path to it."""


class BuildError(IndexerError):
    """A segment could not be built."""


class StoreError(IndexerError, code="UNAVAILABLE"):
    """The object store refused an operation or failed."""


class StoreUriError(StoreError, ValueError, code="INVALID_ARGUMENT"):
    """The URI cannot name a store."""
