"""Builds of an index that takes live updates: which change to a row wins does not depend on when it is sealed."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import shard_of, verify
from scannery.live.log.homes import forget_log
from scannery.live.maintenance.seal import seal
from scannery.pipelines import SpecConflictError
from scannery.pipelines.stages import publish as publish_stage
from tests.pipelines.conftest import VECTORS, manifest_of, rows_of, run, vector_records
from tests.pipelines.stages.test_update import expected
from tests.pipelines.test_races import overtake

pytestmark = pytest.mark.system

SPEC = VECTORS | {"shards": 2}
LIVE = [1.0] * 8
PAIRS = [(False, "upsert", 1), (False, "full", 4), (True, "upsert", 4), (True, "full", 1)]


def live(store, *ids: str, delete: tuple[str, ...] = ()) -> None:
    with scannery.connect(store.uri) as client:
        index = client.index("vectors")
        if ids:
            index.upsert([{"id": name, "vector": LIVE} for name in ids])
        if delete:
            index.delete(delete)


def served(store) -> dict[str, tuple[float, ...]]:
    with scannery.connect(store.uri) as client:
        points = client.index("vectors").get([f"d{i}" for i in range(60)], vectors=True)
        return {p.id: tuple(p.vector.tolist()) for p in points if p is not None and p.vector is not None}


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(
        "index: vectors\nsource: {vector: vector}\nattributes: {show: string, n: int}\nshards: 2\n"
    )
    return str(path)


@pytest.mark.parametrize("mode", ["upsert", "full"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_build_replaces_what_was_written_before_it(store, write, spec, mode, elsewhere, tmp_path):
    records = vector_records(0, 20)
    run(store, write("a.jsonl", records), spec=SPEC)
    live(store, "d1", "d30", delete=("d2",))
    options = []
    if elsewhere:
        (store.local_root / "vectors" / "log").rename(tmp_path / "log")
        (tmp_path / "logs" / "vectors").mkdir(parents=True)
        (tmp_path / "log").rename(tmp_path / "logs" / "vectors" / "log")
        options = ["--log", str(tmp_path / "logs")]
    arguments = ["build", spec, "--input", write("a.jsonl", records), "--store", store.uri, "--mode", mode]
    assert main([*arguments, *options]) == 0
    if elsewhere:  # an embedded client finds a log in the store only
        (tmp_path / "logs" / "vectors" / "log").rename(store.local_root / "vectors" / "log")
    wanted: dict[str, Any] = expected(*records)
    found = rows_of(store) if elsewhere else served(store)  # other processes refuse an index without its log
    assert found == wanted | ({"d30": tuple(LIVE)} if mode == "upsert" else {})
    assert not verify(store, "vectors").problems


@pytest.mark.parametrize("mode", ["upsert", "full"])
@pytest.mark.parametrize("sealed", [False, True])
def test_what_is_written_while_a_build_runs_wins(store, write, monkeypatch, mode, sealed):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=SPEC)
    live(store, "d5")
    seal(store, "vectors")

    def written() -> None:
        live(store, "d1", "d40", "d50")
        if sealed:
            seal(store, "vectors")

    overtake(monkeypatch, written)
    new = [*vector_records(0, 10, seed=1), *vector_records(40, 42)]
    report = run(store, path := write("b.jsonl", new), spec=SPEC, mode=mode)
    wanted: dict[str, Any] = expected(*([] if mode == "full" else vector_records(0, 20)), *new)
    wanted |= dict.fromkeys(("d1", "d40", "d50"), tuple(LIVE))
    assert served(store) == wanted
    assert not verify(store, "vectors").problems
    # The same build again has seen all of this, and replaces it.
    if sealed:
        again = run(store, path, spec=SPEC, mode=mode)
        wanted = expected(*([] if mode == "full" else vector_records(0, 20)), *new)
        assert rows_of(store) == wanted | ({} if mode == "full" else {"d50": tuple(LIVE)})
        assert again.version == report.version + 1


@pytest.mark.parametrize("mode", ["upsert", "full"])
@pytest.mark.parametrize(("shards", "same"), [(1, True), (4, True), (4, False)])
def test_an_id_that_goes_to_another_document_while_a_build_runs_stands_once(
    store, write, monkeypatch, mode, shards, same
):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=VECTORS | {"shards": shards})
    other = next(
        name for i in range(99) if (shard_of(name := f"x{i}", shards) == shard_of("d3", shards)) == same
    )

    def written() -> None:
        with scannery.connect(store.uri) as client:
            client.index("vectors").upsert([{"id": "d3", "vector": LIVE, "document_id": other}])
        seal(store, "vectors")

    overtake(monkeypatch, written)
    new = vector_records(0, 20, seed=1)
    run(store, write("b.jsonl", new), spec=VECTORS | {"shards": shards}, mode=mode)
    assert served(store) == expected(*new) | {"d3": tuple(LIVE)}
    assert not verify(store, "vectors").problems


# Each two of the three in all their combinations; all three with `make test-long`.
@pytest.mark.parametrize(
    ("sealed", "mode", "shards"),
    [
        case if case in PAIRS else pytest.param(*case, marks=pytest.mark.long)
        for case in itertools.product([False, True], ["upsert", "full"], [1, 4])
    ],
)
def test_what_is_deleted_while_a_build_runs_stays_deleted(store, write, monkeypatch, mode, shards, sealed):
    spec = VECTORS | {"shards": shards}
    run(store, write("a.jsonl", vector_records(0, 20)), spec=spec)

    def written() -> None:
        live(store, "d40", "d41", delete=("d1", "d2"))
        live(store, "d2", delete=("d41",))
        if sealed:
            seal(store, "vectors")
            live(store, "d50", delete=("d3",))
            seal(store, "vectors")

    overtake(monkeypatch, written)
    new = [*vector_records(0, 10, seed=1), *vector_records(40, 42)]
    run(store, write("b.jsonl", new), spec=spec, mode=mode)
    wanted: dict[str, Any] = expected(*([] if mode == "full" else vector_records(0, 20)), *new)
    for name in ("d1", "d41", *(["d3"] if sealed else [])):
        del wanted[name]
    wanted |= dict.fromkeys(("d2", "d40", *(["d50"] if sealed else [])), tuple(LIVE))
    assert served(store) == wanted
    assert seal(store, "vectors") is not None
    assert (rows_of(store), served(store)) == (wanted, wanted)
    assert not verify(store, "vectors").problems


CHANGES: list[dict[str, Any]] = [
    {"shards": 4},
    {"shards": 1},
    {"attributes": {"n": "int"}},
    {"distance": "dot"},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_a_build_that_makes_all_segments_anew_keeps_what_was_written_while_it_ran(
    store, write, monkeypatch, change
):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=SPEC)

    def written() -> None:
        live(store, "d1", "d50", delete=("d2",))
        seal(store, "vectors")

    overtake(monkeypatch, written)
    run(store, write("b.jsonl", new := vector_records(0, 10, seed=1)), spec=SPEC | change, mode="full")
    wanted: dict[str, Any] = expected(*new) | dict.fromkeys(("d1", "d50"), tuple(LIVE))
    del wanted["d2"]
    assert served(store) == wanted
    seal(store, "vectors")
    assert (rows_of(store), served(store)) == (wanted, wanted)
    assert not verify(store, "vectors").problems


ENCODER = {"model": "all-MiniLM-L6-v2", "device": "cpu", "dtype": "float32", "dimensions": 8}
WIDER = [{**record, "vector": [*record["vector"], 0.5]} for record in vector_records(0, 6)]
SPACES: list[tuple[str, dict[str, Any], list[dict[str, Any]]]] = [
    ("dimensions", {}, WIDER),
    ("encoder", {"source": {"text": "show"}, "encoder": ENCODER}, vector_records(0, 6)),
    ("attributes.n", {"attributes": {"show": "string", "n": "string"}}, vector_records(0, 6)),
    ("vectors", {"vectors": "required"}, vector_records(0, 6)),
]


@pytest.mark.parametrize("moment", ["before", "while it runs"])
@pytest.mark.parametrize(("field", "change", "records"), SPACES, ids=[field for field, *_ in SPACES])
def test_a_build_that_live_rows_may_not_fit_publishes_nothing(
    store, write, monkeypatch, field, change, records, moment
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    spec = SPEC | ({"vectors": "optional"} if field == "vectors" else {})
    own = run(store, write("a.jsonl", vector_records(0, 6)), spec=spec)
    changed = SPEC | change
    written = functools.partial(live, store, "d1", "d30", delete=("d2",))
    with monkeypatch.context() as patched:
        if moment == "before":
            written()
        else:  # the first write of all, when the build is nearly done
            measured = publish_stage._measured
            patched.setattr(publish_stage, "_measured", lambda *args: (written(), measured(*args))[1])
        with pytest.raises(SpecConflictError, match=f"{field}: the spec has .* takes live updates") as caught:
            run(store, write("b.jsonl", records), spec=changed, mode="full")
    assert caught.value.field == field
    assert manifest_of(store).version == own.version
    wanted: dict[str, Any] = expected(*vector_records(0, 6)) | dict.fromkeys(("d1", "d30"), tuple(LIVE))
    del wanted["d2"]
    assert served(store) == wanted
    # Without its log, which is sealed, it can be built.
    seal(store, "vectors")
    assert store.local_root is not None
    (store.local_root / "vectors" / "log").rename(store.local_root.parent / "log")
    forget_log(store, "vectors")
    report = run(store, write("b.jsonl", records), spec=changed, mode="full")
    with scannery.connect(store.uri) as client:
        index = client.index("vectors")
        assert index.count() == report.passages == 6
        index.upsert([{"id": "d0", "vector": [1.0] * report.dimensions}])
        assert index.count() == 6


@pytest.mark.parametrize("mode", ["upsert", "full"])
def test_an_index_of_given_vectors_gets_an_encoder_beside_live_updates(store, write, monkeypatch, mode):
    """The encoder is for queries: rows that were written before it fit, whose vectors no encoder made."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    path = write("a.jsonl", records := vector_records(0, 6))
    run(store, path, spec=SPEC)
    live(store, "d1", "d30")
    overtake(monkeypatch, lambda: live(store, "d40"))
    run(store, path, spec=SPEC | {"encoder": ENCODER}, mode=mode)
    wanted: dict[str, Any] = expected(*records) | dict.fromkeys(("d1", "d30", "d40"), tuple(LIVE))
    assert served(store) == wanted
    assert seal(store, "vectors") is not None
    assert served(store) == wanted
    assert not verify(store, "vectors").problems


def test_a_full_build_repairs_an_index_that_cannot_be_sealed(store, write, spec, monkeypatch, tmp_path):
    records = vector_records(0, 20)
    path = write("a.jsonl", records)
    run(store, path, spec=SPEC)
    live(store, "d1")
    for item in store.list("vectors/segments"):
        store.write(item.key, b"x" * item.size_bytes)
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path / "empty"))
    arguments = ["build", spec, "--input", path, "--store", store.uri]
    assert main(arguments) != 0
    assert main([*arguments, "--full"]) == 0
    assert served(store) == expected(*records) | {"d1": tuple(LIVE)}
