from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from scannery.pipelines.profiling.field_profiles import profile_fields
from scannery.pipelines.profiling.value_types import guess_type, is_missing


@pytest.mark.parametrize(
    ("name", "values", "kind", "options"),
    [
        ("stars", ["1", "20", "-3"], "int", {}),
        ("zip", ["01067", "80331"], "string", {}),
        ("price", ["1.50", "2"], "float", {}),
        ("price", ["1,50", "12"], "float", {"decimal": ","}),
        ("price", ["1.234,50", "12,00"], "float", {"decimal": ","}),
        ("value", ["84,000", "1,250,000", "300"], "int", {"decimal": "."}),
        ("value", ["84,000.5", "300"], "float", {"decimal": "."}),
        ("value", ["1.234.567", "300"], "int", {"decimal": ","}),
        ("pages", ["1.002", "768"], "float", {}),
        ("done", ["true", "False"], "bool", {}),
        ("done", ["Yes", "No"], "bool", {}),
        ("done", ["t", "f"], "bool", {}),
        ("answer", ["yes"], "string", {}),
        ("is_open", ["0", "1"], "bool", {}),
        ("goals", ["0", "1"], "int", {}),
        ("day", ["2024-03-02", "2024-03-03"], "timestamp", {}),
        ("at", ["2024-03-02 10:00:00+00", "2024-03-02T10:00:00.123Z"], "timestamp", {}),
        ("day", ["24.12.2023", "01.02.2024"], "timestamp", {"format": "%d.%m.%Y"}),
        ("day", ["24.12.2023", "00.00.0000"], "timestamp", {"format": "%d.%m.%Y"}),
        ("day", ["12/24/2023", "01/02/2024"], "timestamp", {"format": "%m/%d/%Y"}),
        ("day", ["Sat, 02 Mar 2024 10:00:00 GMT"], "timestamp", {}),
        ("created_ms", ["1709424000000", "1709424000001"], "timestamp", {"unit": "ms"}),
        ("createdAt", [1709424000, 1709424001], "timestamp", {"unit": "s"}),
        ("post_number", [1709424000, 1709424001], "int", {}),
        ("year", ["1999", "2024"], "int", {}),
        ("tags", ['["a", "b"]', "[]"], "string_list", {}),
        ("tags", ["['a', 'b']", "['c']"], "string_list", {}),
        ("tags", ["a, b", "b, c", "a, c", "a"], "string_list", {"split": ","}),
        ("place", ["Springfield, Illinois", "Paris, France", "Bern, Schweiz"], "string", {}),
        ("text", ["Hello, world", "Well, no"], "string", {}),
        ("n", [1, 2], "int", {}),
        ("n", [1, 2**70], "string", {}),
        ("n", [1, 2.5], "float", {}),
        ("n", [Decimal("1.50")], "float", {}),
        ("b", [True, False], "bool", {}),
        ("d", [dt.date(2024, 1, 1)], "timestamp", {}),
        ("l", [["a"], []], "string_list", {}),
        ("l", [[4, 9], [4]], "string_list", {}),
        ("x", ["a", 1], "string", {}),
    ],
)
def test_types(name: str, values: list[Any], kind: str, options: dict[str, Any]):
    guess = guess_type(name, values)
    assert guess is not None
    assert (guess.kind, dict(guess.options)) == (kind, options)


def test_points_stand_between_thousands_where_other_numbers_have_decimal_commas():
    records = [{"pages": "1.002", "price": "1.299,00 €"}, {"pages": "768", "price": "9,-"}]
    pages, _ = profile_fields(records)
    assert pages.guess is not None
    assert (pages.guess.kind, pages.guess.options) == ("int", {"decimal": ","})
    pages, _ = profile_fields([*records, {"pages": "3", "price": "2.50"}])
    assert pages.guess is not None
    assert (pages.guess.kind, pages.guess.options) == ("float", {})
    assert "between thousands" in pages.guess.why


def test_whole_floats_beside_missing_values_are_integers():
    assert guess_type("stars", ["7.0", "9.0"], has_missing=True).kind == "int"  # type: ignore[union-attr]
    assert guess_type("stars", [7.0, 9.0], has_missing=True).kind == "int"  # type: ignore[union-attr]
    assert guess_type("price", ["7.0", "9.0"]).kind == "float"  # type: ignore[union-attr]


@pytest.mark.parametrize("values", [[{"a": 1}], [b"x"], [[0.5, 1.5]], [[{"a": 1}]]])
def test_no_attribute_holds_these(values: list[Any]):
    assert guess_type("x", values) is None


def test_words_for_no_value():
    assert all(map(is_missing, [None, float("nan"), "", " ", "NULL", "n/a", "NaN", "\\N", "None"]))
    assert not any(map(is_missing, [0, False, "0", "no", [], "nullable"]))
