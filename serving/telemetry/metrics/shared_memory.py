"""Shared memory for metrics: each worker writes its slot, the metrics process reads all."""

from __future__ import annotations

import json
import mmap
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scannery.serving.telemetry.metrics.registry import Dump

__all__ = ["SharedSlots"]

SLOT_BYTES = 1 << 20
_HEADER = struct.Struct("<QQ")
_ATTEMPTS = 100


class SharedSlots:
    """Slots of anonymous shared memory, created before the fork; one writer and any number of readers each."""

    def __init__(self, count: int) -> None:
        """Reserve memory for `count` slots of 1 MiB."""
        self.count = count
        # Pages take no memory until they are written.
        self._memory = mmap.mmap(-1, count * SLOT_BYTES)

    def write(self, slot: int, data: bytes) -> bool:
        """Replace the content of a slot; return False without change if `data` does not fit."""
        if len(data) > SLOT_BYTES - _HEADER.size:
            return False
        start = slot * SLOT_BYTES
        # Seqlock: odd while writing. A reader that sees an odd or a changed number reads again.
        number = _HEADER.unpack_from(self._memory, start)[0] | 1
        _HEADER.pack_into(self._memory, start, number, 0)
        body = start + _HEADER.size
        self._memory[body : body + len(data)] = data
        _HEADER.pack_into(self._memory, start, number + 1, len(data))
        return True

    def read(self, slot: int) -> Dump:
        """Return the content of a slot; empty: never written, or the writer died while writing."""
        start = slot * SLOT_BYTES
        for _ in range(_ATTEMPTS):
            number, size = _HEADER.unpack_from(self._memory, start)
            data = bytes(self._memory[start + _HEADER.size : start + _HEADER.size + size])
            if number % 2 == 0 and _HEADER.unpack_from(self._memory, start)[0] == number:
                dump: Dump = json.loads(data) if data else {}
                return dump
        return {}

    def read_all(self) -> list[Dump]:
        """Return the contents of all slots that are not empty."""
        return [dump for slot in range(self.count) if (dump := self.read(slot))]
