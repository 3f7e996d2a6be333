"""Errors of a pipeline as a whole; a bad record becomes a dead letter instead (dead_letters.py).

PipelineError
├── InputNotFoundError        an input matches no file
├── ModeError                 arguments that exclude each other: mode, inputs, deletes
├── UnknownFormatError        an input file has a type that no source reads
├── InputChangedError         an input file changed while it was being read
├── StageDamagedError         stage output of an earlier run was damaged, and was removed
├── SpecConflictError         the spec does not fit the input or the existing index
├── OutputError               an export cannot be written to its output
├── RunnerError               the runner is unknown, or its options are wrong
├── CollectionError           a file of queries or judgements is malformed
├── MissingPackageError       an optional package is not installed
├── PeerError                 a collection of another system cannot become an index
├── NothingToTuneError        all searches of the index are exact
├── NothingToIndexError       every record is a dead letter, or the input is empty
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
    "NothingToTuneError",
    "OutputError",
    "PeerError",
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
        message: the problem and its remedy.
        field: the argument or spec key with the problem, or None.

    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field


class InputNotFoundError(PipelineError, LookupError):
    """An input matches no file."""


class ModeError(PipelineError, ValueError):
    """The mode is unknown, or excludes another argument."""


class UnknownFormatError(PipelineError, ValueError):
    """An input file has a type that no source reads."""


class InputChangedError(PipelineError):
    """An input file changed between planning and reading; the next run sees the new content."""


class StageDamagedError(PipelineError):
    """Stage output of an earlier run was damaged and was removed; the next run makes it again."""


class SpecConflictError(PipelineError, ValueError):
    """The spec does not fit the input, the encoder, or the existing index."""


class OutputError(PipelineError, ValueError):
    """The output of an export exists already, is not a possible location, or does not fit the format."""


class RunnerError(PipelineError, ValueError):
    """The runner is unknown, is not installed, or refused its options."""


class CollectionError(PipelineError, ValueError):
    """A file of queries or relevance judgements is malformed."""


class MissingPackageError(PipelineError):
    """A required optional package is not installed."""


class PeerError(PipelineError, ValueError):
    """A collection of another system cannot become an index as it is; the message tells what to do."""


class NothingToTuneError(PipelineError, ValueError):
    """All searches of the index are exact, so there are no settings to choose."""


class NothingToIndexError(PipelineError):
    """No record became a datapoint, so no version was made."""


class TooManyDeadLettersError(PipelineError):
    """More records were refused than the caller allows, so no version was made."""
