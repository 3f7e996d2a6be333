"""What can go wrong with a pipeline as a whole; a bad record is a dead letter instead (dead_letters.py).

PipelineError
├── InputNotFoundError        an input names no file
├── ModeError                 arguments that do not go together: mode, inputs, deletes
├── UnknownFormatError        an input file has a type that no source reads
├── InputChangedError         an input file changed while it was being read
├── StageDamagedError         what an earlier run left was damaged, and was removed
├── SpecConflictError         the spec does not fit the input or the index that is already there
├── OutputError               an export cannot be written where it should go
├── RunnerError               the runner is unknown, or its options are wrong
├── CollectionError           a file of queries or judgements is wrong
├── MissingPackageError       an optional package is not installed
├── NothingToIndexError       every record is a dead letter, or there was none
└── TooManyDeadLettersError   more records were refused than the caller allows
"""

from __future__ import annotations

__all__ = [
    "CollectionError",
    "InputChangedError",
    "InputNotFoundError",
    "MissingPackageError",
    "ModeError",
    "NothingToIndexError",
    "OutputError",
    "PipelineError",
    "RunnerError",
    "SpecConflictError",
    "StageDamagedError",
    "TooManyDeadLettersError",
    "UnknownFormatError",
]


class PipelineError(Exception):
    """Base of every error that `scannery.pipelines` raises on purpose.

    Attributes:
        message: what is wrong, and what to do about it.
        field: the argument or spec key it is about, or None.

    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InputNotFoundError(PipelineError, LookupError):
    """An input names no file."""


class ModeError(PipelineError, ValueError):
    """The mode is unknown, or does not go together with the other arguments."""


class UnknownFormatError(PipelineError, ValueError):
    """An input file has a type that no source reads."""


class InputChangedError(PipelineError):
    """An input file changed between planning and reading; the next run sees the new content."""


class StageDamagedError(PipelineError):
    """Stage output of an earlier run was damaged; it was removed, and running again makes it anew."""


class SpecConflictError(PipelineError, ValueError):
    """The spec does not fit the input, the encoder, or the index that is already there."""


class OutputError(PipelineError, ValueError):
    """The output of an export is there already, is no place for one, or does not fit the format."""


class RunnerError(PipelineError, ValueError):
    """The runner is unknown, is not installed, or refused its options."""


class CollectionError(PipelineError, ValueError):
    """A file of queries or relevance judgements does not say what it should."""


class MissingPackageError(PipelineError):
    """An optional package is needed for this and is not installed."""


class NothingToIndexError(PipelineError):
    """No record became a datapoint, so no version was made."""


class TooManyDeadLettersError(PipelineError):
    """More records were refused than the caller allows, so no version was made."""
