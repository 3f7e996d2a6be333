"""An index is built, compacted or rolled back while it is migrated: its mirror begins again, and reuses vectors."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.cli.commands.indexes.migration import Migration
from scannery.embed import Encoder
from scannery.indexer import Manifest, Store, alter_index, read_manifest
from scannery.indexer.versions.leases import read_leases
from scannery.indexer.versions.versions import hold_current
from scannery.live.maintenance.drop import drop
from scannery.live.maintenance.goals import Goal, is_due, progress_of, set_goal, tell_problem
from scannery.live.maintenance.replacement import Replacement
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.live.migration import filling, mirrors, switching
from scannery.live.migration.conversion import Conversion
from scannery.live.migration.errors import (
    MigrationError,
    MirrorBrokenError,
    MirrorRenewedError,
    UnencodableError,
)
from scannery.live.migration.filling import convert_base
from scannery.live.migration.mirrors import mirror_of, renew_mirror
from scannery.pipelines import build, compact
from tests.live.migration.test_switching import CHANGES, DOCUMENTS, Migrated, ended
from tests.live.migration.traffic import INDEX, text_of
from tests.served import MINILM

pytestmark = pytest.mark.system
CUT: Mapping[str, Any] = {"encoder": CHANGES["encoder"], "chunk": {"max_tokens": 8, "overlap_tokens": 0}}


@pytest.fixture
def migrated(tmp_path: Path) -> Iterator[Migrated]:
    made = Migrated(tmp_path / "store")
    yield made
    made.client.close()


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that encoders of 64 components got."""
    texts: list[str] = []
    encode = Encoder.encode_documents

    def counted(encoder: Encoder, some: Sequence[str], **options: Any) -> np.ndarray:
        if encoder.dimensions == 64:
            texts.extend(some)
        return encode(encoder, some, **options)

    monkeypatch.setattr(Encoder, "encode_documents", counted)
    return texts


def compacted(migrated: Migrated) -> None:
    seal(migrated.store, INDEX)
    assert not compact(INDEX, migrated.store.uri).up_to_date


def rolled_back(migrated: Migrated) -> None:
    seal(migrated.store, INDEX)
    version = read_manifest(migrated.store, INDEX).version
    migrated.write(range(30, 35), revision=7)
    seal(migrated.store, INDEX)
    rollback(migrated.store, INDEX, version)


@pytest.mark.parametrize("changes", [CHANGES, CUT], ids=["the same passages", "cut anew"])
@pytest.mark.parametrize("change", [compacted, rolled_back])
def test_what_was_converted_is_not_encoded_again(
    migrated: Migrated,
    encoded: list[str],
    change: Callable[[Migrated], None],
    changes: Mapping[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(filling, "UNIT_ROWS", 8)
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(changes)
    migration.convert((0, 2))  # a half is done
    assert encoded
    migrated.write(range(5), revision=1)
    change(migrated)
    migration.catch_up()
    assert all(encoded.count(text) == 1 for text in encoded)
    migration.switch()
    expected = {f"d{number}": text_of(number, 1 if number < 5 else 0) for number in range(DOCUMENTS)}
    assert contents(migrated) == {name: text.split() for name, text in expected.items()}
    assert read_manifest(migrated.store, INDEX).dimensions == 64
    assert not list(migrated.store.list("talks-mirror/stage"))


@pytest.mark.parametrize("change", [compacted, rolled_back])
def test_a_mirror_that_was_filled_encodes_what_has_changed(
    migrated: Migrated, encoded: list[str], change: Callable[[Migrated], None]
) -> None:
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    migration.catch_up()
    migrated.write(range(3), revision=1)
    migration.catch_up()
    encoded.clear()
    change(migrated)
    migrated.write(range(3, 5), revision=2)
    migrated.index.delete(["d39"])
    migration.switch()
    # Those that a rollback removed again were not followed before.
    assert sorted(encoded) == sorted(text_of(number, 2) for number in (3, 4))
    assert "d39" not in migrated.texts() and migrated.texts()["d4"] == text_of(4, 2)
    assert migrated.newest.search(text_of(1, 1), k=1)[0].id == "d1"


def test_only_the_newest_text_of_what_is_replaced_is_encoded(migrated: Migrated, encoded: list[str]) -> None:
    follower = migrated.begin()
    encoded.clear()
    for revision in (1, 2, 3):
        migrated.write(range(4), revision=revision)
    migrated.index.delete(["d3"])
    # It moves to another document, which is removed: its former row must not come back.
    migrated.index.upsert([{"id": "d4", "document_id": "x", "text": text_of(4, 1)}])
    migrated.index.delete(document_ids=["x"])
    follower.follow()
    assert sorted(encoded) == sorted(text_of(number, 3) for number in range(3))
    assert not {"d3", "d4"} & migrated.texts().keys()
    assert migrated.texts("talks-mirror") == migrated.texts()


def test_the_way_back_goes_on_after_a_compaction(migrated: Migrated) -> None:
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    migration.switch()
    migrated.write(range(4), revision=1)
    compacted(migrated)
    migrated.write(range(4, 6), revision=2)
    expected = migrated.texts()
    migration.check_exchanged()
    migration.switch(Goal.UNDO)
    manifest = read_manifest(migrated.store, INDEX)
    assert (manifest.dimensions, manifest.switches) == (384, 2)
    assert migrated.texts() == expected and expected["d5"] == text_of(5, 2)
    assert migrated.newest.search(text_of(5, 2), k=1)[0].id == "d5"


def led_before_a_compaction(migrated: Migrated, goal: Goal) -> Migration:
    """Lead a migration to a goal; then datapoints are written, and the index is compacted."""
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    set_goal(migrated.store, "talks-mirror", goal)
    assert migration._is_led(goal)
    migrated.write(range(2), revision=1)
    compacted(migrated)
    return migration


def test_servers_make_a_way_back_again_when_it_is_gone(migrated: Migrated) -> None:
    migration = led_before_a_compaction(migrated, Goal.SWITCH)
    seal(migrated.store, INDEX)
    mirror = read_manifest(migrated.store, "talks-mirror")
    assert is_due(migrated.store, mirror, mirror.log_sequence)
    with pytest.raises(MirrorBrokenError, match="compacted.*`--undo` for the way back"):
        migration._is_led(Goal.SWITCH)
    tell_problem(migrated.store, mirror.index, "was compacted")
    # It is told, and there is nothing to do until someone goes back.
    assert not is_due(migrated.store, mirror, mirror.log_sequence)
    set_goal(migrated.store, "talks-mirror", Goal.UNDO)
    assert migration._is_led(Goal.UNDO)
    assert read_manifest(migrated.store, INDEX).dimensions == 384
    assert migrated.texts()["d1"] == text_of(1, 1)


def test_what_is_told_of_a_mirror_that_begins_again_is_true(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration = led_before_a_compaction(migrated, Goal.MIRROR)
    reports, rows_of = [], Conversion.rows

    def told(conversion: Conversion, rows: Any) -> Any:
        reports.append(progress_of(migrated.store, "talks-mirror"))
        return rows_of(conversion, rows)

    monkeypatch.setattr(Conversion, "rows", told)
    assert migration._is_led(Goal.MIRROR)
    assert (reports[0].converted, reports[0].to_convert) == (0, DOCUMENTS)


def test_a_datapoint_that_got_a_text_is_converted(migrated: Migrated, encoded: list[str]) -> None:
    migrated.index.upsert([{"id": "bare", "vector": [0.5] * 384}])
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    for _ in range(2):
        with pytest.raises(UnencodableError, match="'bare' cannot get a vector"):
            migration.switch()
    migrated.index.upsert([{"id": "bare", "text": "alpha"}])
    migration.switch()
    assert migrated.newest.search("alpha", k=1)[0].id == "bare"
    assert all(encoded.count(text) == 1 for text in encoded if "number" in text)


def test_the_newest_version_is_kept_and_nobody_converts_the_former_one(migrated: Migrated) -> None:
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    former = mirror_of(migrated.store, INDEX)
    migrated.write(range(2), revision=1)
    compacted(migrated)
    assert renew_mirror(migrated.store, INDEX, migrated.vectors_of)
    assert not renew_mirror(migrated.store, INDEX, migrated.vectors_of)
    newest = mirror_of(migrated.store, INDEX).mirror
    assert newest is not None and newest.base == read_manifest(migrated.store, INDEX).version
    with pytest.raises(MigrationError, match="begun mirror 'talks-mirror' again"):
        convert_base(migrated.store, former, migrated.encoders)
    assert newest.base in read_leases(migrated.store, INDEX).versions


def test_an_index_that_was_created_again_is_another_one(migrated: Migrated) -> None:
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    drop(migrated.store, INDEX, force=True)
    migrated.client.create_index(INDEX, dimensions=8)
    with pytest.raises(MirrorBrokenError, match="dropped and created again"):
        migration.catch_up()


SPEC: Mapping[str, Any] = {
    "index": INDEX,
    "source": {"id": "id", "text": "text", "title": "title"},
    "encoder": {"model": MINILM},
}


def built(folder: Path, revision: int, mode: str = "full", documents: int = 4, **keys: Any) -> Store:
    """Build the index from an input of its own, and return its store."""
    rows = [
        {"id": f"d{number}", "text": text_of(number, revision), "title": f"title {number}", "year": "2020"}
        for number in range(documents)
    ]
    (folder / "input.jsonl").write_text("\n".join(map(json.dumps, rows)))
    store = folder / "store"
    build({**SPEC, **keys}, [str(folder / "input.jsonl")], str(store), mode=mode)
    return Store.open(store)


def built_again(folder: Path) -> Callable[[], object]:
    built(folder, 1, documents=8)
    built(folder, 2, "upsert")
    return lambda: built(folder, 1, "upsert", documents=8)


def rolled_forward(folder: Path) -> Callable[[], object]:
    store = built(folder, 1)
    with scannery.connect(folder / "store") as client:
        client.index(INDEX).delete(["d0"])
    seal(store, INDEX)
    version = read_manifest(store, INDEX).version
    rollback(store, INDEX, version - 1)
    return lambda: rollback(store, INDEX, version)


def replaced_again(folder: Path) -> Callable[[], object]:
    def replaced() -> None:
        with Replacement(store, INDEX) as replacement:
            replacement.publish()

    store = built(folder, 1)
    replaced()
    return replaced


@pytest.mark.parametrize("begun", [built_again, rolled_forward, replaced_again])
def test_no_other_rows_are_taken_for_those_that_are_followed(
    tmp_path: Path, begun: Callable[[Path], Callable[[], object]]
) -> None:
    change = begun(tmp_path)
    store = Store.open(tmp_path / "store")
    migration = Migration(store, INDEX, None)
    migration.begin({"chunk": {"max_tokens": 8, "overlap_tokens": 0}})
    change()
    with pytest.raises(MirrorBrokenError):
        mirrors.check_followed(read_manifest(store, INDEX), mirror_of(store, INDEX))


def test_an_exchange_does_not_undo_a_rollback_that_lands_within_it(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(migrated.store, INDEX)
    version = read_manifest(migrated.store, INDEX).version
    migrated.write(range(3), revision=5)
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    migration.catch_up()
    marked, landed = threading.Event(), threading.Event()
    mark = switching._mark

    def marking(*arguments: Any) -> Any:
        marked.set()
        return mark(*arguments)

    def sealing(store: Store, name: str, **options: Any) -> Any:
        if marked.is_set() and name != INDEX and not landed.is_set():  # after the last look at the index
            rollback(store, INDEX, version)
            landed.set()
        assert not marked.is_set() or landed.wait(60)
        return seal(store, name, **options)

    monkeypatch.setattr(switching, "_mark", marking)
    monkeypatch.setattr(switching, "seal", sealing)
    migration.switch()
    assert read_manifest(migrated.store, INDEX).switches == 1
    assert migrated.texts()["d2"] == text_of(2, 0)


def test_a_mirror_that_another_process_begins_again_is_not_exchanged_before_it_is_filled(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    migration.catch_up()
    mark = switching._mark

    def begun_again(*arguments: Any) -> Any:
        monkeypatch.undo()
        built_beside(migrated, text="of a build")
        assert renew_mirror(migrated.store, INDEX, migrated.vectors_of)
        return mark(*arguments)

    monkeypatch.setattr(switching, "_mark", begun_again)
    migration.switch()
    assert read_manifest(migrated.store, INDEX).dimensions == 64
    assert migrated.texts()["d1"] == "of a build"


def built_beside(migrated: Migrated, text: str) -> None:
    """Replace a document by a build."""
    path = migrated.folder.with_name("input.jsonl")
    path.write_text(json.dumps({"id": "d1", "text": text}))
    spec = read_manifest(migrated.store, INDEX).spec.model_dump(mode="json", exclude_none=True)
    build(spec, [str(path)], migrated.store.uri, mode="upsert")


def test_nobody_follows_for_a_mirror_that_begins_again(migrated: Migrated) -> None:
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    migration.catch_up()
    migrated.write(range(2), revision=1)
    compacted(migrated)
    assert renew_mirror(migrated.store, INDEX, migrated.vectors_of)
    migrated.write(range(3), revision=1)
    with pytest.raises(MirrorRenewedError, match="begun mirror 'talks-mirror' again"):
        migration._follower.follow()
    migration.switch()
    assert migrated.texts()["d2"] == text_of(2, 1)


def test_versions_that_land_within_a_renewal_are_waited_for(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    migrated.write(range(3), revision=1)
    migration.catch_up()
    compacted(migrated)
    held: list[Manifest] = []

    def holding(*arguments: Any) -> Manifest | None:
        manifest = hold_current(*arguments)
        assert manifest is not None
        held.append(manifest)
        if len(held) == 1:  # a build that began before what the mirror has
            return manifest.model_copy(update={"log_sequence": 0})
        if len(held) == 2:
            alter_index(migrated.store, "talks-mirror", lambda mirror: spec_of(mirror, target_recall=0.9))
        return manifest

    monkeypatch.setattr(mirrors, "hold_current", holding)
    assert renew_mirror(migrated.store, INDEX, migrated.vectors_of)
    assert len(held) == 3
    migration.switch()
    assert migrated.texts()["d2"] == text_of(2, 1)


def spec_of(manifest: Manifest, **keys: Any) -> Any:
    return manifest.spec.model_copy(update=keys)


def test_who_converts_what_another_process_has_filled_leaves_nothing(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Migration(migrated.store, INDEX, None) for _ in range(2))
    first.begin(CHANGES)
    rows_of = Conversion.rows

    def filled_meanwhile(conversion: Conversion, rows: Any) -> Any:
        monkeypatch.undo()
        second.catch_up()
        return rows_of(conversion, rows)

    monkeypatch.setattr(Conversion, "rows", filled_meanwhile)
    with pytest.raises(MigrationError, match="another process has filled"):
        first.catch_up()
    assert not migrated.store.list("talks-mirror/stage")


@pytest.mark.parametrize(
    ("before", "after", "changes"),
    [
        ({}, {"encoder": {"model": MINILM, "dimensions": 32}}, {"chunk": CUT["chunk"]}),
        (
            {
                "attributes": {"year": "string"},
                "named_vectors": {
                    "heading": {"encoder": {"model": MINILM, "dimensions": 32}, "from": "title"}
                },
            },
            {"attributes": {"year": "string_list"}},
            CHANGES,
        ),
    ],
    ids=["another encoder", "another type and no named vectors"],
)
def test_a_build_may_change_what_the_mirror_has_been_filled_with(
    tmp_path: Path, before: Mapping[str, Any], after: Mapping[str, Any], changes: Mapping[str, Any]
) -> None:
    store = built(tmp_path, 0, **before)
    migration = Migration(store, INDEX, None)
    migration.begin(changes)
    migration.catch_up()
    built(tmp_path, 1, **after)
    migration.switch()
    manifest = read_manifest(store, INDEX)
    assert manifest.dimensions == {**changes, **after}["encoder"]["dimensions"]
    assert manifest.spec.attributes == after.get("attributes", {}) and not manifest.spec.named_vectors
    with scannery.connect(store.uri, timeout_s=120) as client:
        index = client.index(INDEX)
        assert index.search(text_of(2, 1), k=1)[0].document_id == "d2"
        assert {each.document_id for each in index.scan()} == {f"d{number}" for number in range(4)}


def test_results_that_a_killed_process_has_left_are_removed(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="ended here"):
        patch.setattr(filling, "remove_results", ended)
        migration.catch_up()
    assert migrated.store.list("talks-mirror/stage")
    migration.catch_up()
    assert not migrated.store.list("talks-mirror/stage")


def test_texts_that_are_only_cut_anew_are_not_encoded_again(
    migrated: Migrated, monkeypatch: pytest.MonkeyPatch
) -> None:
    migration = Migration(migrated.store, INDEX, None)
    migration.begin({"chunk": CUT["chunk"]})
    migrated.write(range(2), revision=1)
    migration.catch_up()
    compacted(migrated)
    texts: list[str] = []
    encode = Encoder.encode_documents

    def counted(encoder: Encoder, some: Sequence[str], **options: Any) -> np.ndarray:
        texts.extend(some)
        return encode(encoder, some, **options)

    monkeypatch.setattr(Encoder, "encode_documents", counted)
    assert renew_mirror(migrated.store, INDEX, migrated.vectors_of)
    convert_base(migrated.store, mirror_of(migrated.store, INDEX), migrated.encoders)
    assert texts == []


def contents(migrated: Migrated) -> dict[str, list[str]]:
    """Return the words of each document."""
    texts: dict[str, list[tuple[int, str]]] = {}
    with scannery.connect(migrated.folder, timeout_s=120) as client:
        for each in client.index(INDEX).scan():
            texts.setdefault(each.document_id, []).append((each.text_start or 0, each.text or ""))
    return {name: " ".join(text for _, text in sorted(parts)).split() for name, parts in texts.items()}
