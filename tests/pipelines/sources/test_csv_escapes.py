r"""CSV of databases: `\"`, `\n` and `\N`, found by the file or given by the spec."""

from __future__ import annotations

import gzip
import time

import pytest

from scannery.indexer import InvalidSpecError, parse_spec
from scannery.pipelines.sources.dialects import Dialect, EscapedRows
from tests.pipelines.sources.test_dialects import parts_of, read

MYSQL = (
    'id,Titel,Preis\n'
    '1,"He said \\"hi, you\\" now",\\N\n'
    '2,"line one\\\nline two","C:\\\\new\\\\"\n'
    '3,"tab\\there",\\N\n'
)  # fmt: skip
READ = [["1", 'He said "hi, you" now'], ["2", "line one\nline two", "C:\\new\\"], ["3", "tab\there"]]


@pytest.mark.system
@pytest.mark.parametrize("limit", [1, 30, 1 << 20])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "cp1252"])
@pytest.mark.parametrize("options", [None, {"escape": "\\"}])
def test_escapes_of_mysql_are_found_or_given(tmp_path, options, encoding, limit):
    path = tmp_path / "export.csv"
    path.write_bytes(MYSQL.replace("hi", "Käse für Müller").encode(encoding))
    expected = [[cell.replace("hi", "Käse für Müller") for cell in row] for row in READ]
    assert read(path, options, limit) == expected
    packed = tmp_path / "packed.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(packed, options, limit) == expected


@pytest.mark.system
def test_cells_that_are_the_null_of_databases_show_the_escapes_too(tmp_path):
    path = tmp_path / "export.tsv"
    path.write_text("id\tTitel\tPreis\n1\ttab\\there\t\\N\n2\t\\N\t\\\\n\n")
    assert read(path) == [["1", "tab\there"], ["2", "\\n"]]


def test_windows_line_ends_can_be_escaped(tmp_path):
    path = tmp_path / "export.csv"
    path.write_bytes(b'id,Titel\r\n1,a\\\r\nb\r\n2,"say \\"c\\" now"\r\n')
    assert read(path) == [["1", "a\r\nb"], ["2", 'say "c" now']]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('id,Titel\n1,"C:\\dir\\"\n2,"b"\n', [["1", "C:\\dir\\"], ["2", "b"]]),
        ('id,Titel\n1,"{""a"": ""x\\""y""}"\n', [["1", '{"a": "x\\"y"}']]),
        ('id,Titel\n1,5\\" pipe\n2,C:\\new\n', [["1", '5\\" pipe'], ["2", "C:\\new"]]),
        ("id,Titel\n1,\\N\n2,C:\\data\n", [["1", "\\N"], ["2", "C:\\data"]]),
    ],
)
def test_backslashes_of_other_files_stay(tmp_path, text, expected):
    path = tmp_path / "export.csv"
    path.write_text(text)
    (part,) = parts_of(path)
    assert part.dialect == ""
    assert read(path) == expected


def test_escapes_can_be_ruled_out_and_be_another_character(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text("id,Titel,Preis\n1,a\\nb,\\N\n")
    assert read(path, {"escape": "none"}) == [["1", "a\\nb", "\\N"]]
    path.write_text('id,Titel\n1,"a ^"b^" c"\n')
    assert read(path, {"escape": "^"}) == [["1", 'a "b" c']]


def test_an_error_in_a_row_costs_that_row(tmp_path):
    path = tmp_path / "export.csv"
    path.write_text(MYSQL + '4,"too","many","cells"\n5,"good \\"5\\""\n'.replace(',"good', ',"good'))
    found = read(path)
    assert found[:3] == READ
    assert "4" in found[3][0]


def test_another_dialect_is_written_as_before():
    assert "escape" not in Dialect(delimiter=";").to_text("csv")
    assert Dialect.of(Dialect(delimiter=";", escape="\\").to_text("csv"), "csv").escape == "\\"
    assert Dialect.of(Dialect(delimiter=";").to_text("csv"), "csv") == Dialect(delimiter=";")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"escape": "ab"}, "must be one character or `none`, got 'ab'"),
        ({"escape": '"'}, "`escape` and `quote` must differ"),
        ({"escape": ";", "delimiter": ";"}, "`escape` and `delimiter` must differ"),
    ],
)
def test_what_an_escape_character_cannot_be_is_told(options, says):
    with pytest.raises(InvalidSpecError, match=says):
        parse_spec({"index": "i", "source": {"text": "t", "csv": options}, "encoder": {"model": "m"}})


def test_a_spec_without_it_is_written_as_before():
    source = {"text": "t", "csv": {"delimiter": ";"}}
    spec = parse_spec({"index": "i", "source": source, "encoder": {"model": "m"}})
    assert "escape" not in spec.source.model_dump()["csv"]


@pytest.mark.system
@pytest.mark.parametrize("line", ["\\\n", "\\\r\n"])
def test_a_row_over_very_many_lines_takes_linear_time(line):
    rows = EscapedRows(iter([line] * (1 << 18)), "\\", delimiter=",")
    started = time.process_time()
    assert [row[0] for row in rows] == [line[1:] * (1 << 18)]
    assert time.process_time() - started < 30  # before, two minutes


@pytest.mark.system
def test_a_row_over_many_lines_is_bounded():
    lines = ["x" * (1 << 20) + "\\\n"] * 40
    shielded = [len(line) for line in EscapedRows(iter(lines), "\\")._shielded(iter(lines))]
    assert len(shielded) > 1
    assert max(shielded) < 20 << 20
