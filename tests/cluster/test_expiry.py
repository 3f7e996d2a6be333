"""Datapoints expire by the clock of the machine: on one server, and on the leaves of a root."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import scannery
from scannery.client import Index
from scannery.indexer import Store, read_manifest
from scannery.live.maintenance.seal import seal
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
