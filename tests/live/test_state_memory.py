"""The memory of recent states: large rows are not copied with each write, and old states go before memory does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import Store, open_index
from scannery.live import recent_states
from scannery.live.log.homes import log_home
from scannery.live.log.mutation_log import LogEntry
from scannery.live.memtable import SMALL_BYTES, LiveState, begin
from scannery.live.recent_states import RecentStates
from scannery.live.replay import state_after
from tests.served import DIMENSIONS, copied

LARGE, LARGE_TEXT = 300, "word " * 4000
WRITES = 60


@pytest.fixture
def store(library: Path, tmp_path: Path) -> Path:
    return copied(library, tmp_path)


def written(store: Path, batches: Iterable[list[Any]]) -> tuple[LiveState, list[LogEntry]]:
    """Return the state before some upserts, and their records."""
    with scannery.connect(store) as client:
        for batch in batches:
            client.index("library").upsert(batch)
    opened = Store.open(store)
    log = log_home(opened, "library", store).open()
    assert log is not None
    entries = list(log.read(0))
    log.close()
    return begin(open_index(opened, "library")), entries


def point(name: str, text: str = "") -> dict[str, Any]:
    return {"id": name, "vector": np.ones(DIMENSIONS), "text": text}


def test_large_rows_are_not_copied_with_each_write(store: Path) -> None:
    large = [point(f"large{number}", LARGE_TEXT) for number in range(LARGE)]
    state, [first, *others] = written(store, [large, *([point("small")] for _ in range(WRITES))])
    state = state_after(state, [first])
    [run] = state.runs
    assert run.segment.size_bytes > SMALL_BYTES
    for entry in others:
        state = state_after(state, [entry])
        assert state.runs[0].segment is run.segment
        assert len(state.runs) == 2


def test_states_with_own_live_rows_are_dropped_before_they_take_much_memory(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 100_000
    monkeypatch.setattr(recent_states, "MAX_STATE_BYTES", most)
    state, entries = written(store, ([point(f"d{number}", f"{number}")] for number in range(WRITES)))
    recent = RecentStates(state, 0, lambda made: made.sequence, 0.0)
    recent.add(entries, 0.0)
    for entry in entries:
        assert recent.made(entry.sequence, 0.0) == entry.sequence
        assert besides_newest(recent) <= most
    assert 2 < len(recent._kept) < WRITES / 2
    assert [recent.made(entry.sequence, 0.0) for entry in entries] == [entry.sequence for entry in entries]
    assert besides_newest(recent) <= most


def besides_newest(recent: RecentStates[int]) -> int:
    """Return the memory of all parts of kept states that the newest does not have."""
    parts: dict[int, int] = {}
    for kept in recent._kept.values():
        parts |= kept.state.part_bytes
    newest = recent.newest.part_bytes
    return sum(size for part, size in parts.items() if part not in newest)
