"""Files of bare vectors: however they are cut, every row comes out once, with its id."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.indexer import SourceSpec, open_index, parse_spec
from scannery.pipelines import InputChangedError, NothingToIndexError, SpecConflictError
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources import Fields, Record, arrange, find_files, read_part, split_file
from tests.data import clustered, shared_data
from tests.pipelines.conftest import letters_of, manifest_of, rows_of, run

SPEC: dict[str, Any] = {"index": "vectors", "source": {"vector": "v"}, "distance": "squared_l2"}
FIELDS = Fields.of(parse_spec(SPEC))


def read(path: Path | str, *, limit: int = 1 << 20) -> tuple[list[Record], list[DeadLetter]]:
    items: list[Record | DeadLetter] = []
    for file in arrange(find_files([str(path)]), SourceSpec(vector="v")):
        for part in split_file(file, limit):
            items.extend(read_part(part, FIELDS))
    return [i for i in items if isinstance(i, Record)], [i for i in items if isinstance(i, DeadLetter)]


def vecs(vectors: np.ndarray) -> bytes:
    sizes = np.full((len(vectors), 1), vectors.shape[1], "<i4").view(np.uint8)
    return np.hstack(
        [sizes, np.ascontiguousarray(vectors).view(np.uint8).reshape(len(vectors), -1)]
    ).tobytes()


def write(path: Path, vectors: np.ndarray) -> None:
    if path.suffix == ".npy":
        np.save(path, vectors)
    else:
        path.write_bytes(vecs(vectors))


def stacked(records: list[Record]) -> np.ndarray:
    return np.stack([record.fields["v"] for record in records])


ARRAYS = {
    "a.npy": clustered(700, 5),
    "half.npy": clustered(300, 7).astype(np.float16),
    "double.npy": clustered(300, 7).astype(">f8"),
    "columns.npy": np.asfortranarray(clustered(500, 6)),
    "bytes.npy": np.arange(600, dtype=np.uint8).reshape(100, 6),
    "a.fvecs": clustered(700, 5),
    "a.bvecs": np.arange(4000, dtype=np.uint8).reshape(500, 8),
}


@pytest.mark.system
@pytest.mark.parametrize("limit", [100, 3000, 1 << 20])
@pytest.mark.parametrize("name", ARRAYS)
def test_every_row_comes_out_once_with_its_number(tmp_path, name, limit):
    write(tmp_path / name, ARRAYS[name])
    records, letters = read(tmp_path / name, limit=limit)
    assert not letters
    assert [record.fields["id"] for record in records] == [str(row) for row in range(len(ARRAYS[name]))]
    assert [record.row for record in records] == list(range(1, len(records) + 1))
    assert np.array_equal(stacked(records), ARRAYS[name])


@pytest.mark.system
@pytest.mark.parametrize("limit", [100, 1 << 20])
def test_a_file_of_ids_names_the_rows(tmp_path, limit):
    write(tmp_path / "a.fvecs", ARRAYS["a.fvecs"])
    ids = [f"é{row}" + "x" * (row % 40) for row in range(700)]
    (tmp_path / "a.fvecs.ids").write_text("\n".join(ids))
    records, letters = read(tmp_path, limit=limit)
    assert not letters
    assert [record.fields["id"] for record in records] == ids
    assert np.array_equal(stacked(records), ARRAYS["a.fvecs"])


def test_a_changed_id_changes_the_units_it_is_in_and_no_other(tmp_path):
    def identities() -> list[tuple[object, ...]]:
        (file,) = arrange(find_files([str(tmp_path)]), SourceSpec(vector="v"))
        return [part.identity for part in split_file(file, 2000)]

    write(tmp_path / "a.npy", ARRAYS["a.npy"])
    ids = [f"id{row:04}" for row in range(700)]
    (tmp_path / "a.npy.ids").write_text("\n".join(ids) + "\n")
    before = identities()
    ids[350] = "other!"
    (tmp_path / "a.npy.ids").write_text("\n".join(ids) + "\n")
    assert sum(a != b for a, b in zip(before, identities(), strict=True)) == 1


@pytest.mark.parametrize("lines", [699, 701])
def test_ids_that_do_not_line_up_refuse_the_file(tmp_path, lines):
    write(tmp_path / "a.npy", ARRAYS["a.npy"])
    (tmp_path / "a.npy.ids").write_text("".join(f"{row}\n" for row in range(lines)))
    records, letters = read(tmp_path)
    assert not records
    assert [letter.reason for letter in letters] == ["damaged_file"]
    assert f"700 rows and {tmp_path}/a.npy.ids has {lines} lines" in letters[0].message


@pytest.mark.system
def test_a_bad_id_costs_its_own_row(tmp_path, store):
    write(tmp_path / "a.npy", ARRAYS["a.npy"][:4])
    (tmp_path / "a.npy.ids").write_bytes(b"a\n\xff\n\nd\n")
    report = run(store, str(tmp_path / "a.npy"), str(tmp_path / "a.npy.ids"), spec=SPEC)
    assert set(rows_of(store)) == {"a", "d"}
    assert {(letter.reason, letter.row) for letter in letters_of(store, report)} == {
        ("encoding", 2),
        ("id", 3),
    }


def test_ids_that_change_while_a_build_runs_are_noticed(tmp_path):
    write(tmp_path / "a.npy", ARRAYS["a.npy"])
    (tmp_path / "a.npy.ids").write_text("".join(f"{row}\n" for row in range(700)))
    (file,) = arrange(find_files([str(tmp_path)]), SourceSpec(vector="v"))
    (part,) = split_file(file, 1 << 20)
    (tmp_path / "a.npy.ids").write_text("".join(f"x{row}\n" for row in range(700)))
    with pytest.raises(InputChangedError, match="changed while"):
        list(read_part(part, FIELDS))


@pytest.mark.system
@pytest.mark.parametrize("limit", [100, 1 << 20])
@pytest.mark.parametrize("name", ["a.npy", "a.fvecs", "a.bvecs"])
def test_a_truncated_file_keeps_the_whole_rows_before_the_end(tmp_path, name, limit):
    write(tmp_path / name, ARRAYS[name])
    data = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(data[: len(data) // 2 + 3])
    records, letters = read(tmp_path / name, limit=limit)
    assert len(ARRAYS[name]) * 0.4 < len(records) < len(ARRAYS[name]) * 0.6
    assert np.array_equal(stacked(records), ARRAYS[name][: len(records)])
    assert [(letter.reason, letter.message) for letter in letters] == [
        ("damaged_file", f"the file ends within row {len(records) + 1}; this and later rows were not read")
    ]


def test_a_truncated_file_by_column_has_no_row(tmp_path):
    write(tmp_path / "a.npy", ARRAYS["columns.npy"])
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-1])
    records, letters = read(tmp_path / "a.npy")
    assert (len(records), [letter.reason for letter in letters]) == (0, ["damaged_file"])


@pytest.mark.system
def test_a_row_of_another_size_costs_itself(tmp_path):
    data = bytearray(vecs(ARRAYS["a.fvecs"]))
    data[24 * 7] = 99
    (tmp_path / "a.fvecs").write_bytes(data)
    records, letters = read(tmp_path / "a.fvecs", limit=100)
    assert [record.row for record in records] == [row for row in range(1, 701) if row != 8]
    assert [(letter.reason, letter.row) for letter in letters] == [("malformed", 8)]
    assert "the row says 99 dimensions, the first row of the file 5" in letters[0].message


def test_files_that_hold_no_vectors(tmp_path):
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    np.save(tmp_path / "pickle.npy", np.array([[Trap()]], object), allow_pickle=True)
    np.save(tmp_path / "flat.npy", np.zeros(4, np.float32))
    np.save(tmp_path / "complex.npy", np.zeros((2, 2), np.complex64))
    (tmp_path / "garbage.npy").write_bytes(b"\x93NUMPY\x01\x00\x10\x00{'descr': __import__")
    (tmp_path / "text.npy").write_text("hello")
    (tmp_path / "negative.fvecs").write_bytes(b"\xff\xff\xff\xff" * 3)
    (tmp_path / "short.fvecs").write_bytes(b"\x01")
    reasons = {name.name: read(name)[1][0].reason for name in sorted(tmp_path.iterdir())}
    assert reasons == {
        "complex.npy": "malformed", "flat.npy": "malformed", "garbage.npy": "damaged_file",
        "negative.fvecs": "damaged_file", "pickle.npy": "malformed", "short.fvecs": "damaged_file",
        "text.npy": "damaged_file",
    }  # fmt: skip
    assert not (tmp_path / "executed").exists()


def test_empty_files_have_no_rows(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((0, 3), np.float32))
    (tmp_path / "b.fvecs").write_bytes(b"")
    assert read(tmp_path / "a.npy") == read(tmp_path / "b.fvecs") == ([], [])


@pytest.mark.system
def test_row_numbers_are_ids_of_one_file_only(tmp_path, store):
    write(tmp_path / "a.npy", ARRAYS["a.npy"])
    write(tmp_path / "b.npy", ARRAYS["a.npy"])
    with pytest.raises(SpecConflictError, match=r"both number their rows from 0.*a\.npy\.ids"):
        run(store, str(tmp_path), spec=SPEC)
    (tmp_path / "a.npy.ids").write_text("".join(f"a{row}\n" for row in range(700)))
    report = run(store, str(tmp_path), spec=SPEC)
    assert (report.passages, report.files) == (1400, 2)


def test_vectors_need_a_spec_that_has_them(tmp_path, store):
    write(tmp_path / "a.npy", ARRAYS["a.npy"])
    spec = {"index": "i", "source": {"text": "text"}, "encoder": {"model": "none"}}
    with pytest.raises(SpecConflictError, match=r"source\.vector: must be set"):
        run(store, str(tmp_path), spec=spec)


@pytest.mark.system
def test_real_descriptors(store):
    path = shared_data("vec-sift-5k", "siftsmall_query.fvecs")
    raw = np.fromfile(path, "<f4").reshape(-1, 129)[:, 1:]
    report = run(store, str(path), spec=SPEC)
    assert (report.passages, report.dimensions, report.dead) == (100, 128, 0)
    assert rows_of(store) == {str(row): tuple(raw[row].tolist()) for row in range(100)}


@pytest.mark.system
def test_row_numbers_are_those_of_ground_truth_files(store, tmp_path):
    base = np.loadtxt(shared_data("vec-sift-5k", "sift-dataset-5k.tsv"), np.uint8, usecols=range(128))
    queries = np.fromfile(shared_data("vec-sift-5k", "siftsmall_query.fvecs"), "<f4").reshape(-1, 129)[:, 1:]
    write(tmp_path / "base.bvecs", base)
    report = run(store, str(tmp_path / "base.bvecs"), spec=SPEC)
    assert report.passages == len(base) >= 5000
    (segment,) = open_index(store, "vectors").segments
    rows_QK, _ = segment.search(queries, 1)
    found = [int(segment.ids[int(row)].as_py()) for row in rows_QK[:, 0]]
    distances = [((base - query) ** 2).sum(1) for query in queries]
    assert all(near[row] == near.min() for near, row in zip(distances, found, strict=True))


def embeddings_parquet(path: Path, kind: pa.DataType, vectors: np.ndarray) -> None:
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        column = pa.array([row.tobytes() for row in vectors], kind)
    else:
        column = pa.array(list(vectors), kind)
    pq.write_table(pa.table({"key": pa.array(range(len(vectors))), "embedding": column}), path)


@pytest.mark.system
@pytest.mark.parametrize("kind", [
    pa.list_(pa.float32()),
    pa.large_list(pa.float64()),
    pa.list_(pa.float32(), 6),
    pa.list_(pa.float64(), 6),
    pa.list_(pa.float16(), 6),
    pa.list_(pa.float16()),
    pa.list_(pa.int8(), 6),
], ids=str)  # fmt: skip
def test_parquet_of_other_origins(tmp_path, store, kind):
    width = {"halffloat": np.float16, "int8": np.int8}.get(str(kind.value_type), np.float32)
    vectors = (clustered(50, 6) * 4).astype(width)
    embeddings_parquet(tmp_path / "a.parquet", kind, vectors)
    run(store, str(tmp_path), spec={"index": "vectors", "source": {"id": "key", "vector": "embedding"}})
    assert rows_of(store) == {str(row): tuple(vectors[row].astype(np.float32).tolist()) for row in range(50)}


@pytest.mark.system
@pytest.mark.parametrize("number", ["float16", "float32", "float64"])
@pytest.mark.parametrize("fixed", [True, False])
def test_binary_columns_are_read_as_the_spec_says(tmp_path, store, number, fixed):
    vectors = clustered(20, 6).astype(number)
    kind = pa.binary(vectors[0].nbytes) if fixed else pa.binary()
    embeddings_parquet(tmp_path / "a.parquet", kind, vectors)
    spec: dict[str, Any] = {"index": "vectors", "source": {"id": "key", "vector": "embedding"}}
    with pytest.raises(NothingToIndexError, match="20 × vector"):
        run(store, str(tmp_path), spec=spec)
    spec["source"]["vector_bytes"] = number
    run(store, str(tmp_path), spec=spec)
    assert rows_of(store) == {str(row): tuple(vectors[row].astype(np.float32).tolist()) for row in range(20)}
    assert manifest_of(store).dimensions == 6


def test_bytes_of_the_wrong_length_are_dead_letters(tmp_path, store):
    column = pa.array([np.ones(4, np.float32).tobytes(), b"12345"], pa.binary())
    pq.write_table(pa.table({"id": ["a", "b"], "v": column}), tmp_path / "a.parquet")
    spec = {"index": "vectors", "source": {"vector": "v", "vector_bytes": "float32"}}
    report = run(store, str(tmp_path), spec=spec)
    (letter,) = letters_of(store, report)
    assert (letter.id, letter.reason) == ("b", "vector")
    assert "5 bytes, which is not a multiple of 4" in letter.message
