"""Files of other programs go in by `spec init` and `build`, the spec as drafted, and searches find their content."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

import scannery
from scannery.cli.main import main
from tests.cli.foreign_files import WRITERS

pytestmark = pytest.mark.system

MODEL = "sentence-transformers/all-MiniLM-L6-v2"


@dataclasses.dataclass(frozen=True)
class Expected:
    """What becomes of a file."""

    records: int
    query: str
    id: str
    """Of the document that the query finds."""
    where: dict[str, Any]
    """A filter that it fits, and only few others."""
    types: dict[str, str]
    """Of some attributes."""
    mode: Literal["dense", "lexical"] = "dense"
    """By words where the model, which is made for English, does not know the language."""


CASES = {
    "duckdb_parquet": Expected(
        8, "what do I need against an avalanche", "4707", {"price": {"$gt": 200, "$lt": 300}, "in_stock": True},
        {"price": "float", "created_at": "timestamp", "discontinued_on": "timestamp", "tags": "string_list"},
    ),
    "postgres_csv": Expected(
        8, "coffee with milk foam", "4704", {"price": {"$gt": 1000}, "created_at": {"$lt": "2020-03-01"}},
        {"price": "float", "in_stock": "bool", "created_at": "timestamp", "tags": "string_list"},
    ),
    "german_spreadsheet": Expected(
        6, "Tomaten und Gurke, eiskalt im Sommer", "6", {"preis": {"$lt": 5}, "zuletzt_gekocht": {"$lt": "2023-08-01"}},
        {"preis": "float", "dauer": "int", "zuletzt_gekocht": "timestamp", "Vegetarisch": "bool"},
        mode="lexical",
    ),
    "pandas_csv": Expected(
        6, "too loud to sleep", "r-1", {"rating": 3, "topics": "noise"},
        {"rating": "int", "verified": "bool", "stay": "timestamp", "topics": "string_list"},
    ),
    "elastic_dump": Expected(
        5, "inflation and the central bank", "kX49-4wBz",
        {"views": {"$gte": 2000}, "published_at": {"$gt": "2024-05-01"}},
        {"author_name": "string", "views": "int", "published_at": "timestamp", "tags": "string_list"},
    ),
    "rest_array": Expected(4, "sourdough", "121", {"slug": "why-bread-needs-a-night"}, {"date": "timestamp"}),
    "avro_events": Expected(
        5, "danger of fire", "12345678-90ab-cdef-1234-567890abcdf3", {"refund": {"$lt": 30}, "country": "IT"},
        {"opened": "timestamp", "due": "timestamp", "refund": "float", "orders": "int", "labels": "string_list"},
    ),
    "mysql_tsv": Expected(
        5, "pain while sitting on the bike", "90004", {"likes": {"$gt": 40}, "created_ms": {"$gt": "2024-03-04"}},
        {"likes": "int", "created_ms": "timestamp"},
    ),
    "excel_unicode_text": Expected(
        5, "armour of a Japanese warrior", "B-02", {"insured_value": {"$gt": 100_000}, "on_loan": False},
        {"Year": "int", "on_loan": "bool", "insured_value": "int"},
    ),
    "markdown_folder": Expected(
        3, "how many grams of Yirgacheffe beans", "handbook/coffee.md", {"section": "The coffee corner > Espresso"},
        {"folder": "string", "section": "string"},
    ),
    "podcast_feed": Expected(
        3, "a boat that stays in the harbour", "odd-jobs-2", {"speakers": "Ada", "duration_s": {"$gt": 1300}},
        {"published": "timestamp", "duration_s": "int", "speakers": "string_list"},
    ),
    "office_folder": Expected(
        3, "what did the festival earn", "reports/2023.pdf", {"pages": 2}, {"page": "int", "section": "string"},
    ),
}  # fmt: skip

ALIKE = {"pandas_csv": "postgres_csv", "excel_unicode_text": "mysql_tsv", "rest_array": "elastic_dump"}
"""Files that only `make test-long` reads, each with one that is read in the same way; tests/pipelines/sources has the
dialects of all."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name in ALIKE else name for name in CASES]
)
def test_a_foreign_file_goes_in(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    case, data, spec, store = CASES[name], tmp_path / "data", tmp_path / "spec.yaml", tmp_path / "store"
    data.mkdir()
    if name in ("podcast_feed", "office_folder"):
        pytest.importorskip("pypdf", reason="needs the extra `documents`")
    WRITERS[name](data)
    # The model that is recommended for German cannot be had without a network.
    assert main(["spec", "init", str(data), "-o", str(spec), "--encoder", MODEL]) == 0
    assert case.types.items() <= _types(spec).items()
    capsys.readouterr()
    assert main(["spec", "check", str(spec), "--json", "--input", str(data)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["records"], report["refused"], report["is_whole"]) == (case.records, 0, True)
    assert main(["build", str(spec), "--json", "--input", str(data), "--store", str(store)]) == 0
    built = json.loads(capsys.readouterr().out)
    assert (built["documents"], built["dead_letters"]) == (case.records, {})
    with scannery.connect(str(store)) as client:
        index = client.index(built["index"])
        assert index.search(case.query, k=1, mode=case.mode)[0].document_id == case.id
        assert [hit.document_id for hit in index.search(case.query, k=10, where=case.where)][:1] == [case.id]


def _types(spec: Path) -> dict[str, str]:
    written = yaml.safe_load(spec.read_text())["attributes"]
    return {name: value if isinstance(value, str) else value["type"] for name, value in written.items()}
