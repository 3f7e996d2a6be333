"""CSV as spreadsheets and databases write it: delimiter, quoting, encoding and header are found, or given."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import parse_spec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.sources import Fields, Part, Record, arrange, find_files, read_part, split_file
from scannery.pipelines.sources.dialects import Dialect

GERMAN = [["id", "Titel", "Preis"], ["1", "Müller; kauft \"Brötchen\"", "1,50"], ["2", "zwei\nZeilen", "2,00"],
          ["3", "Käse & Äpfel", ""]]  # fmt: skip
POLISH = [["id", "Titel"], ["1", "Zażółć gęślą jaźń"], ["2", "Łódź, Kraków i Poznań są pięknymi miastami"]]
RUSSIAN = [["id", "Titel"], ["1", "Съешь же ещё этих мягких французских булок"], ["2", "Москва"]]
JAPANESE = [["id", "Titel"], ["1", "東京は日本の首都です"], ["2", "通勤客が多い。カタカナとひらがな"]]


def parsed(csv_options: dict[str, Any] | None = None) -> Any:
    source: dict[str, Any] = {"text": "Titel"} | ({"csv": csv_options} if csv_options else {})
    return parse_spec(
        {"index": "i", "source": source, "encoder": {"model": "m"}, "attributes": {"Preis": "string"}}
    )


def parts_of(path: Path, options: dict[str, Any] | None = None, limit: int = 1 << 20) -> list[Part]:
    files = arrange(find_files([str(path)]), parsed(options).source)
    return [part for file in files for part in split_file(file, limit)]


def read(path: Path, options: dict[str, Any] | None = None, limit: int = 1 << 20) -> list[list[str]]:
    """Return the cells of the records; a dead letter is its message."""
    rows = []
    for part in parts_of(path, options, limit):
        for item in read_part(part, Fields.of(parsed(options))):
            rows.append(
                [item.message] if isinstance(item, DeadLetter) else [str(v) for v in item.fields.values()]
            )
    return rows


def written(rows: list[list[str]], delimiter: str, **options: Any) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=delimiter, **options).writerows(rows)
    return text.getvalue()


def filled(rows: list[list[str]]) -> list[list[str]]:
    return [[cell for cell in row if cell] for row in rows[1:]]


@pytest.mark.parametrize("limit", [1, 40, 1 << 20])
@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "cp1252", "latin-1"]
)
@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_delimiter_and_encoding_are_found_and_parts_join(tmp_path, delimiter, encoding, limit):
    path = tmp_path / "export.csv"
    path.write_bytes(written(GERMAN, delimiter).encode(encoding))
    assert read(path, limit=limit) == filled(GERMAN)
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed, limit=limit) == filled(GERMAN)


@pytest.mark.parametrize(
    ("rows", "encoding"),
    [(POLISH, "cp1250"), (RUSSIAN, "cp1251"), (JAPANESE, "cp932"), (JAPANESE, "utf-8"), (RUSSIAN, "utf-16")],
)
def test_encodings_of_other_languages_are_found(tmp_path, rows, encoding):
    path = tmp_path / "export.csv"
    path.write_bytes(written(rows, ";").encode(encoding))
    assert read(path) == filled(rows)
    (part,) = parts_of(path)
    assert Dialect.of(part.dialect, "csv").is_guessed == (encoding in ("cp1250", "cp1251", "cp932"))


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16"])
def test_a_given_dialect_is_taken(tmp_path, encoding):
    path = tmp_path / "export.csv"
    path.write_bytes(written(GERMAN, "^", quotechar="'").encode(encoding))
    assert read(path, {"delimiter": "^", "quote": "'", "encoding": encoding}) == filled(GERMAN)
    path.write_text('id\tTitel\n1\ta "b\n2\t"c\n')
    assert read(path, {"quote": "none"}) == [["1", 'a "b'], ["2", '"c']]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (None, "sep=;\nid;Titel\n1;a,b,c\n2;b\n"),
        (None, "Bericht 2024;;\n\nid;Titel;Preis\n1;a;\n2;b;\n"),
        (None, " id ; Titel\n1;a\n2;b\n"),
        ({"header": 3}, "x;y\nz;w\nid;Titel\n1;a\n2;b\n"),
        ({"header": ["id", "Titel"]}, "1;a\n2;b\n"),
    ],
)
@pytest.mark.parametrize("limit", [1, 1 << 20])
def test_the_header_is_found_or_given(tmp_path, options, text, limit):
    path = tmp_path / "export.csv"
    path.write_text(text)
    spec = parsed(options)
    items = [item for part in parts_of(path, options, limit) for item in read_part(part, Fields.of(spec))]
    assert [item.fields["id"] for item in items if isinstance(item, Record)] == ["1", "2"]
    assert all(isinstance(item, Record) and {"id", "Titel"} <= item.fields.keys() for item in items)
    assert [item.line for item in items] == list(range(text.count("\n") - 1, text.count("\n") + 1))


def test_without_a_header_columns_have_numbers(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text("1;a\n2;b\n")
    (part,) = parts_of(path, {"header": False})
    records = [item for item in read_part(part, Fields.of(parsed())) if isinstance(item, Record)]
    assert [dict(record.fields) for record in records] == [{"1": "1", "2": "a"}, {"1": "2", "2": "b"}]


def test_a_wrong_delimiter_is_told_with_the_right_one(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text(written(GERMAN, ";"))
    with pytest.raises(
        SpecConflictError, match=r"',' makes one column of .*; ';' makes 3 \(id, Titel, Preis\)"
    ):
        parts_of(path, {"delimiter": ","})


def test_an_ordinary_file_has_the_identity_that_earlier_releases_gave_it(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,"semi;colons; and | pipes"\n2,ü\n')
    (part,) = parts_of(path)
    assert part.dialect == ""
    assert len(part.identity) == 9
    path.write_text("id;text\n1;x\n")
    (part,) = parts_of(path)
    assert len(part.identity) == 10


def test_a_few_bytes_that_are_not_utf8_do_not_change_the_encoding(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("id,Titel\n1,gut ü\n2,gut ä\n3,".encode() + b"\xff\xfe\n")
    assert read(path) == [
        ["1", "gut ü"],
        ["2", "gut ä"],
        ["not UTF-8 (source.encoding names another encoding)"],
    ]
