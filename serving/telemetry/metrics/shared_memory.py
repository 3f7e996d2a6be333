"""Memory that processes share: each worker publishes into its slot; the process with the metrics reads all slots."""

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
    """Slots of anonymous shared memory; made before the fork. One writer and any number of readers each."""

    def __init__(self, count: int) -> None:
        """Reserve memory for `count` slots of 1 MiB."""
        self.count = count
        # Pages that were never written take no memory.
        self._memory = mmap.mmap(-1, count * SLOT_BYTES)

    def write(self, slot: int, data: bytes) -> bool:
        """Replace what is in a slot; False, and nothing happens, if it does not fit."""
        if len(data) > SLOT_BYTES - _HEADER.size:
            return False
        start = slot * SLOT_BYTES
        # Odd while it is being written: a reader that sees that, or another number afterwards, reads again.
        number = _HEADER.unpack_from(self._memory, start)[0] | 1
        _HEADER.pack_into(self._memory, start, number, 0)
        body = start + _HEADER.size
        self._memory[body : body + len(data)] = data
        _HEADER.pack_into(self._memory, start, number + 1, len(data))
        return True

    def read(self, slot: int) -> Dump:
        """Return what is in a slot; empty if nothing (yet), or if its writer died while writing."""
        start = slot * SLOT_BYTES
        for _ in range(_ATTEMPTS):
            number, size = _HEADER.unpack_from(self._memory, start)
            data = bytes(self._memory[start + _HEADER.size : start + _HEADER.size + size])
            if number % 2 == 0 and _HEADER.unpack_from(self._memory, start)[0] == number:
                dump: Dump = json.loads(data) if data else {}
                return dump
        return {}

    def read_all(self) -> list[Dump]:
        """Return what is in every slot."""
        return [dump for slot in range(self.count) if (dump := self.read(slot))]
