"""The states of a leaf: each sequence of the last seconds can be had, and the rest is let go of."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import ShardGroup, Store, open_index, shard_of
from scannery.live import recent_states
from scannery.live.leaf_index import LeafIndex
from scannery.live.log.homes import log_home
from scannery.live.log.mutation_log import LogEntry
from scannery.live.memtable import SMALL_BYTES, LiveState, begin, state_after
from scannery.live.recent_states import RecentStates
from scannery.runtime.retry import Deadline
from tests.served import DIMENSIONS, copied

pytestmark = pytest.mark.system

Rows = list[tuple[str, int]]
WRITES = 60
GROUP = ShardGroup(1, 3)
LARGE, LARGE_TEXT = 300, "word " * 4000
UPSERTS = 60


@pytest.fixture
def store(library: Path, tmp_path: Path) -> Path:
    return copied(library, tmp_path)


def write(index: scannery.Index, number: int) -> int:
    """Write a batch that depends on the number alone, and return its sequence."""
    chosen = random.Random(number)
    ids = list(dict.fromkeys(f"d{chosen.randrange(620)}" for _ in range(chosen.randrange(1, 30))))
    if number % 5 == 4:
        return index.delete(ids[:5], document_ids=[f"doc{number}"] if number % 2 else []).sequence
    vectors_ND = np.random.default_rng(number).standard_normal((len(ids), DIMENSIONS)).astype(np.float32)
    points: list[Any] = [
        {
            "id": name,
            "document_id": f"doc{chosen.randrange(99)}",
            "vector": vector_D,
            "attributes": {"year": number},
        }
        for name, vector_D in zip(ids, vectors_ND, strict=True)
    ]
    return index.upsert(points).sequence


def rows_of(state: LiveState) -> Rows:
    """Return id and row of a state's live rows: in which segment they are depends on how it was made."""
    found: Rows = []
    index = state.opened()
    for segment, alive in zip(index.segments, index.alive, strict=True):
        numbers = range(segment.rows) if alive is None else alive.rows.tolist()
        years, ids = segment.column("year").to_pylist(), segment.ids.to_pylist()
        found += [(ids[row], years[row]) for row in numbers]
    return sorted(found, key=repr)


@pytest.fixture
def written(store: Path) -> Iterator[tuple[LeafIndex[LiveState], list[Rows]]]:
    """A leaf that followed random writes, and the rows of its group after each."""
    opened = Store.open(store)
    version = open_index(opened, "library", shards=GROUP)
    home = log_home(opened, "library", store)
    made: dict[int, LiveState] = {}

    class Index(LeafIndex[LiveState]):
        def _snapshot_of(self, state: LiveState) -> LiveState:
            made[state.sequence] = state
            return state

        def _snapshot(self) -> LiveState:
            return self._state

    leaf = Index(version, lambda index, sequence: begin(index), home=home, shards=GROUP)
    with scannery.connect(store) as client:
        for number in range(WRITES):
            assert write(client.index("library"), number) == number + 1
            if number % 7 == 0:
                leaf.catch_up(now=True)
        leaf.catch_up(now=True)
        state, expected = begin(version, GROUP), [rows_of(begin(version, GROUP))]
        log = home.open()
        assert log is not None
        for entry in log.read(0):
            state = state_after(state, [entry])
            expected.append(rows_of(state))
        log.close()
        yield leaf, expected
    leaf.close()


def test_each_sequence_in_any_order(written: tuple[LeafIndex[LiveState], list[Rows]]) -> None:
    leaf, expected = written
    assert len(expected) == WRITES + 1
    order = list(range(WRITES + 1))
    random.Random(3).shuffle(order)
    for sequence in order:
        state = leaf.at(sequence, Deadline.after(10))
        assert state is not None
        assert state.sequence == sequence
        assert rows_of(state) == expected[sequence]
    assert leaf.at(WRITES + 1, Deadline.after(1)) is None
    documents = leaf.state.runs[0].segment.column("document_id").to_pylist()
    shards = {shard_of(name, leaf.state.manifest.shards) for name in documents}
    assert all(GROUP.has(shard) for shard in shards), "only rows of the group are kept"


def test_a_write_of_a_moment_ago_is_read_at_once(store: Path) -> None:
    opened = Store.open(store)
    version = open_index(opened, "library", shards=GROUP)
    with scannery.connect(store) as client:
        leaf: LeafIndex[Any] = LeafIndex(
            version, lambda index, sequence: sequence, home=log_home(opened, "library", store), shards=GROUP
        )
        sequence = write(client.index("library"), 1)
        assert leaf.at(sequence, Deadline.after(10)) == sequence
        assert leaf.position == sequence
        leaf.close()


def test_what_was_read_is_there_while_the_log_does_not_answer(
    written: tuple[LeafIndex[LiveState], list[Rows]], monkeypatch: pytest.MonkeyPatch
) -> None:
    leaf, expected = written
    asked, answers = threading.Event(), threading.Event()

    def hangs(*, now: bool = False) -> bool:
        asked.set()
        return not answers.wait(30)

    monkeypatch.setattr(leaf._log, "changed", hangs)
    follower = threading.Thread(target=leaf.catch_up)
    follower.start()
    try:
        assert asked.wait(10)
        state = leaf.at(WRITES - 3, Deadline.after(5))
        assert state is not None
        assert rows_of(state) == expected[WRITES - 3]
        assert leaf.at(WRITES + 1, Deadline.after(20)) is None, "the root can read another state in time"
        assert not answers.is_set()
    finally:
        answers.set()
    follower.join()


class Recent:
    """Recent states of deletions that remove nothing, with a clock."""

    def __init__(self, store: Path) -> None:
        with scannery.connect(store) as client:
            for _ in range(200):
                client.index("library").delete(["none"])
        opened = Store.open(store)
        state = begin(open_index(opened, "library"))
        log = log_home(opened, "library", store).open()
        assert log is not None
        self.entries: list[LogEntry] = list(log.read(0))
        log.close()
        self.states = RecentStates(state, 0, lambda made: made.sequence, 0.0)


def test_old_states_and_records_are_let_go_of(store: Path) -> None:
    recent = Recent(store)
    states = recent.states
    for number in range(100):
        states.add([recent.entries[number]], float(number))
        assert states.made(number + 1, float(number)) == number + 1
    # Asked for within 10 s, and one before them.
    assert states.made(90, 99.0) == 90
    assert states.made(80, 99.0) is None
    assert len(states._kept) <= 13
    assert len(states._entries) <= 12


def test_states_that_are_asked_for_stay(store: Path) -> None:
    recent = Recent(store)
    states = recent.states
    for number in range(40):
        states.add([recent.entries[number]], float(number))
        states.made(number + 1, float(number))
        assert states.snapshot(1, float(number)) == 1
    assert states.made(2, 40.0) == 2, "made again from the first"


def test_many_states_in_a_moment(store: Path) -> None:
    # More than are kept: a request that began at the first one and asks again a moment later must have it.
    recent = Recent(store)
    states = recent.states
    for number in range(200):
        now_s = number / 100
        states.add([recent.entries[number]], now_s)
        assert states.made(number + 1, now_s) == number + 1
        assert len(states._kept) <= recent_states.MAX_STATES
    for number in range(201):
        assert states.made(number, 2.0) == number


def test_there_are_bounds(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_states, "MAX_STATES", 5)
    recent = Recent(store)
    for number in range(50):
        recent.states.add([recent.entries[number]], 0.0)
        recent.states.made(number + 1, 0.0)
        assert len(recent.states._kept) <= 5
    assert len(recent.states._entries) == 50, "for as long as a request may ask for them"
    monkeypatch.setattr(recent_states, "MAX_RECORD_BYTES", len(recent.entries[0].data) * 2 + 1)
    recent.states.add([recent.entries[50]], 0.0)
    recent.states.made(51, 0.0)
    assert len(recent.states._entries) <= 2


def test_records_that_no_query_asks_for_are_applied(store: Path) -> None:
    recent = Recent(store)
    recent.states.add(recent.entries[:3], 1.0)
    assert not recent.states.due(1.05)
    assert recent.states.due(1.2)
    assert recent.states.made(3, 1.2) == 3
    assert not recent.states.due(9.0)


def records_of(store: Path, batches: Iterable[list[Any]]) -> tuple[LiveState, list[LogEntry]]:
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
    state, [first, *others] = records_of(store, [large, *([point("small")] for _ in range(UPSERTS))])
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
    state, entries = records_of(store, ([point(f"d{number}", f"{number}")] for number in range(UPSERTS)))
    recent = RecentStates(state, 0, lambda made: made.sequence, 0.0)
    recent.add(entries, 0.0)
    for entry in entries:
        assert recent.made(entry.sequence, 0.0) == entry.sequence
        assert besides_newest(recent) <= most
    assert 2 < len(recent._kept) < UPSERTS / 2
    assert [recent.made(entry.sequence, 0.0) for entry in entries] == [entry.sequence for entry in entries]
    assert besides_newest(recent) <= most


def besides_newest(recent: RecentStates[int]) -> int:
    """Return the memory of all parts of kept states that the newest does not have."""
    parts: dict[int, int] = {}
    for kept in recent._kept.values():
        parts |= kept.state.part_bytes
    newest = recent.newest.part_bytes
    return sum(size for part, size in parts.items() if part not in newest)
