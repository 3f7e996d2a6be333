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

from scannery.runtime.errors import NO, CodedError

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


class PipelineError(CodedError, private=True):
    """Base of every error that `scannery.pipelines` raises on purpose."""


class InputNotFoundError(PipelineError, LookupError, code="NOT_FOUND"):
    """An input matches no file."""


class ModeError(PipelineError, ValueError, code="INVALID_ARGUMENT"):
    """The mode is unknown, or excludes another argument."""


class UnknownFormatError(PipelineError, ValueError, code="INVALID_ARGUMENT"):
    """An input file has a type that no source reads."""


class InputChangedError(PipelineError, code="UNAVAILABLE"):
    """An input file changed between planning and reading; the next run sees the new content."""


class StageDamagedError(PipelineError, code="UNAVAILABLE"):
    """Stage output of an earlier run was damaged and was removed; the next run makes it again."""


class SpecConflictError(PipelineError, ValueError, code="INVALID_ARGUMENT"):
    """The spec does not fit the input, the encoder, or the existing index."""


class OutputError(PipelineError, ValueError, code="INVALID_ARGUMENT"):
    """The output of an export exists already, is not a possible location, or does not fit the format."""


class RunnerError(PipelineError, ValueError, code="INVALID_ARGUMENT"):
    """The runner is unknown, is not installed, or refused its options."""


class CollectionError(PipelineError, ValueError, code="INVALID_ARGUMENT"):
    """A file of queries or relevance judgements is malformed."""


class MissingPackageError(PipelineError, code="FAILED_PRECONDITION"):
    """A required optional package is not installed."""


class PeerError(PipelineError, ValueError, code="INVALID_ARGUMENT"):
    """A collection of another system cannot become an index as it is; the message tells what to do."""


class NothingToTuneError(PipelineError, ValueError, code="INVALID_ARGUMENT"):
    """All searches of the index are exact, so there are no settings to choose."""


class NothingToIndexError(PipelineError, exit_code=NO):
    """No record became a datapoint, so no version was made."""


class TooManyDeadLettersError(PipelineError, exit_code=NO):
    """More records were refused than the caller allows, so no version was made."""
