"""What each step of a training was like, in event files that TensorBoard reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scannery.runtime.errors import ConfigError

__all__ = ["StepEvents"]


class StepEvents:
    """Writes the values of steps to a folder; a run that goes on replaces those of the steps that were lost."""

    def __init__(self, folder: Path) -> None:
        """Prepare.

        Raises:
            ConfigError: the package that writes them is not installed.

        """
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise ConfigError(
                "--events needs the package tensorboardX: pip install 'scannery[training]'", field="events"
            ) from error
        self._folder, self._new_writer = folder, SummaryWriter
        self._writer: Any = None

    def record(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values of a step by name."""
        if self._writer is None:
            # Names have the second: of two writers in one second the later would replace the file of the former.
            self._writer = self._new_writer(str(self._folder), purge_step=step, filename_suffix=f".{step}")
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()
