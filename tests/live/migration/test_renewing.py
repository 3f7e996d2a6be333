"""An index is built, compacted or rolled back while it is migrated: its mirror begins again, and reuses vectors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.cli.commands.indexes.migration import Migration
from scannery.embed import Encoder
from scannery.indexer import read_manifest
from scannery.indexer.versions.leases import read_leases
from scannery.live.maintenance.drop import drop
from scannery.live.maintenance.goals import Goal, set_goal
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.live.migration import filling
from scannery.live.migration.errors import MigrationError, MirrorBrokenError, UnencodableError
from scannery.live.migration.filling import convert_base
from scannery.live.migration.mirrors import mirror_of, renew_mirror
from scannery.pipelines import compact
from tests.live.migration.test_switching import CHANGES, DOCUMENTS, Migrated
from tests.live.migration.traffic import INDEX, text_of

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


def test_the_way_back_goes_on_after_a_compaction(migrated: Migrated) -> None:
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    migration.switch()
    migrated.write(range(4), revision=1)
    compacted(migrated)
    migrated.write(range(4, 6), revision=2)
    expected = migrated.texts()
    migration.check_exchanged()
    migration.switch()
    manifest = read_manifest(migrated.store, INDEX)
    assert (manifest.dimensions, manifest.switches) == (384, 2)
    assert migrated.texts() == expected and expected["d5"] == text_of(5, 2)
    assert migrated.newest.search(text_of(5, 2), k=1)[0].id == "d5"


def test_servers_make_a_way_back_again_when_it_is_gone(migrated: Migrated) -> None:
    migration = Migration(migrated.store, INDEX, None)
    migration.begin(CHANGES)
    set_goal(migrated.store, "talks-mirror", Goal.SWITCH)
    assert migration._is_led(Goal.SWITCH)
    migrated.write(range(2), revision=1)
    compacted(migrated)
    seal(migrated.store, INDEX)
    with pytest.raises(MirrorBrokenError, match="compacted.*`--undo` for the way back"):
        migration._is_led(Goal.SWITCH)
    set_goal(migrated.store, "talks-mirror", Goal.UNDO)
    assert migration._is_led(Goal.UNDO)
    assert read_manifest(migrated.store, INDEX).dimensions == 384
    assert migrated.texts()["d1"] == text_of(1, 1)


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


def contents(migrated: Migrated) -> dict[str, list[str]]:
    """Return the words of each document."""
    texts: dict[str, list[tuple[int, str]]] = {}
    with scannery.connect(migrated.folder, timeout_s=120) as client:
        for each in client.index(INDEX).scan():
            texts.setdefault(each.document_id, []).append((each.text_start or 0, each.text or ""))
    return {name: " ".join(text for _, text in sorted(parts)).split() for name, parts in texts.items()}
