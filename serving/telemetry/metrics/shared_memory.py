"""Shared memory for metrics: each worker writes its slot, the metrics process reads all."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from scannery.runtime.shared_blobs import SharedBlobs

if TYPE_CHECKING:
    from scannery.serving.telemetry.metrics.registry import Dump

__all__ = ["SharedSlots"]

SLOT_BYTES = 1 << 20


class SharedSlots:
    """Slots of shared memory, created before the fork; one writer and any number of readers each."""

    def __init__(self, count: int) -> None:
        """Reserve memory for `count` slots of 1 MiB."""
        self.count = count
        self._blobs = SharedBlobs(count, SLOT_BYTES)

    def write(self, slot: int, data: bytes) -> bool:
        """Replace the content of a slot; return False without change if `data` does not fit."""
        return self._blobs.write(slot, data)

    def read(self, slot: int) -> Dump:
        """Return the content of a slot; empty: never written, or the writer died while writing."""
        data = self._blobs.read(slot)
        dump: Dump = json.loads(data) if data else {}
        return dump

    def read_all(self) -> list[Dump]:
        """Return the contents of all slots that are not empty."""
        return [dump for slot in range(self.count) if (dump := self.read(slot))]
