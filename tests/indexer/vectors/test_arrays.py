"""Arrays are read as NumPy wrote them, by several threads at once, and a damaged file is told."""

from __future__ import annotations

import gc
import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given

from scannery.indexer import CorruptError
from scannery.indexer.vectors.arrays import mapped, read_array, taken


@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.uint64, bool, ">f4"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (0, 5), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_are_read_as_they_were_written(
    tmp_path: Path, dtype: type | str, shape: tuple[int, ...], order: str
) -> None:
    size = int(np.prod(shape))
    array = np.asarray(np.arange(size).reshape(shape).astype(dtype), order=order)  # type: ignore[call-overload]
    np.save(tmp_path / "a.npy", array)
    for read in (
        mapped(tmp_path / "a.npy"),
        read_array(io.BytesIO((tmp_path / "a.npy").read_bytes()), "a.npy"),
    ):
        assert read.dtype == array.dtype
        assert read.shape == shape
        assert np.array_equal(read, array)
    assert not mapped(tmp_path / "a.npy").flags.writeable


def test_a_mapped_array_keeps_no_file_open_and_outlives_its_name(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(100_000))
    before = len(list(Path("/proc/self/fd").iterdir()))
    arrays = [mapped(tmp_path / "a.npy") for _ in range(50)]
    assert len(list(Path("/proc/self/fd").iterdir())) == before
    (tmp_path / "a.npy").unlink()
    assert all(array[-1] == 99_999 for array in arrays)


def test_a_later_version_of_the_header_is_read(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for version in ((1, 0), (2, 0), (3, 0)):
        with (tmp_path / "a.npy").open("wb") as file:
            np.lib.format.write_array(file, array, version=version)
        assert np.array_equal(mapped(tmp_path / "a.npy"), array)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[:50],
        lambda data: data[:-1],
        lambda data: b"\0" + data[1:],
        lambda data: data.replace(b"<f4", b"|O8"),
        lambda data: data.replace(b"(2, 3)", b"(2,-3)"),
        lambda data: data.replace(b"(2, 3)", b"(9, 9)"),
    ],
)
def test_what_is_no_array_is_refused(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    data = damage((tmp_path / "a.npy").read_bytes())
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(CorruptError, match=r"a\.npy"):
        mapped(tmp_path / "a.npy")
    with pytest.raises(CorruptError, match=r"a\.npy"):
        read_array(io.BytesIO(data), "a.npy")


@pytest.fixture
def interrupted() -> Iterator[None]:
    """Have a garbage collection every few allocations, and let other threads run in each."""

    def give_way(phase: str, info: dict[str, int]) -> None:
        time.sleep(1e-5)

    before = gc.get_threshold()
    gc.callbacks.append(give_way)
    gc.set_threshold(5)
    yield
    gc.set_threshold(*before)
    gc.callbacks.remove(give_way)


@pytest.mark.system
@pytest.mark.usefixtures("interrupted")
def test_threads_do_not_trip_over_each_other(tmp_path: Path) -> None:
    """With `np.load` some of these calls fail in CPython 3.11 (gh-106905)."""
    np.save(tmp_path / "a.npy", np.zeros((5, 18), np.float32))
    with ThreadPoolExecutor(4) as pool:
        arrays = list(pool.map(lambda _: mapped(tmp_path / "a.npy"), range(800)))
    assert {array.shape for array in arrays} == {(5, 18)}


def chunked_table(lengths: list[int]) -> pa.Table:
    """Return a table of several chunks, with values of every kind that a column of a segment has."""
    starts = np.cumsum([0, *lengths])
    parts = [
        pa.table(
            {
                "text": pa.array([None if n % 7 == 3 else f"text {n}" for n in numbers], pa.string()),
                "tags": pa.array([[f"t{n}"] * (n % 3) for n in numbers], pa.list_(pa.string())),
                "n": pa.array(list(numbers), pa.int64()),
            }
        )
        for numbers in (range(a, b) for a, b in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True))
    ]
    return pa.concat_tables(parts)


@pytest.mark.system
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.data())
def test_rows_are_taken_as_arrow_takes_them(lengths: list[int], data: st.DataObject) -> None:
    table = chunked_table(lengths)
    total = sum(lengths)
    rows = data.draw(st.lists(st.integers(0, total - 1), max_size=12)) if total else []
    found = taken(table, np.array(rows, np.int64))
    assert found.schema == table.schema
    assert found.to_pylist() == table.take(pa.array(rows, pa.int64())).to_pylist()


@pytest.mark.system
def test_rows_are_taken_out_of_more_than_two_gib_of_text() -> None:
    chunk = pa.array([f"{n:04d}{'x' * (1 << 20)}" for n in range(64)])
    table = pa.table({"text": pa.chunked_array([chunk] * 33)})  # the same memory 33 times
    with pytest.raises(pa.ArrowInvalid):
        table.take(pa.array([2111, 0, 65]))
    found = taken(table, np.array([2111, 0, 65])).column("text").to_pylist()
    assert [text[:4] for text in found] == ["0063", "0000", "0001"]


def test_rows_that_do_not_fit_into_one_chunk_come_in_several(monkeypatch: pytest.MonkeyPatch) -> None:
    concat_arrays = pa.concat_arrays

    def at_most_three(arrays: list[pa.Array]) -> pa.Array:
        if sum(map(len, arrays)) > 3:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")
        return concat_arrays(arrays)

    monkeypatch.setattr(pa, "concat_arrays", at_most_three)
    table, rows = chunked_table([4, 3, 5]), np.arange(12)[::-1].copy()
    found = taken(table, rows)
    assert found.column("text").num_chunks == 4
    assert found.to_pylist() == chunked_table([12]).take(pa.array(rows)).to_pylist()
