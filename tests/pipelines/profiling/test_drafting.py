from __future__ import annotations

import pytest

from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.profiling.drafting import attribute_name, draft_spec, index_name
from scannery.pipelines.profiling.field_profiles import FieldProfile
from scannery.pipelines.profiling.sample import init_sample


def profile(*parts: str) -> FieldProfile:
    return FieldProfile(".".join(parts), parts, 7, 0, ())


@pytest.mark.parametrize(
    ("parts", "taken", "name"),
    [
        (("year",), [], "year"),
        (("Price (USD)",), [], "price"),
        (("Größe in cm",), [], "grosse_in_cm"),
        (("_source", "author", "name"), [], "author_name"),
        (("meta", "published"), [], "published"),
        (("createdAt",), [], "createdAt"),
        (("meta", "createdAt"), [], "created_at"),
        (("meta", "published"), ["published"], "meta_published"),
        (("meta", "title"), [], "meta_title"),
        (("id",), [], "own_id"),
        (("year",), ["year", "own_year"], "year_2"),
        (("価格",), [], "field_7"),
        (("2024",), [], "own_2024"),
    ],
)
def test_names_of_attributes(parts: tuple[str, ...], taken: list[str], name: str):
    assert attribute_name(profile(*parts), taken) == name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Books.csv", "books"),
        ("/data/My Notes/", "my-notes"),
        ("gs://bucket/Größen.jsonl.gz", "grossen"),
        ("data/**/*.md", "data"),
        ("*.csv", "documents"),
        ("価格.csv", "documents"),
        (".", "documents"),
    ],
)
def test_names_of_indexes(given: str, name: str):
    assert index_name([given]) == name


def test_an_input_without_a_readable_record_tells_the_first_fault(tmp_path):
    (tmp_path / "a.jsonl").write_bytes('{"id": 1, "text": "Käse"}\n'.encode("cp1252"))
    sample, source = init_sample([str(tmp_path)])
    with pytest.raises(SpecConflictError, match="no record can be read; the first fault: not UTF-8"):
        draft_spec(sample, [str(tmp_path)], overrides={}, source=source)
