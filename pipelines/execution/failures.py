"""Errors across workers: runners pass on text only, so the error is packed into the message and restored."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import tempfile
from collections.abc import Iterator
from typing import Any

from scannery.embed import errors as embed_errors
from scannery.indexer import errors as indexer_errors
from scannery.pipelines import errors as pipeline_errors

__all__ = ["StageFailedError", "carried", "restored"]

_MARK = re.compile(r"<<scannery-error (\{.*?\}) scannery-error>>")
_ERROR_KINDS: dict[str, Any] = {
    name: getattr(module, name)
    for module in (embed_errors, indexer_errors, pipeline_errors)
    for name in module.__all__
    if isinstance(getattr(module, name), type)
}


class StageFailedError(Exception):
    """A stage failed with a known error; the message holds it in a form that `restored` reads."""


@contextlib.contextmanager
def carried() -> Iterator[None]:
    """Raise Scannery's errors as `StageFailedError`, which a runner can pass from a worker to the launcher."""
    try:
        yield
    except tuple(_ERROR_KINDS.values()) as error:
        raise _packed(error) from error
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        # Temporary files: the store raises its own errors.
        folder = tempfile.gettempdir()
        raise _packed(
            indexer_errors.StoreError(f"temporary files in {folder}: {os.strerror(error.errno)}")
        ) from error


def _packed(error: Exception) -> StageFailedError:
    body = json.dumps(
        {"kind": type(error).__name__, "message": str(error), "field": getattr(error, "field", None)}
    )
    return StageFailedError(f"<<scannery-error {body} scannery-error>>")


def restored(failure: BaseException) -> Exception | None:
    """Return the error that `carried` packed into a runner's failure, or None for any other failure."""
    match = _MARK.search(str(failure))
    if match is None:
        return None
    data = json.loads(match[1])
    kind = _ERROR_KINDS.get(data["kind"], pipeline_errors.PipelineError)
    try:
        error: Exception = kind(data["message"], field=data["field"])
    except TypeError:  # an error class with further required arguments
        error = pipeline_errors.PipelineError(data["message"], field=data["field"])
    return error
