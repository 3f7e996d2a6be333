"""Pages of Parquet files: they hold what PyArrow reads, and no bytes make the readers fail but with CorruptError."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.indexer import CorruptError
from scannery.indexer.segment.pages import Pages, decoded_page, find_pages, read_struct, tail_of


def written(
    folder: Path, rows: int, dimensions: int, encoding: str, **options: object
) -> tuple[Path, np.ndarray]:
    vectors_ND = np.random.default_rng(0).standard_normal((rows, dimensions), np.float32)
    kind = pa.list_(pa.float32(), dimensions)
    table = pa.table(
        {"embedding": pa.FixedSizeListArray.from_arrays(pa.array(vectors_ND.ravel()), type=kind)}
    )
    path = folder / "a.parquet"
    options = {"write_page_index": True, "compression": "zstd", **options}
    pq.write_table(
        table,
        path,
        row_group_size=1_000,
        data_page_size=1 << 14,
        use_dictionary=False,
        column_encoding={"embedding.list.element": encoding},
        write_page_checksum=True,
        **options,
    )
    return path, vectors_ND


def found_in(path: Path, rows: int) -> tuple[Pages, bytes]:
    data, tail = path.read_bytes(), tail_of(path)
    assert tail is not None
    return find_pages(memoryview(data)[tail.start :], tail.start, "a", rows), data


@pytest.mark.parametrize("encoding", ["BYTE_STREAM_SPLIT", "PLAIN"])
@pytest.mark.parametrize(("rows", "dimensions"), [(2_500, 48), (1, 3), (70, 1_500), (1_000, 1)])
def test_pages_hold_the_vectors(encoding: str, rows: int, dimensions: int, tmp_path: Path):
    path, vectors_ND = written(tmp_path, rows, dimensions, encoding)
    pages, data = found_in(path, rows)
    pages.save(tmp_path / "pages.npy")
    pages = Pages.map(tmp_path / "pages.npy")
    for page in range(len(pages)):
        start, size = int(pages.offsets_P[page]), int(pages.sizes_P[page])
        count = pages.row_count(page)
        first = int(pages.rows_P1[page])
        found_RD = decoded_page(memoryview(data)[start : start + size], count, dimensions, "a")
        np.testing.assert_array_equal(found_RD, vectors_ND[first : first + count])
    assert pages.of_rows(np.array([0, rows - 1])).tolist() == [0, len(pages) - 1]


def test_a_file_without_a_page_index_has_no_tail(tmp_path: Path):
    path, _ = written(tmp_path, 100, 4, "PLAIN", write_page_index=False)
    assert tail_of(path) is None


def test_other_files_are_refused(tmp_path: Path):
    path, _ = written(tmp_path, 100, 4, "PLAIN", compression="snappy")
    with pytest.raises(CorruptError, match="not zstd"):
        found_in(path, 100)
    path, _ = written(tmp_path, 100, 4, "PLAIN")
    with pytest.raises(CorruptError, match="other rows"):
        found_in(path, 0)


def test_no_bytes_make_the_readers_fail_otherwise(tmp_path: Path):
    path, _ = written(tmp_path, 300, 16, "BYTE_STREAM_SPLIT")
    pages, data = found_in(path, 300)
    start, size = int(pages.offsets_P[0]), int(pages.sizes_P[0])
    page, generator = data[start : start + size], random.Random(0)
    for _ in range(2_000):
        changed = bytearray(page)
        for _ in range(generator.randrange(1, 4)):
            changed[generator.randrange(min(60, len(changed)))] = generator.randrange(256)
        changed = changed[: generator.choice([len(changed), generator.randrange(len(changed))])]
        if bytes(changed) == page:
            continue
        try:
            found = decoded_page(memoryview(changed), pages.row_count(0), 16, "a")
        except CorruptError:
            continue
        np.testing.assert_array_equal(found, decoded_page(memoryview(page), pages.row_count(0), 16, "a"))
    for _ in range(2_000):
        try:
            read_struct(memoryview(generator.randbytes(generator.randrange(200))))
        except CorruptError:
            continue
