"""What each step of a training was like, in event files that TensorBoard reads."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from scannery.runtime.errors import ConfigError

__all__ = ["StepEvents"]

_LOG = logging.getLogger(__name__)

FLUSH_S = 30.0
"""Seconds after which what was recorded is in the file."""


class StepEvents:
    """Writes the values of steps to a folder; a run that goes on replaces those of the steps that were lost.

    It is written by the caller: a thread of the library that meets a full disk ends, and whoever records waits for it.
    """

    def __init__(self, folder: Path) -> None:
        """Prepare.

        Raises:
            ConfigError: the package that writes them is not installed.

        """
        try:
            from tensorboardX.proto.event_pb2 import Event, SessionLog
            from tensorboardX.proto.summary_pb2 import Summary
            from tensorboardX.record_writer import RecordWriter
        except ImportError as error:
            raise ConfigError(
                "--events needs the package tensorboardX: pip install 'scannery[training]'", field="events"
            ) from error
        self._folder, self._new_writer = folder, RecordWriter
        self._event, self._session, self._summary = Event, SessionLog, Summary
        self._writer: Any = None
        self._is_failing = False
        self._flushed_s = time.monotonic()

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step by name; what cannot be written is reported by the log only, once."""
        if self._is_failing:
            return
        try:
            if self._writer is None:
                self._begin(step)
            self._write(step, summary=self._summary(
                value=[self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            ))  # fmt: skip
            if time.monotonic() - self._flushed_s >= FLUSH_S:
                self._writer.flush()
                self._flushed_s = time.monotonic()
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None and not self._is_failing:
            try:
                self._writer.close()
            except OSError as error:
                self._fail(error)

    def _begin(self, step: int) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        # With the step, since the later of two writers in one second would replace the file of the former.
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{step}"
        self._writer = self._new_writer(str(self._folder / name))
        self._write(0, file_version="brain.Event:2")
        self._write(step, session_log=self._session(status=self._session.START))  # later ones are not valid

    def _write(self, step: int, **content: Any) -> None:
        event = self._event(step=step, wall_time=time.time(), **content)
        self._writer.write(event.SerializeToString())

    def _fail(self, error: OSError) -> None:
        self._is_failing = True
        if self._writer is not None:
            with suppress(OSError):
                self._writer.close()
        _LOG.warning("events cannot be written to %s, and no more are: %s", self._folder, error)
