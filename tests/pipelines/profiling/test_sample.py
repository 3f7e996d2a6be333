from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scannery.indexer.spec.spec import SourceSpec
from scannery.pipelines.errors import InputNotFoundError, NothingToIndexError
from scannery.pipelines.profiling.sample import init_sample, read_sample

SOURCE = SourceSpec(id="id", text="text")


def lines(path: Path, count: int, size: int = 1) -> None:
    text = "\n".join(json.dumps({"id": f"{path.stem}{i}", "text": "word " * size}) for i in range(count))
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


def test_all_of_a_small_input(tmp_path):
    lines(tmp_path / "a.jsonl", 3)
    lines(tmp_path / "b.jsonl.gz", 2)
    sample = read_sample([str(tmp_path)], SOURCE)
    assert (len(sample.records), len(sample.files), sample.is_whole) == (5, 2, True)


def test_some_of_each_file_of_a_large_input(tmp_path):
    for name in "abcd":
        lines(tmp_path / f"{name}.jsonl", 50)
    sample = read_sample([str(tmp_path)], SOURCE, 40)
    assert [record.fields["id"][0] for record in sample.records] == [
        name for name in "abcd" for _ in range(10)
    ]
    assert not sample.is_whole
    few = read_sample([str(tmp_path)], SOURCE, 2)
    assert [record.fields["id"] for record in few.records] == ["a0", "c0"]


@pytest.mark.system
def test_only_the_beginning_of_a_large_file_is_read(tmp_path):
    lines(tmp_path / "a.jsonl", 20_000, 40)  # 4 MB
    sample = read_sample([str(tmp_path)], SOURCE, 100_000)
    assert 4000 < len(sample.records) < 8000
    assert not sample.is_whole


def test_all_columns_of_columnar_files(tmp_path):
    table = pa.table(
        {"id": ["a", "b"], "text": ["x", "y"], "more": [1, 2], "meta": [{"lang": "en"}, {"lang": "de"}]}
    )
    pq.write_table(table, tmp_path / "t.parquet")
    sample = read_sample([str(tmp_path)], SOURCE)
    assert sample.records[1].fields == {"id": "b", "text": "y", "more": 2, "meta": {"lang": "de"}}


def test_what_cannot_be_read_is_told(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n{broken\n[1]\n')
    sample = read_sample([str(tmp_path)], SOURCE)
    assert (len(sample.records), [letter.line for letter in sample.letters]) == (1, [2, 3])
    (tmp_path / "a.jsonl").write_text("")
    with pytest.raises(NothingToIndexError):
        init_sample([str(tmp_path)])
    with pytest.raises(InputNotFoundError):
        init_sample([str(tmp_path / "none")])


def test_tables_of_any_ending_are_found(tmp_path):
    rows = "No.\tObject\tPieces\r\n1\tAstrolabe\tNULL\r\n2\tLoom weight\t12\r\n"
    (tmp_path / "objects.txt").write_bytes(rows.encode("utf-16"))
    sample, reading = init_sample([str(tmp_path)])
    assert reading == {
        "format": "csv",
        "csv": {"delimiter": "tab", "encoding": "utf-16", "missing": ["NULL"]},
    }
    assert [dict(record.fields) for record in sample.records] == [
        {"No.": "1", "Object": "Astrolabe"},
        {"No.": "2", "Object": "Loom weight", "Pieces": "12"},
    ]


@pytest.mark.parametrize(
    "text", ["One line.\n", "Dear Anna, hello.\nIt rains, again.\n", "a\tb\nno tab here\n", ""], ids=repr
)
def test_texts_are_no_tables(tmp_path, text):
    (tmp_path / "letter.txt").write_text(text)
    assert init_sample([str(tmp_path)])[1] == {}


def test_words_that_a_text_may_be_are_values(tmp_path):
    (tmp_path / "t.csv").write_text(
        "id,country,stars,note\n1,NA,NA,NULL\n2,DE,4,fine words\n3,FR,n/a,more words\n"
    )
    assert init_sample([str(tmp_path)])[1] == {"csv": {"missing": ["NULL", "n/a"]}}
    (tmp_path / "t.csv").write_text("id,country,stars\n1,NA,4\n2,DE,5\n")
    assert init_sample([str(tmp_path)])[1] == {}


@pytest.mark.parametrize("indent", [None, 1])
def test_the_list_in_the_object_of_an_api_is_found(tmp_path, indent):
    for page in (1, 2):
        items = [{"node": {"id": page * 10 + n, "text": "A text of five words"}} for n in range(3)]
        content = {"meta": {"page": page, "links": [{"rel": "next"}]}, "result": {"data": {"items": items}}}
        (tmp_path / f"page{page}.json").write_text(json.dumps(content, indent=indent))
    sample, source = init_sample([str(tmp_path)])
    assert source == {"records": "result.data.items"}
    assert len(sample.records) == 6


def test_an_object_with_a_text_is_a_record_itself(tmp_path):
    mail = {"id": 1, "body": "The ship leaves on Tuesday evening.", "to": [{"name": "a"}, {"name": "b"}]}
    (tmp_path / "mail.json").write_text(json.dumps(mail))
    sample, source = init_sample([str(tmp_path)])
    assert (len(sample.records), source) == (1, {})
