"""Datapoints expire by the clock of the machine: on one server, and on the leaves of a root."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

import scannery
from scannery.client import Index
from scannery.indexer import Store, read_manifest
from scannery.live.maintenance.seal import seal
from scannery.runtime.times import WALL_SECONDS
from tests.cluster.servers import started_cluster
from tests.live.expiry.notes import EXPIRING, START, note, shown
from tests.served import serving

pytestmark = pytest.mark.system


@pytest.fixture(params=["server", "cluster"])
def index(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Index]:
    """Return an index of a server, or of a root with the leaves of two groups."""
    path = tmp_path / "store"
    with scannery.connect(path, create=True) as client:
        client.create_index(EXPIRING, dimensions=4)
    with ExitStack() as stack:
        if request.param == "server":
            address = stack.enter_context(serving(path)).address
        else:
            address = stack.enter_context(started_cluster(path, 2))[0].address
        yield stack.enter_context(scannery.connect(address)).index("notes")


def test_nothing_is_seen_from_its_second_on(index: Index, tmp_path: Path) -> None:
    store, begin = Store.open(tmp_path / "store"), int(time.time()) + 8
    ids = [f"n{number:02d}" for number in range(12)]
    # Half of them in a version, the others in memory; one never expires, and one is within a second.
    seconds = {name: begin + number // 2 + 0.5 * (number == 3) for number, name in enumerate(ids)}
    index.upsert([note(name, seconds[name] - START) for name in ids[:6]])
    assert seal(store, "notes") is not None
    index.upsert([note(name, seconds[name] - START) for name in ids[6:]])
    index.upsert([note("ever", None)])
    scan = index.scan(page_size=3)
    first = next(scan).id
    seen: set[str] = set()
    while time.time() < begin + 7:
        before = time.time()
        for method, names in shown(index, [*ids, "ever"]).items():
            if any("instead" in name for name in names):  # what is counted may have expired since
                continue
            late = {name for name in names - {"ever"} if seconds[name] <= int(before)}
            assert not late, method
            seen |= names
    assert seen == {*ids, "ever"}
    assert shown(index, [*ids, "ever"])["count"] == {"ever"}
    assert index.stats().rows == 1
    # Of a scan that began before, the pages are left that were read by then: one, and the next one ahead.
    assert len({point.id for point in scan} - {first, "ever"}) < 6
    # Writes at a root ask the leaves.
    with pytest.raises(scannery.NotFoundError):
        index.update([{"id": ids[0], "attributes": {"number": 1}}])
    assert index.upsert([note(ids[0], None, if_absent=True)]).written == 1
    assert index.delete(where={"number": 0}).deleted == 2
    report = seal(store, "notes")
    assert report is not None
    assert read_manifest(store, "notes").rows == 0


def test_pages_of_a_scan_have_the_clock_of_the_root(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with scannery.connect(path, create=True) as client:
        client.create_index(EXPIRING, dimensions=4)
    with started_cluster(path, 2) as (root, [leaves]), scannery.connect(root.address) as client:
        for leaf, ahead in zip(leaves, (100, -100), strict=True):
            leaf._catalog.seconds = partial(_shifted, ahead)
        index, second = client.index("notes"), int(time.time()) + 4
        index.upsert([note(f"soon{number}", second - START) for number in range(20)])
        index.upsert([note(f"later{number}", second + 40 - START) for number in range(20)])
        scan = index.scan(page_size=2)
        ids = [next(scan).id]
        while time.time() < second:
            time.sleep(0.1)
        ids += [point.id for point in scan]
    # Two pages were read by then.
    assert sum(name.startswith("soon") for name in ids) <= 4
    assert sum(name.startswith("later") for name in ids) == 20


def _shifted(ahead: int) -> int:
    return WALL_SECONDS() + ahead
