"""Snapshots of running scans: kept five minutes after the last page, in a bounded number, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import Manifest
from scannery.runtime.retry import Deadline
from scannery.serving.catalog import held_snapshots
from scannery.serving.catalog.held_snapshots import (
    KEPT_S,
    LEASED_S,
    MAX_SNAPSHOTS,
    HeldSnapshot,
    HeldSnapshots,
)
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.engine.scanning.scan_result import ScanResult
from scannery.serving.request.scan import parse_scan
from scannery.serving.security.principal import CURRENT, Principal
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.search_pb2 import ScanRequest


@pytest.fixture(scope="module")
def snapshot(library: Path) -> Iterator[Snapshot]:
    catalog = open_embedded_catalog(library)
    yield catalog.snapshot("library")
    catalog.close()


@contextmanager
def called_by(name: str) -> Iterator[None]:
    token = CURRENT.set(Principal(name, frozenset({"read"})))
    try:
        yield
    finally:
        CURRENT.reset(token)


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def later(snapshot: Snapshot, sequence: int) -> Snapshot:
    return replace(snapshot, sequence=sequence)


def find(kept: HeldSnapshots, manifest: Manifest, version: int, sequence: int) -> HeldSnapshot | None:
    return kept.find(manifest.index, manifest.index_id, version, sequence, 0)


def test_a_snapshot_is_kept_five_minutes_after_its_last_page(snapshot: Snapshot) -> None:
    clock = Clock()
    kept = HeldSnapshots(clock)
    held = kept.hold(snapshot)
    assert kept.hold(later(snapshot, snapshot.sequence)) is held  # an equal one
    manifest = snapshot.manifest
    for _ in range(3):
        clock.now_s += KEPT_S - 1
        assert find(kept, manifest, manifest.version, snapshot.sequence) is held
    assert find(kept, manifest, manifest.version, 99) is None
    assert (
        find(kept, manifest.model_copy(update={"index_id": "x"}), manifest.version, snapshot.sequence) is None
    )
    clock.now_s += KEPT_S + 1
    kept.expire()
    assert len(kept) == 0


def test_the_version_and_the_log_are_leased_while_a_scan_runs(snapshot: Snapshot) -> None:
    clock = Clock()
    kept = HeldSnapshots(clock)
    version = snapshot.manifest.version
    assert kept.holds("library") == held_snapshots.Holds(frozenset(), None)
    kept.hold(snapshot)  # which has no mutations after its version
    assert kept.holds("library") == held_snapshots.Holds(frozenset({version}), None)
    kept.hold(later(snapshot, 7))
    assert kept.holds("library") == held_snapshots.Holds(frozenset({version}), 0)
    assert kept.holds("flat") == held_snapshots.Holds(frozenset(), None)
    while clock.now_s < LEASED_S:
        clock.now_s += KEPT_S - 1
        assert find(kept, snapshot.manifest, version, 7) is not None
    assert kept.holds("library") == held_snapshots.Holds(frozenset(), None)  # no scan keeps them for ever
    kept.forget("library")
    assert len(kept) == 0


def test_the_snapshot_that_was_read_longest_ago_is_dropped_first(snapshot: Snapshot) -> None:
    kept = HeldSnapshots(Clock())
    for sequence in range(MAX_SNAPSHOTS):
        kept.hold(later(snapshot, sequence))
    manifest = snapshot.manifest
    assert find(kept, manifest, manifest.version, 0) is not None
    kept.hold(later(snapshot, 1000))
    assert len(kept) == MAX_SNAPSHOTS
    assert find(kept, manifest, manifest.version, 0) is not None
    assert find(kept, manifest, manifest.version, 1) is None


def test_the_caller_that_holds_most_loses_its_own_snapshots(snapshot: Snapshot) -> None:
    kept, manifest = HeldSnapshots(Clock()), snapshot.manifest

    def read(name: str, sequence: int) -> bool:
        with called_by(name):
            return find(kept, manifest, manifest.version, sequence) is not None

    with called_by("modest"):
        kept.hold(later(snapshot, 0))
    for sequence in range(1, MAX_SNAPSHOTS + 7):
        with called_by("greedy"):
            kept.hold(later(snapshot, sequence))
    assert len(kept) == MAX_SNAPSHOTS
    assert read("modest", 0)
    # One that both read is lost by neither for the other.
    assert read("modest", 20)
    for sequence in range(100, 200):
        with called_by("greedy"):
            kept.hold(later(snapshot, sequence))
    assert read("modest", 0)
    assert read("modest", 20)
    assert not read("modest", 21)
    with called_by("greedy"):
        assert find(kept, manifest, manifest.version, 199) is not None


@pytest.mark.parametrize("limit", ["bytes", "number"])
def test_the_caller_with_most_results_loses_its_own(
    limit: str, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = HeldSnapshots(Clock())
    held = kept.hold(snapshot)

    def result(name: str, seed: int) -> ScanResult:
        request = ScanRequest(index="library", sample=100, seed=seed)
        query = parse_scan(request, snapshot.manifest.spec)
        with called_by(name):
            return kept.result(
                held, f"{name} {seed}".encode(), lambda: ScanResult(snapshot, query, Deadline.after(None))
            )

    first = result("modest", 1)
    monkeypatch.setattr(
        held_snapshots, "MAX_RESULT_BYTES", (4 if limit == "bytes" else 1000) * first.size_bytes
    )
    monkeypatch.setattr(held_snapshots, "MAX_RESULTS", 4 if limit == "number" else 1000)
    for seed in range(20):
        result("greedy", seed)
    assert result("modest", 1) is first
    assert len(held.results) == 4


def test_memory_of_snapshots_is_bounded(
    library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import scannery

    monkeypatch.setattr(held_snapshots, "MAX_BYTES", 200_000)
    with scannery.connect(tmp_path / "s", create=True) as client:
        index = client.create_index("t", dimensions=100)
        engine: Any = client._transport
        kept = engine._engine._service._catalog.held
        for turn in range(8):
            # Each time all rows in memory are new: 50 kB of them.
            index.upsert([{"id": i, "vector": [turn + 1.0] * 100} for i in range(100)])
            next(index.scan(page_size=1))
        assert 2 <= len(kept) <= 5
        assert kept._size_bytes() <= 200_000


@pytest.mark.parametrize("limit", ["bytes", "number"])
def test_results_beyond_their_memory_are_computed_again(
    limit: str, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = HeldSnapshots(Clock())
    held = kept.hold(snapshot)
    made: list[int] = []

    def result(seed: int) -> ScanResult:
        def make() -> ScanResult:
            made.append(seed)
            request = ScanRequest(index="library", sample=100, seed=seed)
            return ScanResult(snapshot, parse_scan(request, snapshot.manifest.spec), Deadline.after(None))

        return kept.result(held, str(seed).encode(), make)

    first = result(1)
    assert result(1) is first
    if limit == "bytes":
        monkeypatch.setattr(held_snapshots, "MAX_RESULT_BYTES", 3 * first.size_bytes)
    else:
        monkeypatch.setattr(held_snapshots, "MAX_RESULTS", 3)
    for seed in (2, 3, 1, 4):
        result(seed)
    assert made == [1, 2, 3, 4]
    result(2)  # 1 was used later
    assert made == [1, 2, 3, 4, 2]
    result(1)
    assert made == [1, 2, 3, 4, 2]
