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

from scannery.runtime.errors import DEFECT, NO, NOT_ALLOWED, NOT_FOUND, NOT_NOW, PARTIAL, USAGE, CodedError

__all__ = ["BUILTIN", "INTERRUPTED", "NO", "PARTIAL", "UNEXPECTED", "exit_code", "is_expected", "one_line"]

UNEXPECTED = DEFECT
INTERRUPTED = 130

BUILTIN: dict[type[BaseException], int] = {
    KeyboardInterrupt: INTERRUPTED,
    # Errors of files that the user named, or of the machine.
    FileNotFoundError: NOT_FOUND,
    IsADirectoryError: USAGE,
    NotADirectoryError: USAGE,
    PermissionError: NOT_ALLOWED,
    UnicodeDecodeError: USAGE,
}
"""Exit codes of errors that are no product's own."""


def exit_code(error: BaseException) -> int:
    """Return the exit code for an error."""
    if _is_disk_error(error):
        return NOT_NOW
    if isinstance(error, CodedError):
        return error.exit_code
    return next((code for kind, code in BUILTIN.items() if isinstance(error, kind)), UNEXPECTED)


def is_expected(error: BaseException) -> bool:
    """Return whether the error's message is sufficient, without its type or a traceback."""
    return isinstance(error, (CodedError, *BUILTIN)) or _is_disk_error(error)


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
