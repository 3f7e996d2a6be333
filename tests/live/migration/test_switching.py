"""Exchanges of contents, ended after each of their steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import scannery
from scannery.cli.commands.indexes.migration import Migration
from scannery.indexer import (
    AlreadyExistsError,
    IndexSpec,
    InUseError,
    Manifest,
    NotFoundError,
    Store,
    VectorsInfo,
    alter_index,
    collect_garbage,
    read_manifest,
)
from scannery.indexer.versions.leases import read_leases
from scannery.indexer.versions.versions import hold_current, republish, tombstone_key
from scannery.live.maintenance import scheduler
from scannery.live.maintenance.drop import drop
from scannery.live.maintenance.goals import Goal, Progress, is_due, set_goal, tell
from scannery.live.maintenance.main import run_task
from scannery.live.maintenance.replacement import Replacement
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.live.migration import following, mirrors, switching
from scannery.live.migration.conversion import Conversion, changed_spec
from scannery.live.migration.errors import MigrationError, MirrorBrokenError, UnencodableError
from scannery.live.migration.filling import convert_base, fill
from scannery.live.migration.following import Follower
from scannery.live.migration.mirrors import begin_mirror
from scannery.live.migration.switching import switch
from scannery.live.prepare import PreparedUpsert, prepare
from scannery.pipelines import compact
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.services import write
from tests.live.migration.traffic import INDEX, text_of
from tests.served import MINILM

pytestmark = pytest.mark.system
CHANGES: Mapping[str, Any] = {"encoder": {"model": MINILM, "dimensions": 64}}
DOCUMENTS = 40


class Migrated:
    """An index with a mirror that is filled."""

    def __init__(self, folder: Path) -> None:
        self.store, self.folder = Store.open(folder, create=True), folder
        self.client = scannery.connect(folder, create=True, timeout_s=120)
        self.index = self.client.create_index(INDEX, encoder=MINILM, lexical=True)
        self.encoders = EncoderPool(store=self.store.uri, device="cpu")
        self.write(range(DOCUMENTS))

    def vectors_of(self, spec: IndexSpec) -> dict[str, VectorsInfo]:
        prints = {
            name: self.encoders.fingerprint_of(encoder, field=name) for name, encoder in spec.encoders.items()
        }
        return {
            name: VectorsInfo(dimensions=each.dimensions, encoder=each.to_dict())
            for name, each in prints.items()
        }

    def write(self, numbers: range, revision: int = 0) -> int:
        return self.index.upsert(
            [{"id": f"d{number}", "text": text_of(number, revision)} for number in numbers]
        ).sequence

    def begin(self, changes: Mapping[str, Any] = CHANGES) -> Follower:
        mirror = begin_mirror(self.store, INDEX, changes, self.vectors_of)
        convert_base(self.store, mirror, self.encoders)
        fill(self.store, mirror)
        return Follower(self.store, mirror.index, self.encoders, self.vectors_of)

    @property
    def newest(self) -> scannery.Index:
        """The index as a new client opens it: one that is open looks for versions once a second."""
        time.sleep(1.1)
        return self.index

    def texts(self, name: str = INDEX) -> dict[str, str | None]:
        with scannery.connect(self.folder, timeout_s=120) as client:
            return {datapoint.id: datapoint.text for datapoint in client.index(name).scan()}


@pytest.fixture
def migrated(tmp_path: Path) -> Iterator[Migrated]:
    made = Migrated(tmp_path / "store")
    yield made
    made.client.close()


def test_an_exchange_and_back(migrated: Migrated) -> None:
    follower = migrated.begin()
    before = read_manifest(migrated.store, INDEX)
    sequence = migrated.write(range(10), revision=1)
    migrated.index.delete(["d39"])
    switched = switch(migrated.store, INDEX, follower)
    assert (switched.dimensions, switched.switches, before.dimensions) == (64, 1, 384)
    assert migrated.write(range(5), revision=2) > sequence
    expected = migrated.texts()
    assert expected["d0"] == text_of(0, 2) and expected["d9"] == text_of(9, 1) and "d39" not in expected
    assert migrated.newest.search(text_of(0, 2), k=1)[0].id == "d0"
    back = switch(migrated.store, INDEX, follower)
    assert (back.dimensions, back.encoder, back.spec) == (384, before.encoder, before.spec)
    assert migrated.texts() == expected
    assert migrated.newest.search(text_of(0, 2), k=1)[0].id == "d0"
    follower.follow()
    assert migrated.texts("talks-mirror") == expected


def test_a_mirror_catches_up_with_many_steps_of_the_same_length(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = migrated.begin()
    for number in range(8):
        sequence = migrated.write(range(number, number + 1), revision=1)
    monkeypatch.setattr(following, "READ_BYTES", 1)  # a step takes over a mutation
    monkeypatch.setattr(following, "NEAR_S", 0.0)
    assert follower.catch_up() == following.Position(sequence, 0)


def test_vectors_of_the_mirror_are_those_of_its_encoder(migrated: Migrated) -> None:
    follower = migrated.begin()
    migrated.write(range(3), revision=1)
    follower.follow()
    mirror = read_manifest(migrated.store, "talks-mirror")
    encoder = migrated.encoders.encoder_of(mirror)
    ids = ["d0", "d30"]
    stored = migrated.client.index("talks-mirror").get(ids, vectors=True)
    for datapoint in stored:
        assert datapoint is not None and datapoint.vector is not None
        [vector] = encoder.documents.encode_documents([datapoint.text or ""])
        assert np.allclose(datapoint.vector, vector, atol=1e-5)


@pytest.mark.parametrize("step", ["seal", "keep_source", "commit", "settle", "_share_files"])
def test_an_exchange_that_fails_at_any_step_loses_nothing(
    migrated: Migrated, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = migrated.begin()
    migrated.write(range(10), revision=1)

    with monkeypatch.context() as patch:
        patch.setattr(switching, step, ended)
        with pytest.raises(RuntimeError, match="ended here"):
            switch(migrated.store, INDEX, follower)
    migrated.write(range(10, 20), revision=2)
    expected = migrated.texts()
    assert len(expected) == DOCUMENTS and expected["d19"] == text_of(19, 2)
    switched = switch(migrated.store, INDEX, follower)
    migrated.write(range(20, 22), revision=3)
    follower.follow()
    assert (
        migrated.texts()
        == migrated.texts("talks-mirror")
        == expected | {f"d{number}": text_of(number, 3) for number in (20, 21)}
    )
    assert {switched.dimensions, read_manifest(migrated.store, "talks-mirror").dimensions} == {64, 384}


@pytest.mark.parametrize("kept", [True, False], ids=["while it is kept", "seven days later"])
def test_an_exchange_is_finished_by_its_own_versions(
    migrated: Migrated, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = migrated.begin()
    migrated.write(range(3), revision=1)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="ended here"):
        patch.setattr(switching, "_settle", ended)
        switch(migrated.store, INDEX, follower)
    for number in range(3, 6):
        migrated.write(range(number, number + 1), revision=2)
        seal(migrated.store, INDEX)
    for lease in migrated.store.list(f"{INDEX}/leases"):
        if not (kept and "talks-mirror" in lease.key):
            migrated.store.delete(lease.key)
    collect_garbage(migrated.store, INDEX, keep=1, min_age=timedelta(0))
    if not kept:
        with pytest.raises(NotFoundError, match="right before or after the exchange was removed: abandon"):
            Migration(migrated.store, INDEX, None).settle()
        return
    expected = migrated.texts()
    assert switch(migrated.store, INDEX, follower).dimensions == 384
    assert migrated.texts() == expected and expected["d3"] == text_of(3, 2)


def ended(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError("ended here")


@pytest.mark.parametrize("beside", ["a merge", "another process"])
def test_what_changes_the_mirror_at_the_end_of_an_exchange_does_not_repeat_it(
    migrated: Migrated, beside: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = migrated.begin()
    migrated.write(range(3), revision=1)
    finish = switching._settle

    def not_alone(*arguments: Any) -> None:
        monkeypatch.undo()
        if beside == "a merge":
            republish(migrated.store, read_manifest(migrated.store, "talks-mirror"))
        else:
            switching.settle(migrated.store, INDEX)
        finish(*arguments)

    monkeypatch.setattr(switching, "_settle", not_alone)
    assert switch(migrated.store, INDEX, follower).dimensions == 64
    sides = [read_manifest(migrated.store, name) for name in (INDEX, "talks-mirror")]
    assert [(side.dimensions, side.switches) for side in sides] == [(64, 1), (384, 0)]


def test_two_processes_make_one_exchange(migrated: Migrated, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (Migration(migrated.store, INDEX, None) for _ in range(2))
    first.begin(CHANGES)
    caught_up = Migration._caught_up

    def beside(migration: Migration, convert: Callable[[], None]) -> None:
        caught_up(migration, convert)
        monkeypatch.undo()
        second.switch()

    monkeypatch.setattr(Migration, "_caught_up", beside)
    first.switch()
    assert read_manifest(migrated.store, INDEX).switches == 1
    with pytest.raises(MigrationError, match="another process has exchanged"):
        switch(migrated.store, INDEX, first._follower, switches=0)
    assert migrated.write(range(1), revision=1)
    assert read_manifest(migrated.store, INDEX).dimensions == 64


def test_writes_go_on_although_an_exchange_was_killed_after_its_mark(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = migrated.begin()
    monkeypatch.setattr(scheduler, "MARKED_S", 1.0)
    switching._mark(migrated.store, INDEX, None)
    migrated.write(range(5), revision=1)
    assert migrated.texts()["d4"] == text_of(4, 1)
    follower.follow()
    assert migrated.texts("talks-mirror") == migrated.texts()


def test_an_index_is_opened_although_its_log_has_a_mark(migrated: Migrated) -> None:
    migrated.begin()
    switching._mark(migrated.store, INDEX, None)
    with scannery.connect(migrated.folder, timeout_s=120) as other:
        assert len(list(other.index(INDEX).scan())) == DOCUMENTS


def test_attributes_that_are_added_meanwhile_are_in_both(migrated: Migrated) -> None:
    follower = migrated.begin()
    migrated.index.alter(attributes={"year": "int"})
    migrated.index.upsert([{"id": "d1", "text": "alpha", "attributes": {"year": 2021}}])
    switch(migrated.store, INDEX, follower)
    assert [each.id for each in migrated.newest.scan(where={"year": 2021})] == ["d1"]


def test_named_vectors_that_are_added_within_an_exchange_are_in_both(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = migrated.begin()

    def altered(manifest: Manifest) -> IndexSpec:
        named = {"heading": {"encoder": {"model": MINILM}, "from": "title"}}
        return changed_spec(manifest.spec, {"named_vectors": named}, INDEX)

    def altered_first(*arguments: Any) -> Any:
        monkeypatch.undo()
        alter_index(migrated.store, INDEX, altered, named=lambda spec, name: migrated.vectors_of(spec)[name])
        return hold_current(*arguments)

    monkeypatch.setattr(switching, "hold_current", altered_first)
    assert {*switch(migrated.store, INDEX, follower).vectors} == {"", "heading"}
    migrated.index.upsert([{"id": "d1", "text": "alpha", "title": "rivers"}])
    assert migrated.newest.search("rivers", k=1, vectors="heading")[0].id == "d1"


def test_a_mirror_takes_no_writes(migrated: Migrated) -> None:
    migrated.begin()
    mirror = migrated.client.index("talks-mirror")
    with pytest.raises(scannery.ScanneryError, match="it follows 'talks'"):
        mirror.upsert([{"id": "x", "text": "alpha"}])
    with pytest.raises(scannery.ScanneryError, match="it follows 'talks'"):
        mirror.alter(attributes={"year": "int"})


def test_other_changes_than_those_begun_are_refused(migrated: Migrated) -> None:
    migrated.begin()
    with pytest.raises(MigrationError, match="with other changes"):
        begin_mirror(migrated.store, INDEX, {"encoder": {"model": MINILM}}, migrated.vectors_of)
    with pytest.raises(MigrationError, match="is the mirror of 'talks'"):
        begin_mirror(migrated.store, "talks-mirror", CHANGES, migrated.vectors_of)
    with pytest.raises(MigrationError, match="a migration changes encoder"):
        begin_mirror(migrated.store, INDEX, {"attributes": {}}, migrated.vectors_of)


def test_the_changes_that_were_begun_go_on_after_an_exchange_and_back(migrated: Migrated) -> None:
    follower = migrated.begin()
    assert begin_mirror(migrated.store, INDEX, CHANGES, migrated.vectors_of).index == "talks-mirror"
    for _ in range(2):
        switch(migrated.store, INDEX, follower)
        assert begin_mirror(migrated.store, INDEX, CHANGES, migrated.vectors_of).index == "talks-mirror"


def test_passages_that_were_cut_before_an_exchange_do_not_stand_beside_the_new_ones(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = migrated.begin({"chunk": {"max_tokens": 8, "overlap_tokens": 0}})

    def exchanges_meanwhile(*arguments: Any) -> PreparedUpsert:
        prepared = prepare(*arguments)
        if read_manifest(migrated.store, INDEX).switches == 0:
            switch(migrated.store, INDEX, follower)
            migrated.newest.search(text_of(0, 0))
        return prepared

    monkeypatch.setattr(write, "prepare", exchanges_meanwhile)
    migrated.write(range(1, 2), revision=1)
    passages = [each for each in migrated.newest.scan() if each.document_id == "d1"]
    assert [each.id for each in passages] == ["d1#0", "d1#1"]
    assert " ".join(each.text or "" for each in passages) == text_of(1, 1)


def test_a_mirror_that_follows_is_not_filled_again(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = begin_mirror(migrated.store, INDEX, CHANGES, migrated.vectors_of)
    convert_base(migrated.store, mirror, migrated.encoders)
    publish = Replacement.publish
    filled: list[bool] = []

    def published_last(*arguments: Any, **options: Any) -> Any:
        if not filled:
            filled.append(True)
            fill(migrated.store, mirror)
        return publish(*arguments, **options)

    monkeypatch.setattr(Replacement, "publish", published_last)
    with pytest.raises(MigrationError, match="another process has filled"):
        fill(migrated.store, mirror)


def test_a_mirror_does_not_follow_a_rollback(migrated: Migrated) -> None:
    seal(migrated.store, INDEX)
    follower = migrated.begin()
    migrated.write(range(5), revision=1)
    seal(migrated.store, INDEX)
    rollback(migrated.store, INDEX, 2)
    with pytest.raises(MirrorBrokenError, match="rolled back"):
        follower.follow()


def test_a_compaction_does_not_open_the_way_to_versions_before_an_exchange(migrated: Migrated) -> None:
    follower = migrated.begin()
    before = read_manifest(migrated.store, INDEX).version
    switch(migrated.store, INDEX, follower)
    migrated.write(range(5), revision=1)
    seal(migrated.store, INDEX)
    assert not compact(INDEX, migrated.store.uri).up_to_date
    with pytest.raises(InUseError, match="before its contents were exchanged"):
        rollback(migrated.store, INDEX, before)
    with pytest.raises(MirrorBrokenError, match="compacted"):
        follower.follow()


def test_a_mirror_that_is_compacted_stays_one(migrated: Migrated) -> None:
    follower = migrated.begin()
    migrated.write(range(5), revision=1)
    follower.follow()
    seal(migrated.store, "talks-mirror")
    assert not compact("talks-mirror", migrated.store.uri).up_to_date
    migrated.write(range(5, 9), revision=2)
    expected = migrated.texts()
    assert switch(migrated.store, INDEX, follower).dimensions == 64
    assert migrated.texts() == migrated.texts("talks-mirror") == expected


def test_a_datapoint_without_text_is_told(migrated: Migrated) -> None:
    migrated.index.upsert([{"id": "bare", "vector": [0.5] * 384}])
    with pytest.raises(UnencodableError, match="'bare' cannot get a vector of the new encoder.*and go on"):
        migrated.begin()


def test_texts_are_cut_anew(migrated: Migrated) -> None:
    follower = migrated.begin({"chunk": {"max_tokens": 8, "overlap_tokens": 0}})
    migrated.write(range(3), revision=1)
    migrated.index.delete(["d7"])
    switch(migrated.store, INDEX, follower)
    passages = [*migrated.newest.scan()]
    assert len(passages) > DOCUMENTS
    assert len({passage.document_id for passage in passages}) == DOCUMENTS - 1
    first = [passage.text or "" for passage in passages if passage.document_id == "d1"]
    assert " ".join(first).split() == text_of(1, 1).split()
    switch(migrated.store, INDEX, follower)
    assert migrated.texts()["d1"] == text_of(1, 1)
    assert len(migrated.texts()) == DOCUMENTS - 1


def test_two_followers_do_the_work_of_one(migrated: Migrated) -> None:
    first = migrated.begin()
    second = Follower(migrated.store, "talks-mirror", migrated.encoders, migrated.vectors_of)
    for revision in range(1, 6):
        migrated.write(range(8), revision)
    with ThreadPoolExecutor(2) as pool:
        positions = [*pool.map(lambda each: each.follow(), (first, second))]
    assert len({*positions}) == 1
    assert migrated.texts("talks-mirror") == migrated.texts()


def test_who_comes_second_leaves_the_lease_of_the_first(migrated: Migrated) -> None:
    mirror = begin_mirror(migrated.store, INDEX, CHANGES, migrated.vectors_of)
    with pytest.raises(AlreadyExistsError):
        mirrors._new_mirror(migrated.store, INDEX, CHANGES, migrated.vectors_of)
    assert mirror.mirror is not None
    assert mirror.mirror.base in read_leases(migrated.store, INDEX).versions


def test_nothing_is_written_for_a_mirror_that_was_abandoned(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = begin_mirror(migrated.store, INDEX, CHANGES, migrated.vectors_of)
    rows_of = Conversion.rows

    def abandoned_meanwhile(conversion: Conversion, rows: pa.Table) -> pa.Table:
        Migration(migrated.store, INDEX, None).abandon()
        return rows_of(conversion, rows)

    monkeypatch.setattr(Conversion, "rows", abandoned_meanwhile)
    with pytest.raises(NotFoundError, match="another process has abandoned"):
        convert_base(migrated.store, mirror, migrated.encoders)
    assert what_is_left(migrated.store) == []


def test_garbage_collection_removes_what_was_shared_with_a_mirror_that_was_abandoned(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = migrated.begin()
    migrated.index.alter(live={"gc_min_age_s": 0.0})
    share = switching._share_files

    def abandoned_first(store: Store, manifest: Manifest, name: str) -> None:
        if name == "talks-mirror":
            Migration(store, INDEX, None).abandon()
        share(store, manifest, name)

    monkeypatch.setattr(switching, "_share_files", abandoned_first)
    with pytest.raises(NotFoundError):
        switch(migrated.store, INDEX, follower)
    assert what_is_left(migrated.store)
    run_task("gc", migrated.store, INDEX, log_root=None)
    assert what_is_left(migrated.store) == []


def test_a_removal_that_was_killed_is_gone_on_with(migrated: Migrated) -> None:
    migrated.begin()
    migrated.store.write(tombstone_key("talks-mirror"), b"{}")
    Migration(migrated.store, INDEX, None).abandon()
    assert what_is_left(migrated.store) == []
    with pytest.raises(NotFoundError, match="not being migrated"):
        Migration(migrated.store, INDEX, None).abandon()


@pytest.mark.parametrize("killed", [False, True])
def test_a_mirror_that_is_dropped_keeps_nothing_of_its_index(migrated: Migrated, killed: bool) -> None:
    migrated.begin()
    assert what_is_left(migrated.store)
    if killed:
        migrated.store.write(tombstone_key("talks-mirror"), b"{}")
    drop(migrated.store, "talks-mirror", force=True)
    assert what_is_left(migrated.store) == []


def test_an_error_is_told_until_a_process_has_none(migrated: Migrated) -> None:
    migrated.begin()
    store, mirror = migrated.store, read_manifest(migrated.store, "talks-mirror")
    set_goal(store, mirror.index, Goal.MIRROR)
    sequence = read_manifest(store, INDEX).log_sequence
    assert not is_due(store, mirror, sequence)
    tell(store, mirror.index, Progress(error="another process has filled it"))
    assert is_due(store, mirror, sequence)


def test_a_mirror_outlives_its_index(migrated: Migrated) -> None:
    migrated.begin()
    drop(migrated.store, INDEX, force=True)
    with pytest.raises(NotFoundError, match="was dropped: abandon the migration"):
        switching.settle(migrated.store, INDEX)
    Migration(migrated.store, INDEX, None).abandon()
    assert what_is_left(migrated.store) == []


def what_is_left(store: Store) -> list[str]:
    """Return the keys of what a migration keeps."""
    items = [*store.list("talks-mirror"), *store.list(f"{INDEX}/leases")]
    return [item.key for item in items if "talks-mirror" in item.key]
