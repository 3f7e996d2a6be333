"""One reader of queries for searches, evaluations, judging and recall: the same records and errors for all."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.cli.uploads import _queries
from scannery.evaluation.judgements import read_queries, read_recall_queries
from scannery.pipelines.errors import CollectionError, InputNotFoundError
from scannery.pipelines.sources.query_files import STDIN, query_records

ROWS: list[dict[str, Any]] = [{"id": "a", "text": "molten rock"}, {"id": "7", "text": "chess"}]


def written(folder: Path, ending: str) -> Path:
    path = folder / f"queries{ending}"
    if ending == ".parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    elif ending == ".json":
        path.write_text(json.dumps(ROWS, indent=1))
    elif ending == ".tsv":
        path.write_text("a\tmolten rock\n7\tchess\n")
    elif ending in (".csv", ".header.tsv"):
        mark = "," if ending == ".csv" else "\t"
        path.write_text(
            "".join(f"{mark.join(row)}\n" for row in [["id", "text"], *(r.values() for r in ROWS)])
        )
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


@pytest.mark.parametrize("ending", [".jsonl", ".json", ".csv", ".tsv", ".header.tsv", ".parquet", ".log", ""])
def test_every_format_is_read_the_same_by_all_readers(tmp_path: Path, ending: str) -> None:
    path = written(tmp_path, ending)
    assert [(one.id, one.query.text) for one in query_records(path)] == [("a", "molten rock"), ("7", "chess")]
    assert {name: query.text for name, query in read_queries(path).items()} == {
        "a": "molten rock",
        "7": "chess",
    }
    assert read_recall_queries(path) == ["molten rock", "chess"]
    ids: list[str] = []
    assert list(_queries(str(path), ids)) == ["molten rock", "chess"]
    assert ids == ["a", "7"]


def test_a_matrix_is_a_vector_per_row(tmp_path: Path) -> None:
    matrix = np.eye(2, 3, dtype=np.float32)
    np.save(tmp_path / "queries.npy", matrix)
    found = [one.query.vector for one in query_records(tmp_path / "queries.npy")]
    np.testing.assert_array_equal(np.stack([vector for vector in found if vector is not None]), matrix)


def test_a_text_per_line_and_standard_input_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "queries.txt"
    path.write_text("chess\n\n molten rock \n")
    ids: list[str] = []
    assert list(_queries(str(path), ids)) == ["chess", "molten rock"]
    assert ids == ["1", "2"]
    monkeypatch.setattr("sys.stdin", io.StringIO('{"query": "chess"}\n\n{"vector": [1, 2]}\n'))
    first, second = query_records(STDIN)
    assert (first.query.text, first.location) == ("chess", "standard input, line 1")
    assert np.asarray(second.query.vector).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"id": "a"}', "line 1: needs `text`, a string that is not empty, or `vector`, a list of numbers"),
        ('{"text": "a"}\n{"vector": [[1]]}', "line 2: `vector` must be a list of numbers, got"),
        ('{"vector": [1, 1e999]}', "line 1: `vector` must be a list of numbers, got"),
        ('{"vector": "[1, 1e99]"}', "line 1: `vector` must be a list of numbers, got"),
        ('{"vector": "x"}', "line 1: `vector` must be a list of numbers, got 'x'"),
        ('{"id": true, "text": "a"}', "line 1: `_id` must be a string, got True"),
        ("{", "line 1: not JSON"),
    ],
)
def test_all_readers_refuse_the_same_records_with_the_same_words(
    tmp_path: Path, text: str, says: str
) -> None:
    path = tmp_path / "queries.jsonl"
    path.write_text(text)
    messages = set()
    for reader in (read_queries, read_recall_queries, lambda file: list(_queries(str(file), []))):
        with pytest.raises(CollectionError) as caught:
            reader(path)
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert f"queries: {path}, {says}" in messages.pop()


def test_a_file_that_is_not_there_is_named_by_all(tmp_path: Path) -> None:
    for ending in (".jsonl", ".txt", ".tsv", ".parquet", ""):
        for reader in (read_queries, read_recall_queries, lambda file: list(_queries(str(file), []))):
            with pytest.raises(InputNotFoundError, match="queries: cannot read .*/nothing.*: No such file"):
                reader(tmp_path / f"nothing{ending}")
