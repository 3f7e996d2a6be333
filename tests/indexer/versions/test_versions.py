from __future__ import annotations

import hashlib
import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scannery.indexer import (
    AlreadyExistsError,
    CorruptError,
    FormatError,
    Manifest,
    NotFoundError,
    ReplacedError,
    SegmentEntry,
    Store,
    collect_garbage,
    commit,
    list_indexes,
    list_versions,
    manifest_key,
    parse_spec,
    read_manifest,
    rollback,
    shard_of,
)
from scannery.indexer.errors import MissingFileError
from scannery.indexer.versions import leases, versions
from scannery.indexer.versions.versions import hold_current
from tests.hooks import before_call

SPEC = parse_spec({"index": "pods", "source": {"vector": "v"}})


def manifest(parent: int | None = None) -> Manifest:
    return Manifest(
        index="pods",
        version=1,
        parent=parent,
        created_at=datetime.now(timezone.utc),
        spec=SPEC,
        dimensions=3,
        shards=1,
        segments=(),
    )


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


def test_versions_follow_one_another(store: Store):
    first = commit(store, manifest())
    second = commit(store, manifest(parent=first.version))
    assert (first.version, second.version) == (1, 2)
    assert list_indexes(store) == ["pods"]
    assert list_versions(store, "pods") == [1, 2]
    assert read_manifest(store, "pods") == second
    assert read_manifest(store, "pods", 1) == first


def test_of_two_builders_on_one_parent_one_wins(store: Store):
    commit(store, manifest())
    winner = commit(store, manifest(parent=1))
    with pytest.raises(AlreadyExistsError, match="version 2 was published by another build"):
        commit(store, manifest(parent=1))
    assert read_manifest(store, "pods") == winner


def test_a_number_that_was_freed_does_not_make_a_stale_commit_succeed(store: Store):
    for parent in (None, 1, 2, 3):
        commit(store, manifest(parent=parent))
    store.delete("pods/versions/00000002.json")
    with pytest.raises(AlreadyExistsError, match="run this one again"):
        commit(store, manifest(parent=1))
    assert list_versions(store, "pods") == [1, 3, 4]


def test_a_number_that_is_freed_right_before_the_put_does_not_either(store: Store, monkeypatch):
    commit(store, manifest())

    def overtaken() -> None:
        for parent in (1, 2):
            commit(store, manifest(parent=parent))
        store.delete("pods/versions/00000002.json")

    before_call(monkeypatch, "create", "pods/versions/00000002", overtaken)
    with pytest.raises(AlreadyExistsError, match="run this one again"):
        commit(store, manifest(parent=1))
    assert list_versions(store, "pods") == [1, 3]


def test_a_commit_that_others_have_built_upon_already_stays(store: Store, monkeypatch):
    first = commit(store, manifest())
    real = Store.create

    def followed(self: Store, key: str, data: bytes) -> None:
        real(self, key, data)
        if key.endswith("00000002.json"):
            commit(store, manifest(parent=2))

    monkeypatch.setattr(Store, "create", followed)
    assert commit(store, manifest(parent=first.version)).version == 2
    assert list_versions(store, "pods") == [1, 2, 3]


def test_a_version_without_its_files_is_not_published(store: Store):
    entry = SegmentEntry(
        key=f"segments/{'0' * 64}.parquet", shard=0, rows=1, size_bytes=3, sha256="0" * 64, kind="exact"
    )
    version = manifest().model_copy(update={"segments": (entry,)})
    with pytest.raises(MissingFileError, match=r"0\.parquet is not in the store; nothing was published"):
        commit(store, version)
    store.write(f"pods/{entry.key}", b"four")
    with pytest.raises(MissingFileError, match=r"0\.parquet has 4 bytes, not 3"):
        commit(store, version)
    assert list_versions(store, "pods") == []
    store.write(f"pods/{entry.key}", b"all")
    assert commit(store, version).version == 1


@pytest.mark.parametrize("moment", ["before the put", "after the check"])
def test_a_commit_that_was_stopped_beyond_its_lease_looks_at_its_files_again(
    store: Store, monkeypatch, moment
):
    entry = SegmentEntry(
        key=f"segments/{'0' * 64}.parquet", shard=0, rows=1, size_bytes=3, sha256="0" * 64, kind="exact"
    )
    commit(store, manifest())
    version = manifest(parent=1).model_copy(update={"segments": (entry,)})
    store.write(f"pods/{entry.key}", b"all")
    now, check_files = leases._now, versions._check_files

    def stopped() -> None:
        with monkeypatch.context() as later:
            later.setattr(leases, "_now", lambda: now() + 2 * leases.LIFETIME)
            collect_garbage(store, "pods", keep=1, min_age=timedelta(0))
        # It goes on as late as that, and has not renewed its lease yet.
        monkeypatch.setattr(leases, "_now", lambda: now() + 2 * leases.LIFETIME)

    def checked(*arguments: Any, **options: Any) -> None:
        check_files(*arguments, **options)
        monkeypatch.setattr(versions, "_check_files", check_files)
        stopped()

    if moment == "after the check":
        monkeypatch.setattr(versions, "_check_files", checked)
    else:
        before_call(monkeypatch, "create", "pods/versions/00000002", stopped)
    with pytest.raises(MissingFileError, match=r"0\.parquet is not in the store"):
        commit(store, version)
    assert list_versions(store, "pods") == [1]


def test_a_version_that_gc_is_about_to_remove_is_not_held(store: Store, monkeypatch):
    commit(store, manifest())

    def overtaken() -> None:
        """Publish another version; gc has looked for leases already."""
        commit(store, manifest(parent=1))

    before_call(monkeypatch, "read", "pods/versions/00000001", overtaken)
    with leases.working(store, "pods") as lease:
        held = hold_current(store, "pods", lease)
        assert held is not None and held.version == 2
        assert leases.read_leases(store, "pods").versions == {2, 3}


def test_what_is_missing_is_named(store: Store):
    with pytest.raises(NotFoundError, match="no index 'pods' in .*; it has none") as caught:
        read_manifest(store, "pods")
    assert caught.value.field == "index"
    commit(store, manifest())
    with pytest.raises(NotFoundError, match="no index 'pdos' in .*; it has pods"):
        read_manifest(store, "pdos")
    with pytest.raises(NotFoundError, match="no version 9; it has 1"):
        read_manifest(store, "pods", 9)
    with pytest.raises(NotFoundError):
        read_manifest(store, "../pods")


def test_manifests_that_cannot_be_read(store: Store):
    commit(store, manifest())
    key = "pods/versions/00000001.json"
    good = json.loads(store.read(key))
    store.write(key, json.dumps(good | {"format_version": 99}).encode())
    with pytest.raises(FormatError, match="format version 99.*upgrade"):
        read_manifest(store, "pods")
    store.write(key, json.dumps({k: v for k, v in good.items() if k != "dimensions"}).encode())
    with pytest.raises(CorruptError, match=r"00000001\.json is damaged: dimensions"):
        read_manifest(store, "pods")
    store.write(key, store.read(key)[:40])
    with pytest.raises(CorruptError, match="damaged"):
        read_manifest(store, "pods")
    segment = {
        "key": "segments/../../x",
        "shard": 0,
        "rows": 1,
        "size_bytes": 1,
        "sha256": "0" * 64,
        "kind": "exact",
    }
    store.write(key, json.dumps(good | {"segments": [segment]}).encode())
    with pytest.raises(CorruptError, match=r"segments\.0\.key"):
        read_manifest(store, "pods")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("shards", 1 << 40), ("dimensions", 1 << 31), ("version", 1 << 63), ("log_sequence", 1 << 63)),
        *(("rows", 1 << 62), ("size_bytes", 1 << 62)),
    ],
)
def test_numbers_that_cannot_be_are_refused(key: str, value: int):
    """Servers would count shards for ever, or end at a number that does not fit 64 bits."""
    data = json.loads(manifest().model_dump_json())
    if key in data:
        data[key] = value
    else:
        entry = {
            "key": f"segments/{'a' * 64}.parquet",
            "shard": 0,
            "rows": 1,
            "size_bytes": 1,
            "sha256": "a" * 64,
        }
        data["segments"] = [{**entry, "kind": "exact", key: value}]
    with pytest.raises(CorruptError, match=key):
        Manifest.from_json(json.dumps(data).encode(), origin="it")


@pytest.mark.parametrize("dimensions", [-1, 0, 1 << 31])
def test_a_named_vector_without_components_is_refused(dimensions: int):
    data = {
        **json.loads(manifest().model_dump_json()),
        "named_vectors": {"title": {"dimensions": dimensions}},
    }
    with pytest.raises(CorruptError, match=r"named_vectors\.title"):
        Manifest.from_json(json.dumps(data).encode(), origin="it")


def test_no_damage_to_a_manifest_goes_unnoticed(store: Store):
    commit(store, manifest())
    key = "pods/versions/00000001.json"
    good, sound = read_manifest(store, "pods"), store.read(key)
    for position in range(len(sound)):
        data = bytearray(sound)
        data[position] ^= 0x01
        try:
            found = Manifest.from_json(bytes(data), origin=key)
        except CorruptError:
            continue
        assert found == good, position  # in the name of the last key: nothing is wrong
    for length in range(len(sound) - 1):
        with pytest.raises(CorruptError):
            Manifest.from_json(sound[:length], origin=key)
    store.write(key, sound[:-10])
    with pytest.raises(CorruptError):
        read_manifest(store, "pods")


def test_a_manifest_in_another_place_is_refused(store: Store):
    commit(store, manifest())
    store.write("pods/versions/00000002.json", store.read("pods/versions/00000001.json"))
    store.write("other/versions/00000001.json", store.read("pods/versions/00000001.json"))
    with pytest.raises(CorruptError, match=r"00000002\.json is the manifest of version 1 of index 'pods'"):
        read_manifest(store, "pods")
    with pytest.raises(CorruptError, match="of index 'pods'"):
        read_manifest(store, "other")


@pytest.mark.system
@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.integers(1, 4096))
def test_a_document_always_has_the_same_shard(document: str, shards: int):
    assert 0 <= shard_of(document, shards) < shards
    assert shard_of(document, shards) == shard_of(document, shards)


def test_shards_never_change():
    # Pinned: another value here would leave old documents where new versions do not look for them.
    assert [shard_of(name, 16) for name in ("a", "gotime/1", "питон", "x" * 500)] == [0, 12, 6, 9]


def test_shards_are_even():
    counts = [0] * 8
    for number in range(8000):
        counts[shard_of(f"doc-{number}", 8)] += 1
    assert min(counts) > 850
    assert max(counts) < 1150


def test_all_versions_of_an_index_have_its_id(store: Store):
    first = commit(store, manifest())
    assert first.index_id and len(first.index_id) == 32
    assert commit(store, manifest(parent=1)).index_id == first.index_id
    other = Store.open(f"{store.uri}/other", create=True)
    assert commit(other, manifest()).index_id != first.index_id


def test_a_version_for_an_index_that_was_made_anew_is_refused(store: Store):
    first = commit(store, manifest())
    store.delete(manifest_key("pods", 1))
    commit(store, manifest())
    with pytest.raises(ReplacedError, match=f"with id {first.index_id}"):
        commit(store, first.model_copy(update={"parent": 1}))
    assert list_versions(store, "pods") == [1]


def test_an_index_of_early_days_gets_an_id_with_its_next_version_and_keeps_it(store: Store):
    for version in (1, 2):
        old = manifest().model_copy(update={"version": version})
        assert old.index_id is None
        store.create(manifest_key("pods", version), old.to_json())
    third = commit(store, manifest(parent=2))
    assert third.index_id
    # A release that knows of no ids comes in between.
    store.create(manifest_key("pods", 4), manifest(parent=3).model_copy(update={"version": 4}).to_json())
    assert commit(store, manifest(parent=4)).index_id == third.index_id
    # A damaged version has none to tell, and its index is the same.
    store.write(manifest_key("pods", 5), b"{")
    assert commit(store, manifest(parent=5)).index_id == third.index_id


def of_a_later_release(store: Store, version: int) -> None:
    body = json.loads(manifest().to_json())
    body |= {"version": version, "parent": version - 1 or None}
    del body["sha256"]
    body["spec"]["live"]["of_tomorrow"] = 1
    data = json.dumps(body, indent=2).removesuffix("\n}").encode() + b',\n  "sha256": "'
    digest = hashlib.sha256(data.removesuffix(b',\n  "sha256": "')).hexdigest()
    store.create(manifest_key("pods", version), data + digest.encode() + b'"\n}\n')


def test_a_version_of_a_later_release_is_not_called_damaged(store: Store):
    of_a_later_release(store, 1)
    with pytest.raises(
        FormatError, match=r"later Scannery: spec.live.of_tomorrow is unknown to this one; upgrade"
    ):
        read_manifest(store, "pods")


def test_a_rollback_does_not_pass_over_a_version_of_a_later_release(store: Store):
    commit(store, manifest())
    of_a_later_release(store, 2)
    with pytest.raises(FormatError, match="upgrade"):
        rollback(store, "pods", 1)
    assert list_versions(store, "pods") == [1, 2]
