"""Named vectors and the versions of an index: added names, other encoders, rollback, backup, gc, damage and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from scannery.indexer import (
    FormatError,
    Manifest,
    Store,
    VectorsInfo,
    alter_index,
    collect_garbage,
    commit,
    open_index,
    parse_spec,
    read_manifest,
    segment_key,
    verify,
)
from scannery.live.log.records import Mutation, decode, encode, rows_fit
from scannery.live.maintenance.copies import restore, snapshot
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.live.prepare import PreparedUpsert, prepare
from scannery.runtime.errors import EncoderUnavailableError, InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving.request.write import parse_upsert
from scannery.serving.services import write as writes
from scannery.serving.services.creation import Creation
from scannery.v1 import index_pb2 as pb
from tests.data import ROOT, first_quick
from tests.live.named_vectors.named_index import GIVEN, TEXTS, Named, datapoint, opened
from tests.served import MINILM
from tests.tools.prepared_process import PreparedProcess

TITLE = {"title": {"dimensions": 3, "distance": "dot"}}
PLAIN = {key: value for key, value in GIVEN.items() if key != "named_vectors"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(path: Path) -> Store:
    return Store.open(path, create=True)


@pytest.fixture
def index(path: Path) -> Iterator[Named]:
    with opened(path) as index:
        index.create(PLAIN | {"named_vectors": TITLE}, dimensions=4)
        yield index


def point(number: int, *, title: bool = True) -> dict[str, Any]:
    vectors = {"title": [float(number), 1, 0]} if title else {}
    return {"id": f"d{number}", "vector": [1, number, 0, 0], "vectors": vectors}


def titles(*numbers: int) -> dict[str, dict[str, list[float]]]:
    return {f"d{number}": {"title": [float(number), 1, 0]} for number in numbers}


@pytest.mark.system
def test_a_name_can_be_added_and_old_datapoints_lack_it(path: Path, store: Store) -> None:
    with opened(path) as index:
        index.create(PLAIN, dimensions=4)
        index.upsert({"id": "old", "vector": [1, 1, 1, 1]})
        seal(store, "named")
        index.upsert({"id": "logged", "vector": [1, 1, 1, 1]})
        info = index.alter(named_vectors=TITLE | {"text": {"encoder": {"model": MINILM}}}).index
        assert {name: one.dimensions for name, one in info.named_vectors.items()} == {"title": 3, "text": 384}
        assert info.named_vectors["text"].encoder.fingerprint
        index.upsert(point(1) | {"text": "some text"})
        found = index.vectors()
        assert (found["old"], found["logged"], {*found["d1"]}) == ({}, {}, {"text", "title"})
        seal(store, "named")
        merge(store, "named")
        assert index.vectors().keys() == found.keys()
        verify(store, "named")


@pytest.mark.parametrize(("changes", "field", "what"), [
    ({"title": {"dimensions": 4, "distance": "dot"}}, "title", "cannot be changed, since it determines"),
    ({"title": None}, "title", "cannot be removed"),
    ({"new": {"distance": "dot"}}, "new", "needs `encoder` or `dimensions`"),
    ({"new": {"encoder": {"model": MINILM}, "from": "nothing"}}, "", "must be title, text or a declared attribute"),
    ({"new": {"encoder": {"model": "no/such-model"}}}, "new.encoder.model", "no/such-model"),
])  # fmt: skip
def test_names_are_not_changed_or_removed(
    index: Named, changes: dict[str, Any], field: str, what: str
) -> None:
    with pytest.raises((InvalidRequestError, EncoderUnavailableError), match=what) as caught:
        index.alter(named_vectors=changes)
    assert caught.value.field == f"changes.named_vectors.{field}".rstrip(".") or not field
    assert index.alter(named_vectors=TITLE).index.version == 1


@pytest.mark.system
@pytest.mark.parametrize(
    "change", [{"named_vectors": {"more": {"dimensions": 2}}}, {"attributes": {"more": "string"}}]
)
def test_a_batch_with_masks_is_prepared_again_when_the_spec_has_just_changed(
    index: Named, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    index.upsert(point(1))
    request = pb.UpsertRequest(index="named")
    changed = datapoint(id="d1", vectors={"title": [4, 1, 0]})
    request.upserts.add(datapoint=changed, update_mask={"paths": ["vectors.title"]})
    request.upserts.add(datapoint=datapoint(**point(2)))
    changes = [change]

    def altered(*arguments: Any) -> PreparedUpsert:
        prepared = prepare(*arguments)
        if changes:
            index.alter(**changes.pop())
        return prepared

    monkeypatch.setattr(writes, "prepare", altered)
    done = writes.Writes(index.catalog).upsert(request, Deadline.after(60))
    assert (done.written, index.vectors()) == (2, titles(2) | {"d1": {"title": [4, 1, 0]}})


@pytest.mark.system
def test_vectors_from_before_a_rollback_return_with_their_name(path: Path, store: Store) -> None:
    with opened(path) as index:
        index.create(PLAIN, dimensions=4)
        index.upsert(point(0, title=False))
        seal(store, "named")
        index.alter(named_vectors=TITLE)
        index.upsert(point(1))
        index.upsert({"id": "d0", "vectors": {"title": [5, 5, 5]}}, mask=["vectors.title"])
    rollback(store, "named", 2)  # a version without the name; the log has vectors of it
    with opened(path) as index:
        assert index.vectors() == {"d0": {}, "d1": {}}
        with pytest.raises(
            InvalidRequestError, match=r"vectors 'title' have 3 dimensions, those of the version 4"
        ):
            index.alter(named_vectors={"title": {"dimensions": 4}})
        index.alter(named_vectors=TITLE)
        assert index.vectors() == titles(1) | {"d0": {"title": [5, 5, 5]}}


def test_a_record_of_another_encoder_or_size_does_not_fit(index: Named) -> None:
    request = pb.UpsertRequest(index="named")
    request.upserts.add(datapoint=datapoint(**point(1)))
    manifest = index.catalog.manifest("named")
    mutation = prepare(
        parse_upsert(request, manifest, Deadline.after(9)),
        manifest,
        index.catalog.encoders,
        Deadline.after(9),
    ).mutation
    again = decode(encode(mutation), sequence=1)
    assert rows_fit(again, manifest, sequence=1).rows.equals(mutation.rows)

    def of(info: VectorsInfo | None) -> Manifest:
        spec = parse_spec(PLAIN | ({"named_vectors": TITLE} if info else {}))
        named = {"title": info} if info else {}
        return manifest.model_copy(update={"spec": spec, "named_vectors": named})

    with pytest.raises(FormatError, match="its vectors 'title' have 3 dimensions, those of the version 5"):
        rows_fit(again, of(VectorsInfo(dimensions=5)), sequence=1)
    encoded = of(VectorsInfo(dimensions=3, encoder={"digest": "other"}))
    with pytest.raises(FormatError, match="its vectors 'title' were made for another encoder"):
        rows_fit(again, encoded, sequence=1)
    assert rows_fit(replace(again, encoders={"title": "other"}), encoded, sequence=1).rows.num_rows == 1
    with pytest.raises(FormatError, match="its vectors have 4 dimensions, those of the version 5"):
        rows_fit(again, manifest.model_copy(update={"dimensions": 5}), sequence=1)
    with pytest.raises(FormatError, match="its vectors were made for another encoder"):
        rows_fit(replace(again, encoders={"": "other"}), manifest, sequence=1)
    without = rows_fit(again, of(None), sequence=1)
    assert not [name for name in without.rows.column_names if name.startswith("_embedding")]


@pytest.mark.system
def test_records_without_vectors_of_a_name_do_not_have_its_column(index: Named) -> None:
    index.upsert(point(1, title=False))
    log = index.catalog.live("named")._log
    assert log is not None
    [entry] = log.read(0)
    record: Mutation = decode(entry.data, sequence=1)
    assert "_embedding_title" not in record.rows.column_names


@pytest.mark.system
@pytest.mark.usefixtures("merges_by_hand")
def test_files_of_names_are_kept_copied_and_checked(index: Named, path: Path, store: Store) -> None:
    for number in range(4):
        index.upsert(point(number))
        seal(store, "named")
    merge(store, "named")
    collect_garbage(store, "named", keep=1, min_age=timedelta(0))
    manifest = read_manifest(store, "named")
    keys = {segment_key("named", key) for entry in manifest.segments for key in entry.keys}
    stored = {item.key for item in store.list("named/segments")}
    assert {key for key in keys if "/segments/" in key} <= stored
    assert all(len(entry.named) == 1 for entry in manifest.segments)
    assert index.vectors() == titles(*range(4))
    backup = Store.open(path.parent / "backup", create=True)
    snapshot(store, "named", backup)
    restore(backup, "named", Store.open(path.parent / "restored", create=True))
    with opened(path.parent / "restored") as other:
        assert other.vectors() == titles(*range(4))
    damaged = path / segment_key("named", manifest.segments[0].named["title"].key)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"x")
    assert any(damaged.name in problem for problem in verify(store, "named").problems)


@pytest.mark.system
def test_a_merge_gives_up_segments_whose_vectors_another_version_has_changed(
    index: Named, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        index.upsert(point(number))
        seal(store, "named")
    before = read_manifest(store, "named")

    def without_names(manifest: Manifest) -> Manifest:
        """Return a version with the same files of datapoints, and none of their vectors."""
        entries = tuple(entry.model_copy(update={"named": {}}) for entry in manifest.segments)
        return manifest.model_copy(update={"segments": entries, "parent": manifest.version})

    write_file = Store.write_file

    def overtaken(own: Store, key: str, file: Path) -> None:
        if read_manifest(store, "named").version == before.version:
            commit(store, without_names(before))
        write_file(own, key, file)

    monkeypatch.setattr(Store, "write_file", overtaken)
    assert merge(store, "named") is None
    assert not any(entry.named for entry in read_manifest(store, "named").segments)


@pytest.mark.system
def test_indexes_are_created_with_names(path: Path) -> None:
    with opened(path) as index:
        info = index.create(TEXTS).index
        sizes = {"title": 8, "show": 6, "body": 384, "image": 2}
        assert {name: one.dimensions for name, one in info.named_vectors.items()} == sizes
        assert info.dimensions == 0
        manifest = index.catalog.manifest("named")
        assert manifest.named_vectors["image"].encoder is None
        digests = {name: (one.encoder or {}).get("digest") for name, one in manifest.named_vectors.items()}
        assert len({digests[name] for name in ("title", "show", "body")}) == 3
        index.create(TEXTS, keep_existing=True)
        other = TEXTS | {"named_vectors": TEXTS["named_vectors"] | {"image": {"dimensions": 3}}}
        with pytest.raises(Exception, match="spec.named_vectors: index 'named' exists with") as caught:
            index.create(other, keep_existing=True)
        assert getattr(caught.value, "field", "") == "spec.named_vectors"


@pytest.mark.system
def test_each_model_of_a_name_must_be_allowed(path: Path) -> None:
    with opened(path) as index:
        spec = json.dumps(TEXTS)
        creation = Creation(index.catalog, [])
        with pytest.raises(EncoderUnavailableError, match="is not among the models") as caught:
            creation.create(pb.CreateIndexRequest(spec_json=spec), Deadline.after(9))
        assert caught.value.field == "spec.named_vectors.title.encoder.model"
        index.create(TEXTS | {"index": "first"})  # then an index has the model
        creation.create(pb.CreateIndexRequest(spec_json=spec), Deadline.after(60))


def test_the_encoder_of_a_name_must_be_given_without_a_server(store: Store, index: Named) -> None:
    def added(manifest: Manifest) -> Any:
        named = manifest.spec.model_dump()["named_vectors"] | {"show": {"encoder": {"model": MINILM}}}
        return parse_spec(manifest.spec.model_dump() | {"named_vectors": named})

    with pytest.raises(ValueError, match=r"named_vectors.show.encoder: its dimensions and fingerprint"):
        alter_index(store, "named", added)


def test_records_name_encoders_as_docs_format_md_says() -> None:
    rows = pa.table({"id": ["a"], "embedding": pa.array([[1, 2]], pa.list_(pa.float32(), 2))})
    for encoders, expected in [
        ({}, {"encoder": None}),
        ({"": "a"}, {"encoder": "a"}),
        ({"title": "b"}, {"encoder": None, "named_encoders": {"title": "b"}}),
        ({"": "a", "title": "b"}, {"encoder": "a", "named_encoders": {"title": "b"}}),
    ]:
        data = encode(Mutation(rows, encoders=encoders))
        header = json.loads(pa.ipc.open_stream(data).schema.metadata[b"scannery.mutation"])
        assert {key: value for key, value in header.items() if "encoder" in key} == expected
        assert decode(data, sequence=1).encoders == encoders


WRITER = """
import sys
from pathlib import Path
from tests.live.named_vectors.named_index import opened
from tests.live.named_vectors.test_named_versions import point
with opened(Path(sys.argv[1])) as index:
    for number in range(100_000):
        index.upsert(point(number))
        print(number, flush=True)
"""


@pytest.mark.system
@pytest.mark.parametrize("after", first_quick([25, 3]))
def test_a_writer_that_is_killed_loses_no_vector_that_was_acknowledged(
    index: Named, path: Path, store: Store, after: int
) -> None:
    with PreparedProcess(
        [sys.executable, "-c", WRITER, str(path)],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        acknowledged = -1
        for line in writer.stdout:
            acknowledged = int(line)
            if acknowledged == after:
                seal(store, "named")
            if acknowledged >= 2 * after:
                break
        writer.send_signal(signal.SIGKILL)
        rest = [int(line) for line in writer.stdout.read().splitlines()]
    acknowledged = max([acknowledged, *rest])
    with opened(path) as again:
        found = again.vectors()
        assert found.keys() >= titles(*range(acknowledged + 1)).keys()
        assert found == titles(*range(len(found)))
        assert again.searchable("title") == {name: own["title"] for name, own in found.items()}
    seal(store, "named")
    assert open_index(store, "named").space("title").index.manifest.rows == len(found)
