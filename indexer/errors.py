"""What can go wrong with an index at rest.

IndexerError
├── InvalidSpecError       the spec is not valid; `field` is the dotted path to the key
├── InvalidRecordError     one input record cannot become a datapoint; `reason` is its dead-letter category
├── NotFoundError          no such store, index, version, segment or object
│   └── MissingFileError   a version that is to be committed names a file that the store does not have
├── AlreadyExistsError     a conditional put lost: somebody else created the object first
│   └── ReplacedError      the index is another one by now: made anew or restored under the same name
├── CorruptError           bytes at rest are not what the manifest says they are
├── FormatError            written by a newer version of Scannery than this one can read
├── BuildError             a segment could not be built (the message names the shard)
└── StoreError             the object store refused or failed (permission, network, disk full)
    └── StoreUriError      there can be no store under this name (unknown scheme, a file)
"""

__all__ = [
    "AlreadyExistsError",
    "BuildError",
    "CorruptError",
    "FormatError",
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
        field: the input field the error is about, or None.

    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InvalidSpecError(IndexerError, ValueError):
    """The spec is not valid; the message names the key, the allowed values and the value got."""


class InvalidRecordError(IndexerError, ValueError):
    """One input record cannot become a datapoint; it costs nobody but its sender anything."""

    def __init__(self, message: str, *, reason: str, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.reason = reason

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only arguments are lost by the default pickling of exceptions, and Beam pickles them.
        return _restore_record_error, (self.message, self.reason, self.field)


class NotFoundError(IndexerError, LookupError):
    """There is no such store, index, version or object."""


class MissingFileError(NotFoundError):
    """A version that is to be committed names a file that the store does not have, or in another size."""


class AlreadyExistsError(IndexerError):
    """A conditional put lost against another writer."""


class ReplacedError(AlreadyExistsError):
    """A version was made for an index that is gone, and another one has its name."""


class CorruptError(IndexerError):
    """A file is damaged, truncated or not the one that the manifest names."""


class FormatError(IndexerError):
    """The data was written in a format that this version cannot read."""


class BuildError(IndexerError):
    """A segment could not be built."""


class StoreError(IndexerError):
    """The object store refused an operation or failed."""


class StoreUriError(StoreError, ValueError):
    """There can be no store under this name."""


def _restore_record_error(message: str, reason: str, field: str | None) -> InvalidRecordError:
    return InvalidRecordError(message, reason=reason, field=field)
