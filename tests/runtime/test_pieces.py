"""Large buffers are joined in pieces."""

from __future__ import annotations

import io

import numpy as np
import pytest

from scannery.runtime.pieces import PIECE_BYTES, joined


@pytest.mark.parametrize(
    "sizes", [(), (0,), (3, 0, 5), (PIECE_BYTES,), (PIECE_BYTES + 1, 7), (5 * PIECE_BYTES, 1)]
)
def test_parts_are_joined(sizes: tuple[int, ...]) -> None:
    data = np.random.default_rng(0).integers(0, 256, sum(sizes), np.uint8)
    parts = np.split(data, np.cumsum(sizes)[:-1]) if sizes else []
    assert joined([part.tobytes() for part in parts]) == data.tobytes()
    assert joined([part.data for part in parts]) == data.tobytes()


def test_no_call_copies_much(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    class Recorded(io.BytesIO):
        def write(self, part: memoryview) -> int:  # type: ignore[override]
            sizes.append(len(part))
            return super().write(part)

    monkeypatch.setattr(io, "BytesIO", Recorded)
    whole = joined([bytes(10), bytes(10 * PIECE_BYTES)])
    assert sum(sizes) == len(whole) == 10 * PIECE_BYTES + 10
    assert max(sizes) == PIECE_BYTES
