"""Writes of one process: what they mean, what they refuse, and what they leave as it was."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import numpy as np
import pyarrow.parquet as pq
import pytest
from google.protobuf import field_mask_pb2

import scannery
from scannery import serving
from scannery.client import Index, NewDatapoint, Written
from scannery.indexer import AlreadyExistsError, Analyser, Store, parse_spec
from scannery.live.log.homes import forget_log
from scannery.live.log.sqlite_log import SqliteLog
from scannery.live.maintenance.seal import seal
from scannery.pipelines import export
from scannery.runtime.retry import Deadline
from scannery.serving import ConditionError, InvalidRequestError
from scannery.serving.catalog.roles import embedded_catalog, open_embedded_catalog, server_catalog
from scannery.serving.services.write import Writes
from scannery.v1 import index_pb2, types_pb2
from tests import served
from tests.data import datapoints, publish
from tests.live.model import DIMENSIONS, LIVE, make_store, random_row
from tests.served import WIRES, connected, copied, publish_version

VECTOR = [1.0, *[0.0] * (DIMENSIONS - 1)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    rng = random.Random(0)
    return make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(30)])


@pytest.fixture
def index(store: Path) -> Iterator[Index]:
    with scannery.connect(store) as client:
        yield client.index("live")


def refusal(call: Any) -> tuple[type[Exception], str | None]:
    with pytest.raises(scannery.ScanneryError) as caught:
        call()
    assert str(caught.value).startswith(str(caught.value.field))
    return type(caught.value), caught.value.field


@pytest.mark.system
def test_a_write_is_seen_by_the_next_query_and_by_every_other_process(index: Index, store: Path) -> None:
    done = index.upsert([{"id": "new", "vector": VECTOR, "text": "a zebra"}])
    assert (done.sequence, done.written) == (1, 1)
    [hit] = index.search(VECTOR, 1)
    assert (hit.id, hit.revision) == ("new", 1)
    assert [hit.id for hit in index.search("zebra", mode="lexical")] == ["new"]
    with scannery.connect(store) as other:
        assert other.index("live").search(VECTOR, 1).sequence == 1
        assert other.index("live").delete(["new"]).sequence == 2
        assert index.get(["new"]) == [None]
    assert (index.stats().rows, index.stats().sequence, index.stats().memory_rows) == (30, 2, 0)


@pytest.mark.system
@pytest.mark.parametrize(
    ("point", "field"),
    [
        ({"id": ""}, "upserts[1].datapoint.id"),
        ({"id": "x" * 600}, "upserts[1].datapoint.id"),
        ({"id": "first"}, "upserts[1].datapoint.id"),
        ({"vector": [1.0, 2.0]}, "upserts[1].datapoint.vector"),
        ({"vector": [float("nan")] * DIMENSIONS}, "upserts[1].datapoint.vector"),
        ({"vector": [1e20] * DIMENSIONS}, "upserts[1].datapoint.vector"),
        ({"vector": [0.0] * DIMENSIONS}, "upserts[1].datapoint.vector"),
        ({"vector": None}, "upserts[1].datapoint.vector"),
        ({"vector": None, "text": "only text"}, "upserts[1].datapoint.vector"),
        ({"attributes": {"years": 3}}, "upserts[1].datapoint.attributes.years"),
        ({"attributes": {"year": "soon"}}, "upserts[1].datapoint.attributes.year"),
        ({"attributes": {"show": "x" * ((1 << 20) + 1)}}, "upserts[1].datapoint.attributes.show"),
        ({"attributes": {"show": "é" * ((1 << 19) + 1)}}, "upserts[1].datapoint.attributes.show"),
        ({"attributes": {"tags": [""] * 65_537}}, "upserts[1].datapoint.attributes.tags"),
        ({"attributes": {"tags": ["é" * (1 << 18)] * 3}}, "upserts[1].datapoint.attributes.tags"),
        ({"attributes": {"year": 3.5}}, "upserts[1].datapoint.attributes.year"),
        ({"title": "x" * 70_000}, "upserts[1].datapoint.title"),
        ({"text": "x" * 1_100_000}, "upserts[1].datapoint.text"),
    ],
)
def test_a_wrong_datapoint_is_named_and_refuses_its_batch(
    index: Index, point: dict[str, Any], field: str
) -> None:
    batch: Any = [{"id": "first", "vector": VECTOR}, {"id": "second", "vector": VECTOR, **point}]
    assert refusal(lambda: index.upsert(batch)) == (scannery.InvalidArgumentError, field)
    assert index.get(["first", "second"]) == [None, None]
    assert index.stats().sequence == 0


@pytest.mark.system
def test_partial_updates_change_what_they_name(index: Index) -> None:
    before = index.get(["id1"], vectors=True)[0]
    assert before is not None
    index.update([{"id": "id1", "attributes": {"year": 1999, "show": None}, "title": "New", "payload": [1]}])
    after = index.get(["id1"], vectors=True)[0]
    assert after is not None
    assert (after.attributes["year"], after.title, after.payload) == (1999, "New", [1])
    assert "show" not in after.attributes
    assert after.attributes.get("tags") == before.attributes.get("tags")
    assert (after.text, after.document_id, after.text_end) == (
        before.text,
        before.document_id,
        before.text_end,
    )
    np.testing.assert_array_equal(after.vector, before.vector)
    wrong: Any = [{"id": "id2", "attributes": {"years": 3}}]
    assert refusal(lambda: index.update(wrong))[1] == "upserts[0].update_mask"
    gone: Any = [{"id": "id2", "title": "kept?"}, {"id": "nobody", "title": "x"}]
    assert refusal(lambda: index.update(gone)) == (scannery.NotFoundError, "upserts[1].datapoint.id")
    kept = index.get(["id2"])[0]
    assert kept is not None and kept.title != "kept?"


def test_what_a_mask_does_not_name_is_refused(store: Path) -> None:
    catalog = open_embedded_catalog(store)
    writes = Writes(catalog)
    request = index_pb2.UpsertRequest(index="live")
    item = request.upserts.add(datapoint=types_pb2.Datapoint(id="id1", title="a"))
    item.update_mask.paths.append("attributes.year")
    with pytest.raises(serving.InvalidRequestError, match=r"title: is not in the update_mask"):
        writes.upsert(request, Deadline.after(10))
    item.update_mask.paths[:] = ["titel"]
    with pytest.raises(serving.InvalidRequestError, match=r"did you mean title"):
        writes.upsert(request, Deadline.after(10))
    catalog.close()


@pytest.mark.system
def test_conditions_hold_for_the_state_the_write_comes_upon(index: Index) -> None:
    first = index.upsert([{"id": "a", "vector": VECTOR, "if_absent": True}])
    assert refusal(lambda: index.upsert([{"id": "a", "vector": VECTOR, "if_absent": True}])) == (
        scannery.FailedPreconditionError,
        "upserts[0].condition",
    )
    second = index.upsert([{"id": "a", "vector": VECTOR, "if_revision": first.sequence}])
    for stale in (first.sequence, 0, 77):
        wrong: Any = [{"id": "a", "vector": VECTOR, "if_revision": stale}]
        assert refusal(lambda wrong=wrong: index.upsert(wrong))[0] is scannery.FailedPreconditionError
    # What a build made has revision 0.
    index.update([{"id": "id3", "title": "t", "if_revision": 0}])
    assert refusal(lambda: index.delete(["a"], if_revision=first.sequence))[1] == "ids[0]"
    assert index.delete(["a"], if_revision=second.sequence).deleted == 1
    assert index.stats().sequence == 4


@pytest.mark.system
def test_words_are_made_before_a_writes_transaction_and_by_no_replay(
    index: Index, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    analysing: list[str] = []

    def counts(self: Analyser, text: str) -> tuple[Counter[str], int]:
        analysing.append(threading.current_thread().name)
        return original(self, text)

    original = Analyser.counts
    monkeypatch.setattr(Analyser, "counts", counts)
    index.upsert([{"id": "a", "vector": VECTOR, "text": "a zebra"}])
    index.upsert([{"id": "b", "vector": VECTOR, "text": "a zebra", "if_absent": True}])
    index.update([{"id": "b", "title": "giraffe"}, {"id": "id1", "attributes": {"year": 3}}])
    assert analysing and not [name for name in analysing if name.startswith("scannery-writer")]
    analysing.clear()
    with scannery.connect(store) as other:  # replays the log
        replayed = other.index("live")
        assert replayed.stats().sequence == 3
        assert analysing == []
        assert {hit.id for hit in replayed.search("zebra", mode="lexical")} == {"a", "b"}
        assert {hit.id for hit in replayed.search("giraffe", mode="lexical")} == {"b"}


@pytest.mark.system
def test_a_repeated_request_gets_the_first_answer(index: Index) -> None:
    done = index.upsert([{"id": "a", "vector": VECTOR}], request_id="r1")
    index.delete(["a"])
    assert index.upsert([{"id": "a", "vector": VECTOR}], request_id="r1") == done
    assert index.get(["a"]) == [None]
    assert refusal(lambda: index.delete(["a"], request_id="x" * 65))[1] == "request_id"


@pytest.mark.system
def test_deletions_count_what_was_there(index: Index) -> None:
    rows = {f"id{i}": index.get([f"id{i}"])[0] for i in range(30)}
    document = rows["id0"].document_id  # type: ignore[union-attr]
    members = [name for name, row in rows.items() if row is not None and row.document_id == document]
    done = index.delete(["id0", "nobody"], document_ids=[document, "nothing"])
    assert done.deleted == len(members)
    assert index.get(members) == [None] * len(members)
    assert index.delete(["id0"]).deleted == 0
    assert refusal(lambda: index.delete([]))[1] == "ids"


@pytest.mark.system
def test_concurrent_writers_share_syncs_and_lose_nothing(store: Path) -> None:
    with scannery.connect(store) as client:
        index = client.index("live")

        def work(number: int) -> None:
            for i in range(25):
                index.upsert([{"id": f"w{number}-{i}", "vector": VECTOR}])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert index.stats().rows == 230
        assert index.stats().sequence == 200


@pytest.mark.system
def test_full_memory_refuses_writes_and_keeps_answering(tmp_path: Path) -> None:
    spec = parse_spec(
        {**LIVE.model_dump(), "live": {"max_rows": 1000, "seal_rows": 1000, "seal_age_s": 9999}}
    )
    store = Store.open(tmp_path / "store", create=True)
    publish(store, spec, datapoints(spec, np.eye(DIMENSIONS, dtype=np.float32)), tmp_path)
    catalog = server_catalog(store)  # without a watcher, nothing is sealed
    catalog.refresh()
    writes = Writes(catalog)

    def write(first: int, count: int) -> None:
        request = index_pb2.UpsertRequest(index="live")
        for i in range(first, first + count):
            request.upserts.add(
                datapoint=types_pb2.Datapoint(id=f"n{i}", vector=types_pb2.Vector(values=VECTOR))
            )
        writes.upsert(request, Deadline.after(30))

    write(0, 999)
    write(999, 5)
    with pytest.raises(serving.OverloadedError, match=r"wait to be sealed .*scannery maintain") as caught:
        write(2000, 1)
    assert caught.value.retry_after_s is not None
    assert catalog.snapshot("live").rows == DIMENSIONS + 1004
    catalog.close()


@pytest.mark.system
def test_a_disk_that_is_full_refuses_writes_until_there_is_room(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with scannery.connect(store) as client:
        index = client.index("live")
        index.upsert([{"id": "a", "vector": VECTOR}])
        live = client._transport._engine._service._catalog.live("live")  # type: ignore[attr-defined]
        writer = live._log._writer
        pages = writer.execute("PRAGMA page_count").fetchone()[0]
        writer.execute(f"PRAGMA max_page_count = {pages}")
        big: Any = [{"id": f"b{i}", "vector": VECTOR, "text": "x" * 100_000} for i in range(20)]
        with pytest.raises(scannery.UnavailableError, match="disk is full"):
            index.upsert(big)
        assert [point is None for point in index.get(["a", "b0"])] == [False, True]
        assert index.upsert(big).sequence == 2


@pytest.mark.system
def test_whoever_hangs_in_a_transaction_holds_up_writes_and_nothing_else(store: Path) -> None:
    with scannery.connect(store) as client:
        index = client.index("live")
        index.upsert([{"id": "a", "vector": VECTOR}])
        other = SqliteLog(store / "live" / "log")
        with other.transaction(after=0):
            for name in ("b", "c"):
                with pytest.raises(scannery.DeadlineExceededError):
                    index.upsert([{"id": name, "vector": VECTOR}], timeout_s=1.0)
            assert len(index.search(VECTOR)) == 10
            assert index.get(["a", "b"])[1] is None
        # The first was waiting for the lock, and was written as a whole; the second was given up in time.
        assert index.upsert([{"id": "d", "vector": VECTOR}]).sequence == 3
        assert [point is not None for point in index.get(["b", "c", "d"])] == [True, False, True]
        other.close()


@pytest.mark.system
def test_writes_that_wait_for_the_disk_leave_queries_their_permits(store: Path) -> None:
    with served.serving(store, threads=1) as server, scannery.connect(server.address) as client:
        index = client.index("live")
        index.upsert([{"id": "a", "vector": VECTOR}])
        other = SqliteLog(store / "live" / "log")

        def write(i: int) -> Written:
            return index.upsert([{"id": f"b{i}", "vector": VECTOR}])

        with ThreadPoolExecutor(3) as pool:
            with other.transaction(after=0):
                writes = [pool.submit(write, i) for i in range(3)]
                for _ in range(5):
                    assert index.search(VECTOR, 1, timeout_s=20)[0].id == "a"
                assert not any(write.done() for write in writes)
            assert sorted(write.result().sequence for write in writes) == [2, 3, 4]
        other.close()


@pytest.mark.system
def test_a_log_that_cannot_be_written_refuses_writes(store: Path) -> None:
    (store / "live" / "log").write_text("a file is in the way")
    with scannery.connect(store) as client:
        index = client.index("live")
        with pytest.raises(scannery.UnavailableError):
            index.upsert([{"id": "a", "vector": VECTOR}])
        assert len(index.search(VECTOR)) == 10
        (store / "live" / "log").unlink()
        assert index.upsert([{"id": "a", "vector": VECTOR}]).sequence == 1


def test_a_store_without_a_local_folder_takes_no_writes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Store, "local_root", None)
    catalog = embedded_catalog(Store.open(store))
    with pytest.raises(serving.ReadOnlyError, match="--log"):
        Writes(catalog).delete(index_pb2.DeleteRequest(index="live", ids=["a"]), Deadline.after(5))
    catalog.close()


@pytest.mark.system
def test_a_damaged_log_is_not_served_in_silence(store: Path, tmp_path: Path) -> None:
    with scannery.connect(store) as client:
        for i in range(3):
            client.index("live").upsert([{"id": f"n{i}", "vector": VECTOR}])
    with closing(apsw.Connection(str(store / "live" / "log" / "log.sqlite"))) as connection:
        connection.execute("UPDATE records SET data = x'00' WHERE sequence = 2")
    with scannery.connect(store) as client, pytest.raises(scannery.DataLossError, match="record 2"):
        client.index("live").search(VECTOR)


@pytest.mark.system
@pytest.mark.parametrize("harm", ["flipped", "cut off"])
def test_acknowledged_writes_are_not_lost_in_silence(store: Path, tmp_path: Path, harm: str) -> None:
    """SQLite takes damage in its write-ahead log for the end of it, and so would lose all that came after."""
    copy = tmp_path / "copy"
    with scannery.connect(store) as client:
        for i in range(10):
            client.index("live").upsert([{"id": f"n{i}", "vector": VECTOR}])
        # As `kill -9` leaves it: closing would empty it.
        shutil.copytree(store, copy)
    wal = copy / "live" / "log" / "log.sqlite-wal"
    data = bytearray(wal.read_bytes())
    if harm == "flipped":
        data[len(data) // 2] ^= 1
    wal.write_bytes(data if harm == "flipped" else data[: len(data) * 3 // 4])
    with scannery.connect(copy) as client, pytest.raises(scannery.DataLossError, match="10 was acknowledged"):
        client.index("live").search(VECTOR)
    # Whoever accepts the loss says so.
    with pytest.raises(AlreadyExistsError, match="log already"):
        forget_log(Store.open(copy), "live")
    (copy / "live" / "log").rename(tmp_path / "put away")
    with scannery.connect(copy) as client, pytest.raises(scannery.DataLossError, match=r"is gone.*--forget"):
        client.index("live").search(VECTOR)
    forget_log(Store.open(copy), "live")
    with scannery.connect(copy) as client:
        assert client.index("live").get(["n0"]) == [None]


def test_a_mutation_that_never_was_is_not_waited_for(index: Index) -> None:
    with pytest.raises(scannery.InvalidArgumentError, match="up to 0, got 5"):
        index.search(VECTOR, min_sequence=5)


@pytest.mark.system
def test_texts_are_cut_and_encoded_as_a_build_would(texts: Path, tmp_path: Path) -> None:
    store = copied(texts, tmp_path)
    with scannery.connect(store) as client:
        index = client.index("texts")
        done = index.upsert(
            [{"id": "glacier", "text": "A glacier is a river of ice.", "attributes": {"letters": 28}}]
        )
        assert done.written == 1
        assert index.search("frozen water that flows", 1)[0].id == "glacier"
        point = index.get(["glacier"])[0]
        assert point is not None
        assert (point.text_start, point.text_end, point.document_id) == (0, 28, "glacier")
        own = np.ones(384, np.float32)
        mixed: Any = [
            {"id": "ready", "vector": own, "text": "A vector of its own."},
            {"id": "dune", "text": "A dune is a hill of sand."},
            {"id": "blank", "vector": own, "text": " "},
        ]
        assert index.upsert(mixed).written == 3
        ready, dune, blank = index.get(["ready", "dune", "blank"], vectors=True)
        assert ready is not None and dune is not None and blank is not None
        assert (ready.text, dune.text, blank.text) == (
            "A vector of its own.",
            "A dune is a hill of sand.",
            " ",
        )
        np.testing.assert_array_equal(ready.vector, own)
        assert index.search("sand that the wind heaps up", 1)[0].id == "dune"
        wrong: Any = [{"id": "b", "text": "fine"}, {"id": "c", "text": "  "}]
        assert refusal(lambda: index.upsert(wrong)) == (
            scannery.InvalidArgumentError,
            "upserts[1].datapoint.text",
        )
        assert index.get(["b"]) == [None]


def _cut_store(texts: Path, folder: Path) -> Path:
    """Return a copy of the store `texts` whose documents are cut into passages of 16 tokens."""
    with scannery.connect(texts) as client:
        manifest = client._transport._engine._service._catalog.snapshot("texts").manifest  # type: ignore[attr-defined]
    cut = {"id": "id", "text": "text", "title": "t", "chunk": {"max_tokens": 16, "overlap_tokens": 0}}
    spec = parse_spec({**manifest.spec.model_dump(), "source": cut})
    store = Store.open(folder / "cut", create=True)
    table = datapoints(
        spec,
        np.ones((2, manifest.dimensions), np.float32),
        ids=["old#0", "old#1"],
        columns={"document_id": ["old", "old"]},
    )
    publish_version(store, spec, table, folder, encoder=manifest.encoder)
    return folder / "cut"


@pytest.mark.system
def test_passages_that_would_repeat_too_much_are_refused(texts: Path, tmp_path: Path) -> None:
    store = _cut_store(texts, tmp_path)
    payload = {"note": "x" * (500 << 10)}
    with scannery.connect(store) as client:
        index = client.index("texts")
        before = index.stats().rows
        with pytest.raises(
            scannery.InvalidArgumentError, match=r"would each repeat .* at most 64 MiB"
        ) as caught:
            index.upsert([NewDatapoint(id="big", text="many words " * 2000, payload=payload)])
        assert caught.value.field == "upserts[0].datapoint.text"
        several: list[Any] = [
            {"id": f"big{i}", "text": "many words " * 400, "payload": payload} for i in range(4)
        ]
        with pytest.raises(scannery.InvalidArgumentError, match=r"fewer datapoints at a time"):
            index.upsert(several)
        assert index.stats().rows == before
        index.upsert(several[:1])
        assert index.get(["big0#0"])


@pytest.mark.system
def test_a_document_is_replaced_with_all_of_its_passages(texts: Path, tmp_path: Path) -> None:
    store = _cut_store(texts, tmp_path)
    long = " ".join(f"Sentence number {i} is about bread and yeast." for i in range(6))
    with scannery.connect(store, timeout_s=120) as client:
        index = client.index("texts")
        done = index.upsert([{"id": "old", "text": long, "title": "Baking"}])
        assert done.written >= 3
        assert index.stats().rows == done.written
        parts = [p for p in index.get([f"old#{i}" for i in range(done.written)]) if p is not None]
        assert [p.text for p in parts] == [long[p.text_start : p.text_end] for p in parts]
        assert {(p.document_id, p.title, p.revision) for p in parts} == {("old", "Baking", done.sequence)}
        # Fields and conditions of a document are those of all its passages.
        index.update([{"id": "old", "title": "Bread", "attributes": {"letters": 7}, "if_revision": 1}])
        assert {p.title for p in index.get([f"old#{i}" for i in range(done.written)]) if p} == {"Bread"}
        assert len(index.search("yeast", 20, where={"letters": 7})) == done.written
        with pytest.raises(scannery.FailedPreconditionError):
            index.upsert([{"id": "old", "text": "x", "if_absent": True}])
        assert index.upsert([{"id": "old", "text": "Only one sentence."}]).written == 1
        assert index.stats().rows == 1
        passage: Any = [{"id": "p", "document_id": "old", "text": "a passage"}]
        assert refusal(lambda: index.upsert(passage))[1] == "upserts[0].datapoint.document_id"
        assert index.delete(document_ids=["old"]).deleted == 1
        assert index.search("yeast") == []


TIMES: dict[str, Any] = {"time_start_s": 61.5, "time_end_s": 90.0}


@pytest.mark.system
@pytest.mark.parametrize("wire", WIRES)
def test_texts_keep_the_times_that_are_given(texts: Path, tmp_path: Path, wire: str) -> None:
    with connected(copied(texts, tmp_path), wire) as client:
        index = client.index("texts")
        passage = {"document_id": "talk", "text": "Whales sing.", "text_start": 40, "text_end": 52}
        points: Any = [{"id": "talk#3", **passage, **TIMES}, {"id": "plain", "text": "Whales dive."}]
        index.upsert(points)
        found = {hit.id: hit for hit in index.search("whales", 2)}
        spans = {
            name: (hit.text_start, hit.text_end, hit.time_start_s, hit.time_end_s)
            for name, hit in found.items()
        }
        assert spans == {"talk#3": (40, 52, 61.5, 90.0), "plain": (0, 12, None, None)}
        wrong: Any = {"id": "a", "text": "A", "time_start_s": "soon"}
        assert refusal(lambda: index.upsert([wrong]))[1] == ("upserts[0].datapoint.time_start_s")


@pytest.mark.system
def test_passages_without_marks_have_the_times_of_their_document(texts: Path, tmp_path: Path) -> None:
    with scannery.connect(_cut_store(texts, tmp_path), timeout_s=120) as client:
        index = client.index("texts")
        long = " ".join(f"Sentence number {i} is about bread and yeast." for i in range(6))
        marked = f"[01:10] {long} [01:20] {long}"
        points: Any = [{"id": "old", "text": long, **TIMES}, {"id": "marked", "text": marked, **TIMES}]
        written = index.upsert(points).written
        parts = [part for part in index.scan() if part.document_id == "old"]
        assert len(parts) >= 3
        assert {(part.time_start_s, part.time_end_s) for part in parts} == {(61.5, 90.0)}
        own = [part for part in index.scan() if part.document_id == "marked"]
        assert len(own) + len(parts) == written
        assert {part.time_start_s for part in own} == {70.0, 80.0}
        # The last mark has no end.
        assert {part.time_end_s for part in own} == {80.0, 90.0}
        wrong: Any = [{"id": "p", "text": "a passage", "text_end": 9}]
        assert refusal(lambda: index.upsert(wrong))[1] == "upserts[0].datapoint.text_end"


def test_the_log_of_an_index_that_is_behind_its_version_goes_on(store: Path) -> None:
    catalog = open_embedded_catalog(store)
    live = catalog.live("live")
    deletion = index_pb2.DeleteRequest(index="live", ids=["id1"])
    assert Writes(catalog).delete(deletion, Deadline.after(5)).sequence == 1
    with pytest.raises(ConditionError):
        condition = index_pb2.WriteCondition(if_revision=3)
        Writes(catalog).delete(
            index_pb2.DeleteRequest(index="live", ids=["id2"], condition=condition), Deadline.after(5)
        )
    assert live.snapshot.sequence == 1
    catalog.close()
    log = SqliteLog(store / "live" / "log")
    assert log.position() == 1
    log.close()


@pytest.mark.system
def test_each_deletion_of_a_batch_has_its_own_condition(store: Path) -> None:
    catalog = open_embedded_catalog(store)

    def delete(ids: list[str], revisions: list[int], **fields: Any) -> int:
        conditions = [index_pb2.WriteCondition(if_revision=revision) for revision in revisions]
        request = index_pb2.DeleteRequest(index="live", ids=ids, conditions=conditions, **fields)
        return Writes(catalog).delete(request, Deadline.after(5)).deleted

    with closing(catalog), scannery.connect(store) as client:
        index = client.index("live")
        for name in ("id1", "id2"):
            index.upsert([{"id": name, "vector": VECTOR}])
        for ids, revisions, message in (
            (["id1", "id2"], [1, 1], r"conditions\[1\].if_revision: datapoint 'id2' has revision 2, not 1"),
            (["id3", "none"], [0, 0], r"conditions\[1\].if_revision: there is no datapoint 'none'"),
        ):
            with pytest.raises(ConditionError, match=message):
                delete(ids, revisions)
        assert index.stats().rows == 30
        one = index_pb2.WriteCondition(if_revision=1)
        absent = index_pb2.WriteCondition(if_absent=True)
        for wrong in (
            {"condition": one},
            {"ids": ["id1"]},
            {"ids": ["id1", "id1"]},
            {"conditions": [one, absent]},
        ):
            request = {"index": "live", "ids": ["id1", "id2"], "conditions": [one, one], **wrong}
            with pytest.raises(InvalidRequestError, match="conditions"):
                Writes(catalog).delete(index_pb2.DeleteRequest(**request), Deadline.after(5))  # type: ignore[arg-type]
        assert delete(["id1", "id2", "id3"], [1, 2, 0]) == 3
        assert index.stats().rows == 27


@pytest.mark.system
def test_vectors_are_kept_as_they_are_given(index: Index, store: Path, tmp_path: Path) -> None:
    """In every form a vector can have, alone or beside one of another form; cosine scales for search only."""
    given = np.array([3, 4, 1e-7, *[0.5] * (DIMENSIONS - 3)], np.float32)
    forms = {
        "values": types_pb2.Vector(values=given.tolist()),
        "packed": types_pb2.Vector(packed=given.tobytes()),
    }
    with closing(open_embedded_catalog(store)) as catalog:
        writes = Writes(catalog)
        for names in (["values"], ["packed"], ["values", "packed"]):
            upserts = [
                index_pb2.Upsert(
                    datapoint=types_pb2.Datapoint(id=f"{'-'.join(names)}/{name}", vector=forms[name])
                )
                for name in names
            ]
            writes.upsert(index_pb2.UpsertRequest(index="live", upserts=upserts), Deadline.after(60))
    ids = ["values/values", "packed/packed", "values-packed/values", "values-packed/packed"]

    def check() -> None:
        with scannery.connect(store) as client:
            for point in client.index("live").get(ids, vectors=True):
                assert point is not None and point.vector is not None
                assert point.vector.tobytes() == given.tobytes()

    check()
    assert seal(Store.open(store), "live") is not None
    check()
    export("live", store, tmp_path / "out.parquet")
    rows = {row["id"]: row["embedding"] for row in pq.read_table(tmp_path / "out.parquet").to_pylist()}
    assert all(np.array(rows[name], np.float32).tobytes() == given.tobytes() for name in ids)


ODD_JSON = [
    r'"\ud800"', r'{"a": ["\udfff"]}', r'{"\ud800": 1}', "[Infinity]", "1e999", "1" * 5000, "[" * 100_000, "",
    "{1: 2}", '{"a": 1', "\ufeff1", "'a'", "\x00",
]  # fmt: skip


@pytest.mark.system
@pytest.mark.parametrize("value", ODD_JSON, ids=lambda value: ascii(value)[:20])
def test_payloads_that_are_no_json_are_named_and_refuse_their_batch(
    index: Index, store: Path, value: str
) -> None:
    first = types_pb2.Datapoint(id="first", vector=types_pb2.Vector(values=VECTOR))
    odd = types_pb2.Datapoint(id="odd", vector=types_pb2.Vector(values=VECTOR), payload_json=value)
    change = types_pb2.Datapoint(id="id1", payload_json=value)
    mask = field_mask_pb2.FieldMask(paths=["payload_json"])
    with closing(open_embedded_catalog(store)) as catalog:
        for second in (index_pb2.Upsert(datapoint=odd), index_pb2.Upsert(datapoint=change, update_mask=mask)):
            request = index_pb2.UpsertRequest(
                index="live", upserts=[index_pb2.Upsert(datapoint=first), second]
            )
            with pytest.raises(InvalidRequestError) as caught:
                Writes(catalog).upsert(request, Deadline.after(60))
            assert caught.value.field == "upserts[1].datapoint.payload_json"
    assert index.get(["first", "odd"]) == [None, None]


@pytest.mark.system
@pytest.mark.parametrize(
    "value",
    [r'["\ud800"]', '["a"', "[[1]]", "[NaN, {}]", "[" * 100_000, '["a", null]'],
    ids=lambda value: value[:12],
)
def test_lists_given_as_odd_text_are_named(index: Index, value: str) -> None:
    batch: Any = [
        {"id": "first", "vector": VECTOR},
        {"id": "b", "vector": VECTOR, "attributes": {"tags": value}},
    ]
    assert refusal(lambda: index.upsert(batch)) == (
        scannery.InvalidArgumentError, "upserts[1].datapoint.attributes.tags",
    )  # fmt: skip
    assert index.get(["first"]) == [None]


LONE = "\ud800"
POINT = {"id": "a", "vector": VECTOR}
NOT_UNICODE: dict[str, Any] = {
    "upserts[0].datapoint.id": lambda index: index.upsert([{**POINT, "id": LONE}]),
    "upserts[0].datapoint.document_id": lambda index: index.upsert([{**POINT, "document_id": LONE}]),
    "upserts[0].datapoint.title": lambda index: index.upsert([{**POINT, "title": LONE}]),
    "upserts[0].datapoint.text": lambda index: index.upsert([{**POINT, "text": LONE}]),
    "upserts[0].datapoint.payload_json": lambda index: index.upsert([{**POINT, "payload": [LONE]}]),
    "upserts[0].datapoint.attributes.show": lambda index: index.upsert([{**POINT, "attributes": {"show": LONE}}]),
    "upserts[0].datapoint.attributes.tags": lambda index: index.upsert([{**POINT, "attributes": {"tags": [LONE]}}]),
    "upserts[0].datapoint.attributes": lambda index: index.upsert([{**POINT, "attributes": {LONE: 1}}]),
    "where.show": lambda index: index.search(VECTOR, where={"show": LONE}),
    "where": lambda index: index.search(VECTOR, where={LONE: 1}),
    "query": lambda index: index.search(LONE, mode="lexical"),
    "fields": lambda index: index.search(VECTOR, fields=[LONE]),
    "group_by": lambda index: index.search(VECTOR, group_by=LONE, max_per_group=1),
    "ids": lambda index: index.get([LONE]),
    "document_ids": lambda index: index.delete(document_ids=[LONE]),
    "request_id": lambda index: index.delete(["a"], request_id=LONE),
}  # fmt: skip


@pytest.mark.parametrize("field", NOT_UNICODE)
def test_text_that_is_no_unicode_is_named(index: Index, field: str) -> None:
    assert refusal(lambda: NOT_UNICODE[field](index)) == (scannery.InvalidArgumentError, field)
