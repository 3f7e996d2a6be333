"""JSON that is not JSON lines: lists, objects around lists, objects over several lines."""

from __future__ import annotations

import gzip
import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from scannery.indexer import parse_spec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.sources import Fields, Part, arrange, find_files, read_part, split_file
from scannery.pipelines.sources.json_documents import Effort, end_of_broken

RECORDS: list[dict[str, Any]] = [
    {"id": "1", "text": 'a "quoted" ] } text, é 漢'},
    {"id": "2", "nested": {"list": [1, [2, {"x": "\\"}]]}},
    {},
    {"id": "4", "text": "x" * 3000},
]


def parts_of(path: Path, records: str | None = None, limit: int = 1 << 20) -> list[Part]:
    spec = parse_spec(
        {"index": "i", "source": {"text": "text", "records": records}, "encoder": {"model": "m"}}
    )
    files = arrange(find_files([str(path)]), spec.source)
    return [part for file in files for part in split_file(file, limit)]


def read(path: Path, records: str | None = None, limit: int = 1 << 20) -> tuple[list[Any], list[DeadLetter]]:
    fields = Fields.of(parse_spec({"index": "i", "source": {"text": "text"}, "encoder": {"model": "m"}}))
    items = [item for part in parts_of(path, records, limit) for item in read_part(part, fields)]
    letters = [item for item in items if isinstance(item, DeadLetter)]
    return [dict(item.fields) for item in items if not isinstance(item, DeadLetter)], letters


@pytest.mark.parametrize("limit", [1, 100, 1 << 20])
@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_a_list_of_objects_is_read_whole_and_in_parts(tmp_path, limit, indent, ascii_only, ending):
    text = json.dumps(RECORDS, indent=indent, ensure_ascii=ascii_only)
    path = tmp_path / f"a.json{ending}"
    data = b"\xef\xbb\xbf \n" + text.encode() + b"\n"
    path.write_bytes(gzip.compress(data) if ending else data)
    assert read(path, limit=limit) == (RECORDS, [])
    if not ending:  # compressed files are cut into few parts
        assert [part.first for part in parts_of(path, limit=1)] == [1, 2, 3, 4]


@pytest.mark.parametrize("limit", [1, 1 << 20])
@pytest.mark.parametrize("records", ["items", "data.items", "data.page.items", "a.b"])
def test_a_list_inside_an_object_is_found_by_its_path(tmp_path, records, limit):
    value: Any = RECORDS
    for name in reversed([records] if records == "a.b" else records.split(".")):
        value = {"é": {"items": [1, 2]}, "count": 3, name: value, "after": None}
    (tmp_path / "a.json").write_text(json.dumps(value, ensure_ascii=False))
    assert read(tmp_path / "a.json", records, limit) == (RECORDS, [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"total": 2, "rows": []}', "has no 'items'; it has total, rows"),
        ('{"items": {}}', "'items' is not a list"),
        ("[{}]", "is a list of records itself"),
        ("", "has no 'items'"),
    ],
)
def test_a_path_that_leads_nowhere_is_an_error(tmp_path, text, says):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(SpecConflictError, match=says):
        parts_of(tmp_path / "a.json", "items")


def test_objects_over_several_lines_and_json_lines_need_nothing(tmp_path):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(RECORDS[0], indent=1))
    assert read(path) == (RECORDS[:1], [])
    path.write_text("\n".join(json.dumps(record, indent=1) for record in RECORDS[:3]))
    assert read(path, limit=1) == (RECORDS[:3], [])
    path.write_text("\n".join(map(json.dumps, RECORDS)))
    assert read(path) == (RECORDS, [])
    assert parts_of(path)[0].format == "jsonl"
    path.write_text('{"id": 1\n{"id": 2}\n')
    found, letters = read(path)
    assert (found, [(letter.line, letter.reason) for letter in letters]) == ([{"id": 2}], [(1, "malformed")])


@pytest.mark.parametrize("limit", [1, 1 << 20])
@pytest.mark.parametrize("rest", ['{"id": "5", "te', ""])
def test_damage_costs_what_comes_after_it(tmp_path, rest, limit):
    path = tmp_path / "a.json"
    path.write_text(json.dumps(RECORDS)[:-1] + "," + rest)
    found, letters = read(path, limit=limit)
    assert found[:4] == RECORDS
    assert [letter.reason for letter in letters] == ["damaged_file"]
    assert f"nothing from record {5 + len(found[4:])} on" in letters[0].message


BROKEN = {
    "a value is missing": '{"id": }',
    "a quote is missing": '{"id": "5, "text": "b"}',
    "a quote inside": '{"id": "5", "text": "5" pipe, 3" long"}',
    "a bracket is missing": '{"id": "5", "tags": ["a", "b"}',
    "a bracket too much": '{"id": "5"}, "text": "b"}',
    "words": "null null, NaN undefined",
    "a comma too much": "",
    "nested objects": '{"id": "5", "parts": [{"n": 1}, {"n": 2}], bad}',
    "a bad escape": '{"id": "\\x"}',
    "cut by an editor": '{"id": "5", "te',
}


@pytest.mark.parametrize("limit", [1, 30, 1 << 20])
@pytest.mark.parametrize("separator", [", ", ",\n  "])
@pytest.mark.parametrize("kind", BROKEN)
def test_an_element_that_is_not_json_costs_itself_only(tmp_path, kind, separator, limit):
    good = [
        {"id": "1", "text": "x, ]}"},
        {"id": "2", "parts": [{"n": 1}, {"n": 2}]},
        {"id": "3"},
        {"id": "4"},
    ]
    texts = [json.dumps(record) for record in good]
    texts.insert(2, BROKEN[kind])
    path = tmp_path / "a.json"
    path.write_text("[" + separator.join(texts) + "]")
    found, letters = read(path, limit=limit)
    begun = [{"id": "5"}] if kind == "a bracket too much" else []
    assert found == good[:2] + begun + good[2:]
    assert {letter.reason for letter in letters} == {"malformed"}
    assert letters[0].row == 3 + len(begun)
    assert "from byte " in letters[-1].message
    assert letters[-1].excerpt in path.read_text()
    path.write_text(separator.join(texts).join(['{"data": {"items": [', '], "next": 1}, "z": [{"id": 9}]}']))
    assert read(path, "data.items", limit)[0] == found


def test_the_place_of_a_broken_element_is_told(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[{"id": 1}, {"id": tru}, {"id": 3}]')
    _, (letter,) = read(path)
    assert (letter.row, letter.excerpt) == (2, '{"id": tru}')
    assert "the 11 bytes from byte 12 on were skipped" in letter.message


def test_a_list_without_a_comma_between_two_objects_loses_nothing(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[{"id": 1} {"id": 2}, {"id": 3}]')
    assert read(path, limit=1) == ([{"id": 1}, {"id": 2}, {"id": 3}], [])


@pytest.mark.system
def test_many_broken_elements_take_linear_time_and_little_memory(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[" + ",\n".join(['{"id": 1, "text": "a"}', '{"id": "2, "text": "b"}'] * 2_500) + "]")
    tracemalloc.start()
    found, letters = read(path, limit=1 << 16)
    _, most_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (len(found), len(letters)) == (2_500, 2_500)
    assert most_bytes < 20 << 20


@pytest.mark.system
@pytest.mark.parametrize("ending", [".json", ".jsonl", ".json.gz"])
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("limit", [1, 1 << 20])
def test_json_in_utf16_is_read_whole_and_in_parts(tmp_path, ending, encoding, limit):
    path = tmp_path / f"a{ending}"
    data = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in RECORDS).encode(encoding)
    path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
    assert read(path, limit=limit) == (RECORDS, [])
    if ".json" in path.suffixes:
        data = json.dumps(RECORDS, ensure_ascii=False).encode(encoding)
        path.write_bytes(gzip.compress(data) if ending.endswith(".gz") else data)
        assert read(path, limit=limit) == (RECORDS, [])


@pytest.mark.parametrize("limit", [1, 1 << 20])
@pytest.mark.parametrize(
    ("text", "records"),
    [
        ('[{"id": 1}, {"id": 2}]\n[{"id": 3}]', None), ('[{"id": 1}, {"id": 2}', None),
        ('{"id": 1}\n{"id":\n2}]{"id": 3}', None), ('{"a": [{"id": 1}, {"id": 2}', "a"),
    ],
)  # fmt: skip
def test_a_file_that_does_not_end_with_its_records_says_so(tmp_path, text, records, limit):
    path = tmp_path / "a.json"
    path.write_text(text if records or text[0] == "[" else text.replace('{"id": 1}', '{"id":\n1}'))
    found, letters = read(path, records, limit=limit)
    assert found == [{"id": 1}, {"id": 2}]
    assert [letter.reason for letter in letters] == ["damaged_file"]
    assert "nothing from record 3 on was read" in letters[0].message


def test_an_element_that_is_no_object_is_a_dead_letter(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('[{"id": 1}, 7, "x]", [1], null, {"id": 2}]')
    found, letters = read(path, limit=1)
    assert found == [{"id": 1}, {"id": 2}]
    assert [(letter.row, letter.reason) for letter in letters] == [(row, "malformed") for row in (2, 3, 4, 5)]


@pytest.mark.system
def test_memory_is_bounded_by_the_largest_element(tmp_path):
    path = tmp_path / "a.json"
    with path.open("w") as file:
        file.write("[" + ",".join(json.dumps({"id": i, "text": "x" * 1000}) for i in range(20_000)) + "]")
    tracemalloc.start()
    parts = parts_of(path, limit=1 << 18)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(part.records for part in parts) == 20_000
    assert peak < 10 << 20


values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.system
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.dictionaries(st.text(), values, max_size=3), min_size=1), st.booleans(), st.integers(1, 50)
)
def test_any_list_of_objects_comes_out_as_it_went_in(tmp_path, records, ascii_only, limit):
    path = tmp_path / "a.json"
    path.write_bytes(json.dumps(records, ensure_ascii=ascii_only).encode("utf-8", "replace"))
    found, letters = read(path, limit=limit)
    assert (found, letters) == (json.loads(path.read_bytes()), [])


@pytest.mark.system
@pytest.mark.parametrize("piece", ['\\"', '"', ', {"id": ', "[", ",   "])
def test_looking_for_the_next_element_takes_linear_time(piece):
    text = ('{"id": x' + piece * 60_000)[: 1 << 17]
    started = time.process_time()
    end_of_broken(text, 0, "id", Effort(), is_all=True, is_cut=False)
    assert time.process_time() - started < 20  # without the bound, 80 s


@pytest.mark.system
@pytest.mark.parametrize(
    "pair", ['{"id":[},{"id":1},', '{"id":{,{"id":1},', '{"id":"},', ',{"id":[1', '{"id":"b,\n']
)
def test_elements_whose_brackets_stay_open_take_linear_time(tmp_path, pair):
    path = tmp_path / "a.json"
    path.write_text('[{"id": 0}, ' + pair * ((1 << 15) // len(pair)) + '{"id": 2}]')
    started = time.process_time()
    found, letters = read(path, limit=1 << 24)
    assert time.process_time() - started < 20  # before, it took minutes
    assert found
    assert letters


@pytest.mark.system
def test_after_many_open_brackets_the_other_records_are_still_found(tmp_path):
    path = tmp_path / "a.json"
    path.write_text("[" + ",".join(['{"id": 1}', '{"id": [}'] * 2_500 + ['{"id": 2}']) + "]")
    found, letters = read(path, limit=1 << 24)
    assert (len(found), len(letters)) == (2_501, 2_500)
