"""Export: everything comes out, and an index built from it is the same index."""

from __future__ import annotations

import datetime as dt
import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest
import yaml
import zstandard
from obstore.store import MemoryStore

from scannery.indexer import CorruptError, NotFoundError, Store, open_index, parse_spec, read_manifest
from scannery.indexer.store.bucket_backend import BucketBackend
from scannery.pipelines import OutputError, build, export
from tests.data import clustered, datapoints, publish, without_ids

SPEC = parse_spec({
    "index": "films",
    "source": {"vector": "vector", "text": "text", "title": "title", "payload": "more"},
    "distance": "cosine",
    "attributes": {"genre": "string", "cast": "string_list", "year": "int", "rating": "float", "seen": "bool",
                   "released": "timestamp"},
    "shards": 3,
})  # fmt: skip
ROWS = 300


def columns() -> dict[str, list[Any]]:
    """Return values with the corners: nulls, empty lists, quotes, line breaks, large numbers, infinity."""
    moment = dt.datetime(2024, 2, 29, 23, 59, 59, 123457, dt.timezone.utc)
    cycle: dict[str, list[Any]] = {
        "title": ["Metropolis", None, 'The "Third" Man'],
        "text": ["one\ntwo\u2028three", None, "Ж" * 50, "  kept as it is "],
        "text_start": [0, None, 1 << 40],
        "text_end": [5, None, (1 << 40) + 50],
        "time_start_s": [0.1, None],
        "time_end_s": [61.25, None],
        "payload": ['{"a":[1,2.5,null]}', None, '"a string"', "null", "[1]", "12345678901234567890", '{"é":"ü"}'],
        "genre": ["noir", None, ""],
        "cast": [["Lotte", "Fritz"], [], None, ["[x]"]],
        "year": [1927, None, -(2**63), 2**63 - 1],
        "rating": [0.1, None, float("inf"), -float("inf"), 1e-300],
        "seen": [True, False, None],
        "released": [moment, None, dt.datetime(1, 1, 1, tzinfo=dt.timezone.utc)],
    }  # fmt: skip
    return {name: [values[row % len(values)] for row in range(ROWS)] for name, values in cycle.items()} | {
        "document_id": [f"film {row // 7}" for row in range(ROWS)]
    }


@pytest.fixture
def films(tmp_path: Path) -> Store:
    store = Store.open(tmp_path / "store", create=True)
    publish(store, SPEC, datapoints(SPEC, vectors(), columns=columns()), tmp_path, shards=3)
    return store


def vectors() -> np.ndarray:
    vectors_ND = clustered(ROWS, 24)
    vectors_ND[0, 0] = -0.0
    vectors_ND[1, :3] = [1e-40, 1e-10, 3.4e14]  # one that is denormal, one far from it
    return vectors_ND


def contents(store: Store, index: str = "films") -> dict[str, tuple[Any, ...]]:
    """Return everything there is to know of each datapoint, its vector as bytes."""
    found: dict[str, tuple[Any, ...]] = {}
    for segment, rows_R in open_index(store, index).live_rows():
        vectors_RD = segment.vectors(rows_R)
        for vector_D, values in zip(vectors_RD, segment.take(rows_R).to_pylist(), strict=True):
            assert values["id"] not in found
            found[values["id"]] = (vector_D.tobytes(), values)
    return found


FORMATS = ["parquet", "jsonl", "jsonl.gz", "jsonl.zst"]


@pytest.mark.system
@pytest.mark.parametrize("single", [True, False], ids=["file", "folder"])
@pytest.mark.parametrize("format", FORMATS)
def test_an_index_built_from_an_export_is_the_same(tmp_path, films, format, single):
    output = tmp_path / (f"films.{format}" if single else "films")
    report = export("films", films.uri, output, format=None if single else format)
    assert (report.rows, report.version, report.dimensions, report.format) == (ROWS, 1, 24, format)
    assert len(report.files) == (1 if single else 3)
    assert report.spec is not None
    again = tmp_path / "again"
    built = build(report.spec, [str(output)], str(again))
    assert (built.passages, built.dead) == (ROWS, 0)
    assert contents(Store.open(again)) == contents(films)
    spec = read_manifest(Store.open(again), "films").spec
    assert spec.model_copy(update={"source": SPEC.source}) == SPEC


@pytest.mark.system
@pytest.mark.parametrize("name", ["all.parquet", "all.jsonl"])
def test_sparse_vectors_come_out_and_go_in_again(tmp_path, name):
    spec = {"index": "words", "source": {"vector": "vector", "sparse_vector": "words"}}
    records = [
        {"id": "a", "vector": [1.0, 0.5], "words": {"7": 0.1, "4294967295": -2.5}},
        {"id": "b", "vector": [0.1, 1.0]},
        {"id": "c", "vector": [0.3, 1.0], "words": {"indices": [3], "values": [1.0]}},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join(map(json.dumps, records)))
    build(spec, [str(tmp_path / "in.jsonl")], str(tmp_path / "one"))
    report = export("words", tmp_path / "one", tmp_path / name)
    assert report.spec is not None
    build(report.spec, [str(tmp_path / name)], str(tmp_path / "two"))
    one, two = (
        pq.read_table(next((tmp_path / store).rglob("segments/*.parquet"))).sort_by("id")
        for store in ("one", "two")
    )
    assert one.column("_sparse_indices").to_pylist() == [[7, 4294967295], None, [3]]
    assert one.equals(two)


@pytest.mark.system
def test_a_plain_vector_spec_reads_an_export_too(tmp_path, films):
    export("films", films.uri, tmp_path / "films.parquet")
    spec = SPEC.model_dump() | {
        "source": {"vector": "embedding", "text": "text", "title": "title", "payload": "payload"}
    }
    build(spec, [str(tmp_path / "films.parquet")], str(tmp_path / "again"))
    one, other = contents(films), contents(Store.open(tmp_path / "again"))
    assert {name: row[0] for name, row in one.items()} == {name: row[0] for name, row in other.items()}
    assert all(one[name][1][key] == other[name][1][key] for name in one for key in SPEC.attributes)


def test_json_lines_are_json(tmp_path, films):
    export("films", films.uri, tmp_path / "films.jsonl")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    text = (tmp_path / "films.jsonl").read_text()
    rows = {
        r["id"]: r for r in (json.loads(line, parse_constant=refuse) for line in text.split("\n") if line)
    }
    assert len(rows) == ROWS
    assert rows["d0"] | {"embedding": None} == {
        "id": "d0", "document_id": "film 0", "embedding": None, "title": "Metropolis",
        "text": "one\ntwo\u2028three", "text_start": 0, "text_end": 5, "time_start_s": 0.1, "time_end_s": 61.25,
        "payload": {"a": [1, 2.5, None]}, "genre": "noir", "cast": ["Lotte", "Fritz"], "year": 1927,
        "rating": 0.1, "seen": True, "released": "2024-02-29T23:59:59.123457+00:00",
    }  # fmt: skip
    assert set(rows["d1"]) == {"id", "document_id", "embedding", "cast", "seen"}
    assert (rows["d2"]["payload"], rows["d2"]["rating"]) == ('"a string"', "Infinity")


@pytest.mark.system
def test_compressed_files_hold_the_same_lines(tmp_path, films):
    for format in FORMATS[1:]:
        export("films", films.uri, tmp_path / f"films.{format}")
    plain = (tmp_path / "films.jsonl").read_bytes()
    assert gzip.decompress((tmp_path / "films.jsonl.gz").read_bytes()) == plain
    unpacked = zstandard.ZstdDecompressor().stream_reader((tmp_path / "films.jsonl.zst").read_bytes()).read()
    assert unpacked == plain


@pytest.mark.system
def test_other_tools_read_the_parquet(tmp_path, films):
    export("films", films.uri, tmp_path / "films")
    found = duckdb.sql(
        f"select count(*), max(year), count(distinct document_id) from '{tmp_path}/films/*.parquet'"
    )
    assert found is not None
    assert found.fetchall() == [(ROWS, 2**63 - 1, 43)]
    metadata = pq.read_schema(tmp_path / "films" / "part-00000-of-00003.parquet").metadata
    assert json.loads(metadata[b"scannery.export"]) == {"index": "films", "version": 1, "distance": "cosine"}


@pytest.mark.system
def test_a_folder_says_what_it_holds(tmp_path, films):
    report = export("films", films.uri, tmp_path / "films")
    written = json.loads((tmp_path / "films" / "_export.json").read_text())
    assert written == json.loads(json.dumps(report.to_dict()))
    assert written["rows"] == sum(file["rows"] for file in written["files"]) == ROWS
    for file in written["files"]:
        path = tmp_path / "films" / file["name"]
        assert path.stat().st_size == file["size_bytes"]
        assert pq.read_metadata(path).num_rows == file["rows"]
    spec = yaml.safe_load((tmp_path / "films" / "_spec.yaml").read_text())
    assert spec == report.spec
    assert spec["source"] == {"format": "datapoints"}


def test_without_vectors(tmp_path, films):
    report = export("films", films.uri, tmp_path / "films", vectors=False)
    assert report.spec is None
    names = pq.read_schema(tmp_path / "films" / "part-00000-of-00003.parquet").names
    assert "embedding" not in names
    assert "text" in names
    assert not (tmp_path / "films" / "_spec.yaml").exists()


@pytest.mark.system
def test_an_old_version_can_be_exported(tmp_path):
    records = [{"id": str(i), "embedding": [float(i), 1.0]} for i in range(5)]
    source = tmp_path / "a.jsonl"
    for count in (3, 5):
        source.write_text("".join(json.dumps(record) + "\n" for record in records[:count]))
        build({"index": "i", "source": {"vector": "embedding"}}, [str(source)], str(tmp_path / "store"))
    assert export("i", tmp_path / "store", tmp_path / "new.jsonl").rows == 5
    assert export("i", tmp_path / "store", tmp_path / "old.jsonl", version=1).rows == 3
    with pytest.raises(NotFoundError, match="no version 9"):
        export("i", tmp_path / "store", tmp_path / "none.jsonl", version=9)
    assert not (tmp_path / "none.jsonl").exists()


@pytest.mark.system
def test_deleted_rows_are_not_exported(tmp_path, films):
    gone = {"d3", "d299"}
    without_ids(films, "films", gone)
    assert export("films", films.uri, tmp_path / "less.jsonl").rows == ROWS - 2
    with (tmp_path / "less.jsonl").open() as lines:
        ids = {json.loads(line)["id"] for line in lines}
    assert (len(ids), ids & gone) == (ROWS - 2, set())


@pytest.mark.system
def test_an_export_never_mixes_with_what_is_there(tmp_path, films):
    export("films", films.uri, tmp_path / "films")
    with pytest.raises(OutputError, match="not empty, it has .*; overwrite replaces"):
        export("films", films.uri, tmp_path / "films")
    report = export("films", films.uri, tmp_path / "films", format="jsonl", overwrite=True)
    assert sorted(path.name for path in (tmp_path / "films").iterdir()) == [
        "_export.json", "_spec.yaml", *(file.name for file in report.files)
    ]  # fmt: skip
    (tmp_path / "films" / "mine.txt").write_text("x")
    with pytest.raises(OutputError, match=r"it has mine\.txt$"):
        export("films", films.uri, tmp_path / "films", overwrite=True)
    export("films", films.uri, tmp_path / "films.jsonl")
    with pytest.raises(OutputError, match="exists already"):
        export("films", films.uri, tmp_path / "films.jsonl")
    assert export("films", films.uri, tmp_path / "films.jsonl", overwrite=True).rows == ROWS


@pytest.mark.system
@pytest.mark.parametrize(
    ("name", "format", "says"),
    [
        ("a.jsonl", "parquet", "ends like jsonl, and format says parquet"),
        ("a", "csv", "must be one of parquet"),
    ],
)
def test_formats_that_cannot_be(tmp_path, films, name, format, says):
    with pytest.raises(OutputError, match=says):
        export("films", films.uri, tmp_path / name, format=format)


@pytest.mark.parametrize("damage", ["flip", "truncate", "other"])
def test_a_damaged_segment_leaves_no_file(tmp_path, films, damage):
    first, second, _ = (
        Path(films.uri) / "films" / entry.key for entry in read_manifest(films, "films").segments
    )
    data = bytearray(second.read_bytes())
    data[len(data) // 2] ^= 1
    second.write_bytes(
        {"flip": bytes(data), "truncate": bytes(data[:-9]), "other": first.read_bytes()}[damage]
    )
    with pytest.raises(CorruptError, match="is damaged"):
        export("films", films.uri, tmp_path / "films")
    assert [path.name for path in (tmp_path / "films").iterdir()] == ["part-00000-of-00003.parquet"]
    with pytest.raises(CorruptError):
        export("films", films.uri, tmp_path / "films.parquet")
    assert not (tmp_path / "films.parquet").exists()


@pytest.mark.system
def test_object_stores(tmp_path, films, monkeypatch):
    bucket = Store("gs://bucket", BucketBackend(MemoryStore()))
    for item in films.list():
        bucket.write(item.key, films.read(item.key))
    real = Store.open
    monkeypatch.setattr(
        Store, "open", lambda uri, **options: bucket if str(uri).startswith("gs:") else real(uri, **options)
    )
    report = export("films", "gs://bucket", tmp_path / "films.parquet")
    assert report.rows == ROWS
    export("films", films.uri, "gs://bucket/films.parquet")
    assert bucket.read("films.parquet") == (tmp_path / "films.parquet").read_bytes()


@pytest.mark.system
def test_progress_counts_rows(tmp_path, films, monkeypatch):
    monkeypatch.setattr("scannery.pipelines.exports.export_files.MAX_BATCH_ROWS", 40)
    seen: list[tuple[int, int]] = []
    export("films", films.uri, tmp_path / "films.parquet", progress=lambda *done: seen.append(done))
    assert seen[-1] == (ROWS, ROWS)
    assert len(seen) > 5
    assert pq.read_metadata(tmp_path / "films.parquet").num_row_groups == len(seen)
    assert contents(films).keys() == set(pq.read_table(tmp_path / "films.parquet").column("id").to_pylist())


@pytest.mark.system
def test_scann_segments_export_as_given(tmp_path):
    # Cosine vectors that are not of length 1, in a segment with ScaNN's own columns, which stay inside.
    spec = parse_spec({"index": "films", "source": {"vector": "v"}, "scann": {"exact_below_rows": 1000}})
    store, vectors_ND = Store.open(tmp_path / "store", create=True), clustered(1500, 16)
    manifest = publish(store, spec, datapoints(spec, vectors_ND), tmp_path)
    assert manifest.segments[0].kind == "scann"
    report = export("films", store.uri, tmp_path / "films.parquet")
    table = pq.read_table(tmp_path / "films.parquet")
    assert not [name for name in table.column_names if name.startswith("_")]
    found = dict(zip(table.column("id").to_pylist(), table.column("embedding").to_pylist(), strict=True))
    assert all(np.array_equal(np.float32(found[f"d{row}"]), vectors_ND[row]) for row in range(1500))
    assert report.spec is not None
    assert report.spec["scann"] == {"exact_below_rows": 1000}


PEAK = """
import sys
from scannery.pipelines import export

def peak_mib():
    # ru_maxrss would be that of the test's own process, which a child inherits.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM"))

before = peak_mib()
print(export("films", sys.argv[1], sys.argv[2]).rows, peak_mib() - before)
"""


@pytest.mark.long
def test_memory_is_bounded_by_a_batch_and_not_by_the_segment(tmp_path):
    # A batch has 16 MiB, and is there up to ten times. Random vectors: what compresses well would hide what is held.
    rows = 50_000
    spec = parse_spec({"index": "films", "source": {"vector": "v"}, "scann": {"exact_below_rows": 1_000_000}})
    store = Store.open(tmp_path / "store", create=True)
    vectors_ND = np.random.default_rng(0).standard_normal((rows, 1024), np.float32)
    publish(store, spec, datapoints(spec, vectors_ND), tmp_path)
    arguments = [sys.executable, "-c", PEAK, store.uri, str(tmp_path / "films.parquet")]
    # Arrow has as many threads as cores, and each holds something.
    environment = {"PYTHONPATH": ":".join(path for path in sys.path if path), "OMP_NUM_THREADS": "2"}
    done = subprocess.run(arguments, capture_output=True, text=True, check=True, env=environment)
    exported, grown_mib = map(int, done.stdout.split())
    print(f"{grown_mib} MiB more than at rest, for {vectors_ND.nbytes >> 20} MiB of vectors")
    assert exported == rows
    assert grown_mib < 260
