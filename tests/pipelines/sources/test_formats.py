"""Files of other worlds: their formats by names and first bytes, their rows, and damage to them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import zipfile
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zstandard
from numpy.lib.format import write_array_header_1_0

from scannery.indexer.spec.spec_files import parse_spec
from scannery.pipelines import InputNotFoundError, UnknownFormatError
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources import Fields, Record, arrange, find_files, read_part, split_file
from scannery.pipelines.sources.streams import read_blocks

ROWS = [{"id": f"a{row}", "text": f"bees {row}"} for row in range(50)]
TABLE = pa.Table.from_pylist(ROWS)
VECTORS = (np.arange(60).reshape(20, 3) % 100).astype(np.float32)


def of_parquet(codec: str = "snappy") -> bytes:
    sink = io.BytesIO()
    pq.write_table(TABLE, sink, compression=codec)
    return sink.getvalue()


def of_arrow(*, stream: bool = False) -> bytes:
    sink = io.BytesIO()
    with (pa.ipc.new_stream if stream else pa.ipc.new_file)(sink, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=7)
    return sink.getvalue()


def of_feather(version: int) -> bytes:
    sink = io.BytesIO()
    pyarrow.feather.write_feather(TABLE, sink, version=version)
    return sink.getvalue()


def of_avro() -> bytes:
    sink = io.BytesIO()
    fields = [{"name": name, "type": "string"} for name in ("id", "text")]
    fastavro.writer(sink, {"type": "record", "name": "row", "fields": fields}, ROWS)
    return sink.getvalue()


LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
CSV = b"id,text\n" + "".join(f"{row['id']},{row['text']}\n" for row in ROWS).encode()
LIST = json.dumps(ROWS, indent=1).encode()
MARK = b"\xef\xbb\xbf"

TABLES: dict[str, bytes] = {
    "a.parquet": of_parquet(),
    "a.pq": of_parquet("zstd"),
    "a.parq": of_parquet("none"),
    "a.snappy.parquet": of_parquet(),
    "a.parquet.snappy": of_parquet(),
    "a.parquet.gzip": of_parquet("gzip"),
    "a.parquet.gz": of_parquet("gzip"),
    "part-00000": of_parquet(),
    "part-00000-0b5e6f0e-1c5f-4a52-9d3b-3a52b1c5d0a1.c000": of_parquet(),
    "part-00000-0b5e6f0e.c000.snappy.parquet": of_parquet(),
    "data_0": of_avro(),
    "a.arrow": of_arrow(),
    "a.ipc": of_arrow(),
    "a.arrows": of_arrow(stream=True),
    "stream.arrow": of_arrow(stream=True),
    "a.feather": of_feather(2),
    "part-0001": of_arrow(),
    "a.csv": CSV,
    "marked.csv": MARK + CSV,
    "a.tsv": CSV.replace(b",", b"\t"),
    "marked.tsv": MARK + CSV.replace(b",", b"\t"),
    "a.csv.gz": gzip.compress(CSV),
    "a.csv.gzip": gzip.compress(MARK + CSV),
    "a.csv.bz2": bz2.compress(CSV),
    "a.csv.xz": lzma.compress(CSV),
    "a.ndjson": LINES,
    "marked.jsonl": MARK + LINES,
    "a.jsonl.zst": zstandard.compress(LINES),
    "a.jsonl.bz2": bz2.compress(LINES),
    "two.jsonl.bz2": bz2.compress(LINES[: LINES.index(b"\n") + 1]) + bz2.compress(LINES[LINES.index(b"\n") + 1 :]),
    "a.jsonl.xz": lzma.compress(LINES),
    "a.json": LIST,
    "marked.json": MARK + LIST,
    "a.json.xz": lzma.compress(LIST),
    "part-00001": LINES,
    "part-00002": LIST,
    "part-00003": MARK + LINES,
    "part-00004": gzip.compress(LINES),
    "part-00005": zstandard.compress(LINES),
    "part-00006": bz2.compress(LINES),
    "part-00007": lzma.compress(LINES),
}  # fmt: skip


def items_of(path: Path, limit: int = 1 << 20, **source: Any) -> list[Record | DeadLetter]:
    spec = parse_spec({"index": "a", "vectors": "optional", "source": source or {"id": "id", "text": "text"}})
    files = arrange(find_files([str(path)]), spec.source)
    parts = [part for file in files for part in split_file(file, limit)]
    return [item for part in parts for item in read_part(part, Fields.of(spec))]


def fields_of(items: list[Record | DeadLetter]) -> list[dict[str, Any]]:
    letters = [item for item in items if isinstance(item, DeadLetter)]
    assert not letters
    return [dict(item.fields) for item in items if isinstance(item, Record)]


@pytest.mark.parametrize("limit", [1 << 20, 300])
@pytest.mark.parametrize("name", TABLES)
def test_tables(tmp_path: Path, name: str, limit: int):
    (tmp_path / name).write_bytes(TABLES[name])
    assert fields_of(items_of(tmp_path, limit)) == ROWS


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("share", [0.02, 0.5, 0.9])
def test_a_truncated_table_costs_itself_only(tmp_path: Path, name: str, share: float):
    (tmp_path / "whole.jsonl").write_bytes(LINES)
    (tmp_path / name).write_bytes(TABLES[name][: int(len(TABLES[name]) * share)])
    try:
        items = items_of(tmp_path)
    except UnknownFormatError:  # too little is left to know a format without an ending
        assert "." not in name or ".c000" in name or ".parquet." in name
        return
    records = [
        item.fields for item in items if isinstance(item, Record) and item.source.endswith("whole.jsonl")
    ]
    assert records == ROWS


@pytest.mark.system
@pytest.mark.parametrize(
    "name", ["a.arrow", "a.arrows", "a.feather", "a.jsonl.bz2", "a.jsonl.xz", "a.parquet", "data_0"]
)
def test_damaged_bytes_end_no_process(tmp_path: Path, name: str):
    random, data = np.random.default_rng(0), TABLES[name]
    for _ in range(40):
        damaged = bytearray(data)
        for place in random.integers(8, len(data), 3):
            damaged[place] ^= int(random.integers(1, 256))
        (tmp_path / name).write_bytes(damaged)
        assert all(isinstance(item, (Record, DeadLetter)) for item in items_of(tmp_path / name))


def test_feather_of_version_1_says_what_to_do(tmp_path: Path):
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(100) + b"FEA1")
    [letter] = items_of(tmp_path)
    assert isinstance(letter, DeadLetter)
    assert (letter.reason, "Feather of version 1" in letter.message) == ("damaged_file", True)


@pytest.mark.system
@pytest.mark.parametrize("compression", ["bz2", "xz"])
def test_memory_is_bounded_for_what_is_compressed_well(tmp_path: Path, compression: str):
    zeros = bytes(64 << 20)
    packed = bz2.compress(zeros) if compression == "bz2" else lzma.compress(zeros)
    (tmp_path / "a").write_bytes(packed)
    assert max(map(len, read_blocks(str(tmp_path), "a", compression))) < 8 << 20


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("a.hdf5", "HDF5: write its vectors with `numpy.save"),
        ("a.h5", "HDF5"),
        ("a.xlsx", "save its sheet as CSV"),
        ("a.pkl", "may run code"),
        ("a.orc", "pyarrow.orc"),
        ("README", "known endings"),
    ],
)
def test_other_files_say_what_to_do(tmp_path: Path, name: str, hint: str):
    (tmp_path / name).write_bytes(b"\x89HDF\r\n")
    with pytest.raises(UnknownFormatError) as caught:
        items_of(tmp_path)
    assert hint in str(caught.value)


@pytest.mark.parametrize("pattern", ["", "/*", "/part*"])
def test_marks_of_writers_are_left_out(tmp_path: Path, pattern: str):
    for name in (
        "_SUCCESS", "_committed_123", "_started_123", ".part-00000.crc", "._SUCCESS.crc", "_metadata",
    ):  # fmt: skip
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "part-00000").write_bytes(of_parquet())
    found = find_files([f"{tmp_path}{pattern}"])
    assert [file.path for file in found] == ["part-00000"]
    every = find_files([str(path) for path in sorted(tmp_path.iterdir())])
    assert [file.path for file in every] == ["part-00000"]
    with pytest.raises(InputNotFoundError):
        find_files([str(tmp_path / "_SUCCESS")])


def of_sized(kind: str) -> bytes:
    rows = VECTORS.astype(kind)
    return b"".join(np.int32(rows.shape[1]).tobytes() + row.tobytes() for row in rows)


def of_headed(kind: str) -> bytes:
    return np.array(VECTORS.shape, np.uint32).tobytes() + VECTORS.astype(kind).tobytes()


def of_npz(*, compressed: bool = False, **more: Any) -> bytes:
    sink = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(sink, vectors=VECTORS, **more)
    return sink.getvalue()


def of_npy(array: np.ndarray) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


ARRAYS = {
    "a.npy": of_npy(VECTORS),
    "columns.npy": of_npy(np.asfortranarray(VECTORS)),
    "a.npz": of_npz(),
    "packed.npz": of_npz(compressed=True, names=np.array(["x"] * 20)),
    "a.fvecs": of_sized("<f4"),
    "a.bvecs": of_sized("u1"),
    "a.ivecs": of_sized("<i4"),
    "a.fbin": of_headed("<f4"),
    "a.ibin": of_headed("<i4"),
    "a.u8bin": of_headed("u1"),
    "a.i8bin": of_headed("i1"),
}


@pytest.mark.parametrize("limit", [1 << 20, 50])
@pytest.mark.parametrize("name", ARRAYS)
def test_files_of_vectors(tmp_path: Path, name: str, limit: int):
    (tmp_path / name).write_bytes(ARRAYS[name])
    found = fields_of(items_of(tmp_path, limit, id="id", vector="v"))
    assert [one["id"] for one in found] == [str(row) for row in range(len(VECTORS))]
    np.testing.assert_array_equal(np.array([one["v"] for one in found], np.float32), VECTORS)


@pytest.mark.parametrize("name", ARRAYS)
@pytest.mark.parametrize("share", [0.0, 0.05, 0.5, 0.95])
def test_truncated_files_of_vectors_are_dead_letters(tmp_path: Path, name: str, share: float):
    (tmp_path / name).write_bytes(ARRAYS[name][: int(len(ARRAYS[name]) * share) + 1])
    items = items_of(tmp_path, id="id", vector="v")
    assert any(isinstance(item, DeadLetter) for item in items)
    vectors = [item.fields["v"] for item in items if isinstance(item, Record)]
    np.testing.assert_array_equal(np.array(vectors, np.float32).reshape(-1, 3), VECTORS[: len(vectors)])


def header(shape: tuple[int, int]) -> bytes:
    sink = io.BytesIO()
    write_array_header_1_0(sink, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return sink.getvalue() + b"\0" * 80


def test_partitions_without_rows_are_no_other_format(tmp_path: Path):
    (tmp_path / "part-00000").write_bytes(b'{"id": "a"}\n')
    (tmp_path / "part-00001").write_bytes(b"")
    (tmp_path / "part-00002.gz").write_bytes(gzip.compress(b""))
    assert fields_of(items_of(tmp_path, id="id", vector="v")) == [{"id": "a"}]


def test_archives_without_one_table_of_numbers(tmp_path: Path):
    (tmp_path / "a.npz").write_bytes(of_npz(more=VECTORS))
    (tmp_path / "b.npz").write_bytes(b"PK not a zip")
    with zipfile.ZipFile(tmp_path / "c.npz", "w") as archive:
        archive.writestr("a.npy", of_npy(np.zeros(3)))
    (tmp_path / "d.npz").write_bytes(of_npz(ids=np.array(["a"] * len(VECTORS))))
    (tmp_path / "e.npy").write_bytes(header((10**18, 10**18)))
    (tmp_path / "f.npy").write_bytes(header((-5, 4)))
    for name in ("a.npz", "b.npz", "c.npz", "d.npz", "e.npy", "f.npy"):
        [letter] = items_of(tmp_path / name, id="id", vector="v")
        assert isinstance(letter, DeadLetter)


@pytest.mark.parametrize("limit", [1 << 20, 100])
@pytest.mark.parametrize("head", ["", "20 3\n"])
@pytest.mark.parametrize("ending", [".vec", ".vec.gz"])
def test_vectors_of_words(tmp_path: Path, head: str, ending: str, limit: int):
    text = head + "".join(
        f"wörd{row} {' '.join(map(str, one.tolist()))} \n" for row, one in enumerate(VECTORS)
    )
    data = text.encode()
    (tmp_path / f"a{ending}").write_bytes(gzip.compress(data) if ending.endswith("gz") else data)
    found = fields_of(items_of(tmp_path, limit, id="id", vector="v"))
    assert [one["id"] for one in found] == [f"wörd{row}" for row in range(len(VECTORS))]
    np.testing.assert_array_equal(np.array([one["v"] for one in found]), VECTORS)
    (tmp_path / f"a{ending}").unlink()
    (tmp_path / "a.vec").write_bytes(b"a 1 2\nb x y\n\xff 1 2\nc 3 4\n")
    letters = [
        item.reason for item in items_of(tmp_path, id="id", vector="v") if isinstance(item, DeadLetter)
    ]
    assert letters == ["malformed", "encoding"]
