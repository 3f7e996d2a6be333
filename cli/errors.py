"""Error messages and exit codes of the command.

| code | meaning |
| ---: | --- |
| 0 | done |
| 1 | done, with a negative result: a check that found damage, a build that indexed nothing |
| 2 | wrong usage or bad input; a retry does not help |
| 3 | not found: store, index, datapoint, model, input file |
| 4 | not now: no server, deadline exceeded, overload, a concurrent writer, store unreachable, disk full |
| 5 | damaged data or a defect |
| 6 | not allowed |
| 7 | done in part: a build made its version, and refused some records |
| 130 | interrupted |
"""

from __future__ import annotations

import errno

__all__ = ["EXIT_CODES", "INTERRUPTED", "NO", "PARTIAL", "UNEXPECTED", "exit_code", "is_expected", "one_line"]

NO, USAGE, NOT_FOUND, NOT_NOW, DEFECT, NOT_ALLOWED, PARTIAL = range(1, 8)
UNEXPECTED = DEFECT
INTERRUPTED = 130

# By name, so that the lookup imports no other package. The nearest base class counts.
EXIT_CODES: dict[str, int] = {
    "scannery.client.errors.ScanneryError": DEFECT,
    "scannery.client.errors.InvalidArgumentError": USAGE,
    "scannery.client.errors.NotFoundError": NOT_FOUND,
    "scannery.client.errors.AlreadyExistsError": NOT_NOW,
    "scannery.client.errors.FailedPreconditionError": USAGE,
    "scannery.client.errors.UnauthenticatedError": NOT_ALLOWED,
    "scannery.client.errors.PermissionDeniedError": NOT_ALLOWED,
    "scannery.client.errors.ResourceExhaustedError": NOT_NOW,
    "scannery.client.errors.DeadlineExceededError": NOT_NOW,
    "scannery.client.errors.CancelledError": NOT_NOW,
    "scannery.client.errors.UnavailableError": NOT_NOW,
    "scannery.client.errors.UnimplementedError": USAGE,
    "scannery.indexer.errors.IndexerError": DEFECT,
    "scannery.indexer.errors.InvalidSpecError": USAGE,
    "scannery.indexer.errors.InvalidRecordError": USAGE,
    "scannery.indexer.errors.NotFoundError": NOT_FOUND,
    "scannery.indexer.errors.MissingFileError": NOT_NOW,
    "scannery.indexer.errors.AlreadyExistsError": NOT_NOW,
    "scannery.indexer.errors.InUseError": NOT_NOW,
    "scannery.indexer.errors.StoreError": NOT_NOW,
    "scannery.indexer.errors.StoreUriError": USAGE,
    "scannery.runtime.errors.ServingError": DEFECT,
    "scannery.runtime.errors.InvalidRequestError": USAGE,
    "scannery.runtime.errors.ConfigError": USAGE,
    "scannery.runtime.errors.UnknownIndexError": NOT_FOUND,
    "scannery.runtime.errors.UnknownDatapointError": NOT_FOUND,
    "scannery.runtime.errors.UnsupportedError": USAGE,
    "scannery.runtime.errors.EncoderUnavailableError": USAGE,
    "scannery.runtime.errors.EncoderUnreachableError": NOT_NOW,
    "scannery.runtime.errors.LexicalUnavailableError": USAGE,
    "scannery.runtime.errors.VectorsUnavailableError": USAGE,
    "scannery.runtime.errors.DeadlineError": NOT_NOW,
    "scannery.runtime.errors.OverloadedError": NOT_NOW,
    "scannery.runtime.errors.UnavailableError": NOT_NOW,
    "scannery.runtime.errors.PreconditionError": USAGE,
    "scannery.runtime.errors.UnauthenticatedError": NOT_ALLOWED,
    "scannery.runtime.errors.PermissionDeniedError": NOT_ALLOWED,
    "scannery.runtime.errors.BindError": NOT_NOW,
    "scannery.runtime.errors.ClosedError": NOT_NOW,
    "scannery.live.log.mutation_log.WrongLogError": USAGE,
    "scannery.live.log.mutation_log.LogRefusedError": USAGE,
    "scannery.live.log.mutation_log.LogReplacedError": NOT_NOW,
    "scannery.live.log.mutation_log.LogGapError": NOT_NOW,
    "scannery.embed.errors.EmbedError": DEFECT,
    "scannery.embed.errors.ModelNotFoundError": NOT_FOUND,
    "scannery.embed.errors.InvalidArgumentError": USAGE,
    "scannery.embed.errors.InvalidTextError": USAGE,
    "scannery.embed.errors.FingerprintMismatchError": USAGE,
    "scannery.pipelines.errors.PipelineError": DEFECT,
    "scannery.pipelines.errors.InputNotFoundError": NOT_FOUND,
    "scannery.pipelines.errors.ModeError": USAGE,
    "scannery.pipelines.errors.StageDamagedError": NOT_NOW,
    "scannery.pipelines.errors.UnknownFormatError": USAGE,
    "scannery.pipelines.errors.SpecConflictError": USAGE,
    "scannery.pipelines.errors.NothingToTuneError": USAGE,
    "scannery.pipelines.errors.OutputError": USAGE,
    "scannery.pipelines.errors.RunnerError": USAGE,
    "scannery.pipelines.errors.CollectionError": USAGE,
    "scannery.pipelines.errors.MissingPackageError": USAGE,
    "scannery.pipelines.errors.PeerError": USAGE,
    "scannery.pipelines.errors.InputChangedError": NOT_NOW,
    "scannery.pipelines.errors.NothingToIndexError": NO,
    "scannery.pipelines.errors.TooManyDeadLettersError": NO,
    "builtins.KeyboardInterrupt": INTERRUPTED,
    # Errors of files that the user named, or of the machine.
    "builtins.FileNotFoundError": NOT_FOUND,
    "builtins.IsADirectoryError": USAGE,
    "builtins.NotADirectoryError": USAGE,
    "builtins.PermissionError": NOT_ALLOWED,
    "builtins.UnicodeDecodeError": USAGE,
}


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    if _is_disk_error(error):
        return NOT_NOW
    return next((EXIT_CODES[name] for name in _names(error) if name in EXIT_CODES), UNEXPECTED)


def is_expected(error: BaseException) -> bool:
    """Return whether the error's message is sufficient, without its type or a traceback."""
    return any(name in EXIT_CODES for name in _names(error)) or _is_disk_error(error)


def one_line(error: BaseException) -> str:
    """Return the message of an error on one line, with its type if the error is unexpected."""
    text = " ".join(_text(error).split()) or type(error).__name__
    return text if is_expected(error) else f"{type(error).__name__}: {text}"


def _is_disk_error(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def _text(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _names(error: BaseException) -> list[str]:
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(error).__mro__]
