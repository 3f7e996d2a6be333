"""The file with the costs of a segment's plans in the local cache, one for each kind of processor.

A cache folder may be on a shared disk, or in an image that runs on another machine, whose costs differ.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scannery.indexer.planning.plan_costs import Costs
from scannery.indexer.planning.processor import processor_key

__all__ = ["COSTS", "CostFile"]

COSTS = "costs-{}.json"
"""Name of the file, by the key of the processor. It has no checksum in the cache, since it is written again later."""
_MOST_BYTES = 1 << 16


class CostFile:
    """Reads and writes the costs of one segment on this kind of processor. Safe to use from several processes."""

    def __init__(self, folder: Path, key: str | None = None) -> None:
        """Read nothing yet.

        Args:
            folder: of the segment in the local cache.
            key: of the processor; None: of this machine.

        """
        self.path = folder / COSTS.format(key or processor_key())

    def read(self) -> Costs | None:
        """Return the costs; None if there are none, the file is damaged, or another release wrote it."""
        # Nested deeply, JSON is a RecursionError; a number of hundreds of digits is an OverflowError when it is used.
        with contextlib.suppress(OSError, ValueError, TypeError, RecursionError, OverflowError):
            found = self.path.stat()
            if stat.S_ISREG(found.st_mode) and found.st_size <= _MOST_BYTES:  # a named pipe would never end
                return Costs.from_json(self.path.read_text())
        return None

    def write(self, costs: Costs) -> None:
        """Replace the costs; does nothing on a full disk, which must not make opening fail."""
        with contextlib.suppress(OSError):
            descriptor, name = tempfile.mkstemp(dir=self.path.parent, prefix="draft-costs-")
            draft = Path(name)
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(costs.to_json())
                draft.rename(self.path)
            finally:
                draft.unlink(missing_ok=True)

    def changed(self) -> int:
        """Return the time of the last change in nanoseconds; 0 if there is no file."""
        try:
            return self.path.stat().st_mtime_ns
        except OSError:
            return 0

    @contextlib.contextmanager
    def claimed(self) -> Iterator[bool]:
        """Give whether this process alone times the plans of the segment within the context."""
        try:
            descriptor = os.open(
                self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
            )
        except OSError:  # the segment was evicted, or the disk is full
            yield False
            return
        try:
            yield _locked(descriptor)
        finally:
            os.close(descriptor)


def _locked(descriptor: int) -> bool:
    with contextlib.suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
