"""Columns that an index gets while others write: who does not know them yet, takes none from a row.

The servers here look for versions only when a test says so; real ones do each second.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.client import Datapoint, Index
from scannery.indexer import (
    SegmentCache,
    ShardGroup,
    Store,
    altered_spec,
    read_manifest,
    rollback,
    verify,
    written_schema,
)
from scannery.live.leaf_index import LeafIndex
from scannery.live.log.mutation_log import Answer
from scannery.live.log.records import Mutation, columns_version_of, decode, encode, rows_fit
from scannery.live.log.sqlite_log import SqliteLog
from scannery.live.maintenance.copies import snapshot
from scannery.live.maintenance.seal import seal
from scannery.live.writing.group_commit import Write, Writer
from scannery.pipelines import build
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.roles import leaf_catalog
from scannery.serving.snapshot.snapshot import Snapshot
from tests.model.actors import LocalActor

pytestmark = pytest.mark.system

DIMENSIONS = 2
VECTOR = [1.0, 2.0]
NAMED = [3.0, 4.0, 5.0]
ADDED: dict[str, dict[str, Any]] = {
    "attribute": {"attributes": {"added": "int"}},
    "named vector": {"named_vectors": {"added": {"dimensions": 3}}},
    "dynamic": {"dynamic": True},
}
POINTS: dict[str, Any] = {
    "attribute": {"attributes": {"added": 7, "stamp": 1}},
    "named vector": {"attributes": {"stamp": 1}, "vectors": {"added": NAMED}},
    "dynamic": {"attributes": {"stamp": 1, "free": "text"}},
}


def new_x(what: str) -> Any:
    return {"id": "x", "vector": VECTOR} | POINTS[what]


def row_x(index: Index) -> Datapoint:
    [row] = index.get(["x"], vectors=True)
    assert row is not None
    return row


def by_id(index: Index) -> object:
    return index.update([{"id": "x", "attributes": {"stamp": 2}}])


def by_filter(index: Index) -> object:
    return index.update(where={"stamp": 1}, attributes={"stamp": 2})


def blind(index: Index) -> object:
    return index.upsert([{"id": "y", "vector": VECTOR, "attributes": {"stamp": 2}}])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index("altered", dimensions=DIMENSIONS, attributes={"stamp": "int"})
        index.upsert([{"id": name, "vector": VECTOR, "attributes": {"stamp": 0}} for name in ("x", "z")])
    return tmp_path / "store"


@pytest.fixture
def actor(path: Path) -> Iterator[Callable[[str], LocalActor]]:
    with ExitStack() as stack:

        def opened(name: str) -> LocalActor:
            made = LocalActor.opened(name, path, "altered", SegmentCache(path.parent / "cache"))
            stack.callback(made.close)
            return made

        yield opened


@pytest.mark.parametrize("late", ["s2", "e2"])
@pytest.mark.parametrize("write", [by_id, by_filter, blind])
@pytest.mark.parametrize("what", list(ADDED))
def test_a_process_of_the_version_before_keeps_new_columns(
    actor: Callable[[str], LocalActor], what: str, write: Callable[[Index], object], late: str
) -> None:
    first, second = actor("s1"), actor(late)
    second.index.stats()
    first.index.alter(**ADDED[what])
    first.index.upsert([new_x(what)])
    write(second.index)
    second.look()
    for each in (second, actor("e1")):
        row = row_x(each.index)
        wanted = POINTS[what]["attributes"] | ({} if write is blind else {"stamp": 2})
        assert row.attributes == wanted
        assert {name: list(vector) for name, vector in row.vectors.items()} == POINTS[what].get("vectors", {})


@pytest.mark.parametrize(("before", "after", "point"), [
    ({"attributes": {"added": "string"}}, ADDED["attribute"], {"attributes": {"added": "text"}}),
    (ADDED["named vector"], {"named_vectors": {"added": {"dimensions": 4}}}, {"vectors": {"added": NAMED}}),
], ids=["attribute", "named vector"])  # fmt: skip
def test_no_process_writes_for_columns_of_before_once_others_are_there(
    actor: Callable[[str], LocalActor], path: Path, before: Any, after: Any, point: Any
) -> None:
    first = actor("s1")
    first.index.alter(**before)
    first.look()
    second = actor("s2")
    rollback(Store.open(path), "altered", 1)
    first.look()
    assert first.index.alter(**after).version == 4
    with pytest.raises(scannery.InvalidArgumentError, match="added"):
        second.index.upsert([{"id": "y", "vector": VECTOR} | point])
    first.look()
    done = first.index.upsert([{"id": "w", "vector": VECTOR}])
    assert [row is not None for row in actor("e1").index.get(["x", "y", "w"])] == [True, False, True]
    first.index.alter(**after)  # changes nothing
    assert first.index.upsert([{"id": "w", "vector": VECTOR}]).sequence == done.sequence + 1


def test_two_changes_in_a_row_reach_a_writer_of_before(actor: Callable[[str], LocalActor]) -> None:
    first, second = actor("s1"), actor("s2")
    first.index.alter(**ADDED["attribute"])
    first.index.upsert([new_x("attribute")])
    first.index.alter(**ADDED["named vector"])
    first.index.update([{"id": "x", "vectors": {"added": NAMED}}])
    by_id(second.index)
    row = row_x(second.index)
    assert row.attributes == {"added": 7, "stamp": 2}
    assert list(row.vectors["added"]) == NAMED


def test_a_seal_does_not_hide_a_change_from_a_writer_of_before(
    actor: Callable[[str], LocalActor], path: Path
) -> None:
    first, second = actor("s1"), actor("s2")
    first.index.alter(**ADDED["attribute"])
    first.index.upsert([new_x("attribute")])
    seal(Store.open(path), "altered")
    by_filter(second.index)
    row = row_x(second.index)
    assert row.attributes == {"added": 7, "stamp": 2}


def test_a_follower_shows_no_row_without_its_columns(actor: Callable[[str], LocalActor]) -> None:
    first, second = actor("s1"), actor("s2")
    first.index.alter(**ADDED["attribute"])
    done = first.index.upsert([new_x("attribute")])
    live = second.catalog.live("altered")
    live.catch_up()
    assert live.superseded
    assert live.snapshot.sequence < done.sequence
    # Whoever asks for the write gets it whole.
    assert second.catalog.snapshot(
        "altered", min_sequence=done.sequence, deadline=Deadline.after(10)
    ).sequence
    assert row_x(second.index).attributes == POINTS["attribute"]["attributes"]


def test_a_write_that_waits_while_the_columns_change_is_prepared_again(
    actor: Callable[[str], LocalActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = actor("s1"), actor("s2")
    submit, changes = Writer.submit, [ADDED["attribute"]]

    def delayed(writer: Writer, write: Write, deadline: Deadline) -> Answer:
        if changes:
            first.index.alter(**changes.pop())
            first.index.upsert([new_x("attribute")])
        return submit(writer, write, deadline)

    monkeypatch.setattr(Writer, "submit", delayed)
    by_id(second.index)
    row = row_x(second.index)
    assert row.attributes == {"added": 7, "stamp": 2}


def test_a_backup_of_a_version_has_no_log_of_a_later_one(
    actor: Callable[[str], LocalActor], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, copy, changes = actor("s1"), SqliteLog.copy_to, [ADDED["attribute"]]

    def altered(log: SqliteLog, target: Path, *, after: int) -> None:
        if changes:
            first.index.alter(**changes.pop())
            first.index.upsert([new_x("attribute")])
        copy(log, target, after=after)

    monkeypatch.setattr(SqliteLog, "copy_to", altered)
    snapshot(Store.open(path), "altered", Store.open(path.parent / "backup", create=True))
    with scannery.connect(path.parent / "backup") as client:
        assert row_x(client.index("altered")).attributes == POINTS["attribute"]["attributes"]


def test_records_of_earlier_releases_fit_any_version(path: Path) -> None:
    manifest = read_manifest(Store.open(path), "altered")
    rows = written_schema(manifest.spec, manifest.dimensions).empty_table()
    record = encode(replace(Mutation.of(rows, manifest), columns_version=0))
    assert b"columns_version" not in record
    assert decode(record, sequence=1).columns_version == columns_version_of(record) == 0
    assert rows_fit(decode(record, sequence=1), manifest, sequence=1).rows.num_rows == 0


def test_the_version_of_the_columns_is_that_of_the_last_change(
    path: Path, actor: Callable[[str], LocalActor]
) -> None:
    store, index = Store.open(path), actor("s1").index
    seal(store, "altered")
    assert (read_manifest(store, "altered").version, read_manifest(store, "altered").columns_version) == (
        2,
        1,
    )
    index.alter(**ADDED["attribute"])
    assert read_manifest(store, "altered").columns_version == 3
    index.alter(target_recall=0.9)
    assert (read_manifest(store, "altered").version, read_manifest(store, "altered").columns_version) == (
        4,
        3,
    )
    rollback(store, "altered", 2)
    assert read_manifest(store, "altered").columns_version == 5


@pytest.mark.parametrize("names", [["x"], ["x", "z"]])
def test_a_segment_whose_rows_are_all_deleted_is_sound(
    path: Path, actor: Callable[[str], LocalActor], names: list[str]
) -> None:
    store, index = Store.open(path), actor("s1").index
    index.alter(**ADDED["named vector"])
    index.update([{"id": "x", "vectors": {"added": NAMED}}])
    seal(store, "altered")
    index.upsert([{"id": "y", "vector": VECTOR}])
    seal(store, "altered")
    index.delete(names)
    seal(store, "altered")
    assert verify(store, "altered").problems == ()


@pytest.mark.parametrize("write", [by_id, by_filter])
def test_a_build_with_a_further_attribute_loses_none_of_its_values(
    actor: Callable[[str], LocalActor], path: Path, write: Callable[[Index], object]
) -> None:
    first, second = actor("s1"), actor("s2")
    spec = read_manifest(Store.open(path), "altered").spec
    (path.parent / "rows.jsonl").write_text(json.dumps({"id": "b", "vector": VECTOR, "stamp": 0, "added": 1}))
    build(altered_spec(spec, ADDED["attribute"]), [str(path.parent / "rows.jsonl")], str(path), before=seal)
    first.look()
    first.index.upsert([new_x("attribute")])
    write(second.index)
    rows = second.index.get(["x", "b"])
    assert [row.attributes for row in rows if row] == [{"added": 7, "stamp": 2}, {"added": 1, "stamp": 0}]


def leaf_index(leaf: Catalog) -> LeafIndex[Snapshot]:
    index = leaf.live("altered")
    assert isinstance(index, LeafIndex)
    return index


def test_a_leaf_stops_at_the_first_record_of_later_columns(
    actor: Callable[[str], LocalActor], path: Path
) -> None:
    first, leaf = actor("s1"), leaf_catalog(Store.open(path), ShardGroup(0, 1))
    leaf.refresh()
    try:
        before = leaf_index(leaf)
        known = first.index.upsert([{"id": "w", "vector": VECTOR}]).sequence
        first.index.alter(**ADDED["attribute"])
        done = first.index.upsert([new_x("attribute")]).sequence
        before.catch_up()
        assert (before.position, before.superseded) == (known, True)
        assert before.at(known, Deadline.after(10)) is not None
        assert before.at(done, Deadline.after(10)) is None
        leaf.refresh()
        assert leaf_index(leaf).at(done, Deadline.after(10)) is not None
        assert before.at(known, Deadline.after(10)) is not None
    finally:
        leaf.close()
