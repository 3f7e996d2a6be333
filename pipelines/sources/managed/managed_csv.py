"""Lines of CSV in the managed layout → records in the form of its JSON.

    id, vector components, dimension:value (sparse), name=value, name=!denied, #name=3i, crowding_tag=…

There is no header. A line is a record, so a quoted cell may hold commas but no line breaks. Numbers have Java's syntax:
also with a suffix `f` or `d`, in hexadecimal (`0x1p-2`), or with `_` between digits.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from typing import Any

from scannery.pipelines.dead_letters import DeadLetter, excerpt_of
from scannery.pipelines.sources.parts import MAX_RECORD_BYTES, Record

__all__ = ["csv_record", "java_float"]

# Digits after a point require the point: otherwise matching a long string that is no number takes quadratic time.
_DECIMAL = re.compile(r"[+-]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?[fFdD]?")
_HEXADECIMAL = re.compile(r"([+-]?0[xX][0-9a-fA-F_]*(?:\.[0-9a-fA-F_]*)?[pP][+-]?\d+)[fFdD]?")
_INTEGER = re.compile(r"[+-]?\d{1,20}")
_NUMBER_KEYS = {"i": "value_int", "f": "value_float", "d": "value_double"}


class _CsvError(ValueError):
    """A cell is wrong.

    Args:
        message: the problem.
        reason: of the dead letter.
        category: the managed service's name for the error.

    """

    def __init__(
        self, message: str, *, reason: str = "malformed", category: str = "INVALID_CSV_SYNTAX"
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.category = category


def csv_record(line: bytes, source: str, number: int) -> Record | DeadLetter:
    """Return the record in a line, with the keys of the JSON form, or a dead letter."""

    def reject(reason: str, message: str, category: str | None = None) -> DeadLetter:
        return DeadLetter(reason=reason, message=message, source=source, line=number, excerpt=excerpt_of(line),
                          category=category)  # fmt: skip

    if len(line) > MAX_RECORD_BYTES:
        return reject("too_large", f"the line is longer than {MAX_RECORD_BYTES} bytes")
    try:
        text = line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        return Record(_parsed(next(csv.reader([text], strict=True))), source, line=number)
    except UnicodeDecodeError as error:
        return reject("encoding", f"not UTF-8: {error.reason} at byte {error.start} of the line")
    except csv.Error as error:
        return reject("malformed", f"not CSV: {error}", "INVALID_CSV_SYNTAX")
    except _CsvError as error:
        return reject(error.reason, str(error), error.category)


def java_float(text: str) -> float:
    """Return the value of a floating-point literal of Java; ValueError for other text."""
    text = text.strip()
    if hexadecimal := _HEXADECIMAL.fullmatch(text):
        try:
            return float.fromhex(hexadecimal[1].replace("_", ""))
        except OverflowError as error:
            raise ValueError(str(error)) from error
    if not _DECIMAL.fullmatch(text):
        raise ValueError(f"not a number: {text!r}")
    return float(text.rstrip("fFdD").replace("_", ""))


def _parsed(cells: Sequence[str]) -> dict[str, Any]:
    if not cells:  # for example a byte order mark alone
        raise _CsvError("the line is empty", category="EMPTY_LINE")
    end = next((i for i, cell in enumerate(cells) if i and (":" in cell or "=" in cell)), len(cells))
    record: dict[str, Any] = {"id": cells[0]}
    if end > 1:
        record["embedding"] = _vector(cells[1:end])
    tokens: dict[str, dict[str, Any]] = {}
    for number, cell in enumerate(cells[end:], end + 1):
        name, is_pair, value = cell.partition("=")
        if not is_pair:
            _add_sparse(record, cell, number)
        elif name == "crowding_tag":
            if name in record:
                raise _CsvError(f"cell {number}: a second crowding_tag")
            record[name] = value
        elif name.startswith("#"):
            _add_number(record, name[1:], value, number)
        else:
            denied = value.startswith("!")
            restrict = tokens.setdefault(name, {"namespace": name})
            restrict.setdefault("deny" if denied else "allow", []).append(value[1:] if denied else value)
    if tokens:
        record["restricts"] = list(tokens.values())
    return record


def _vector(cells: Sequence[str]) -> list[float]:
    try:
        return [
            float(cell) for cell in cells
        ]  # the common case; values that are not finite are refused later
    except ValueError:
        pass
    numbers = []
    for number, cell in enumerate(cells, 2):
        try:
            numbers.append(java_float(cell))
        except ValueError as error:
            message = f"cell {number} of the vector is not a number: {cell[:40]!r}"
            raise _CsvError(message, reason="vector", category="INVALID_EMBEDDING") from error
    return numbers


def _add_sparse(record: dict[str, Any], cell: str, number: int) -> None:
    dimension, is_sparse, value = cell.partition(":")
    if not is_sparse:
        raise _CsvError(
            f"cell {number}: must be dimension:value or name=value after the vector, got {cell[:40]!r}"
        )
    sparse = record.setdefault("sparse_embedding", {"values": [], "dimensions": []})
    if not _INTEGER.fullmatch(dimension):
        raise _CsvError(
            f"cell {number}: the dimension must be an integer", category="INVALID_SPARSE_DIMENSIONS"
        )
    try:
        sparse["values"].append(java_float(value))
    except ValueError as error:
        message = f"cell {number}: the value must be a number"
        raise _CsvError(message, category="INVALID_SPARSE_EMBEDDING") from error
    sparse["dimensions"].append(int(dimension))


def _add_number(record: dict[str, Any], name: str, value: str, number: int) -> None:
    key = _NUMBER_KEYS.get(value[-1:])
    try:
        if key is None or (key == "value_int" and not _INTEGER.fullmatch(value[:-1])):
            raise ValueError
        parsed = int(value[:-1]) if key == "value_int" else java_float(value)
    except ValueError as error:
        message = f"cell {number}: #{name} must be a number that ends in i, f or d, got {value[:40]!r}"
        raise _CsvError(message, reason="attribute", category="INVALID_NUMERIC_VALUE") from error
    restricts = record.setdefault("numeric_restricts", [])
    if any(restrict["namespace"] == name for restrict in restricts):
        raise _CsvError(f"cell {number}: a second #{name}", reason="attribute", category="MULTIPLE_VALUES")
    restricts.append({"namespace": name, key: parsed})
