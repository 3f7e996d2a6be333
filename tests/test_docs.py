"""What docs/searching.md and docs/serving.md say is what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import scannery
from scannery.cli import errors as cli_errors
from scannery.client.request.queries import SearchOptions
from scannery.client.transport.retries import error_from_status
from scannery.runtime.errors import STATUSES
from scannery.serving import ServerConfig, limits
from scannery.serving.process import supervisor as workers
from tests.data import ROOT

ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text()
SEARCHING = (ROOT / "docs" / "searching.md").read_text()
SERVING = (ROOT / "docs" / "serving.md").read_text()


def rows(text: str, header: str) -> list[list[str]]:
    """Return the cells of the table under a header row."""
    table = text.split(f"{header}\n", 1)[1].split("\n\n", 1)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[1:]]


def test_every_option_is_documented() -> None:
    named = {
        name
        for cells in rows(SEARCHING, "| argument | meaning |")
        for name in re.findall(r"`(\w+)`", cells[0])
    }
    assert named == set(SearchOptions.__annotations__) | {"k"}


def test_the_table_of_errors_is_right_and_complete() -> None:
    table = rows(SEARCHING, "| error | gRPC status | also a | when |")
    for name, status, also, _ in table:
        kind = getattr(scannery, name.strip("`"))
        assert type(error_from_status(status, "m", None)) is kind
        builtins = [base.__name__ for base in kind.__bases__ if base.__module__ == "builtins"]
        assert builtins == ([also.strip("`")] if also else [])
    documented = {cells[0].strip("`") for cells in table} | {"ScanneryError"}
    assert documented == {name for name in scannery.__all__ if name.endswith("Error")}


def test_limits_are_those_of_the_code() -> None:
    assert f"1 to {limits.MAX_K:,}" in SEARCHING
    assert f"at most {limits.MAX_OFFSET:,}" in SEARCHING
    assert (
        f"At most {limits.MAX_FILTER_DEPTH} levels, {limits.MAX_FILTER_CONDITIONS} conditions "
        f"and {limits.MAX_FILTER_VALUES:,} values" in SEARCHING
    )
    config = ServerConfig(store="x")
    assert f"{config.queue} wait" in SERVING
    assert f"at most {config.max_request_s:g} s and {config.max_request_bytes >> 20} MiB" in SERVING
    assert f"after {workers.FIRST_RESTART_S:g} s" in SERVING.replace("\n  ", " ")
    assert f"up to {workers.MAX_RESTART_S:g} s" in SERVING.replace("\n  ", " ")


def test_exit_codes_are_those_of_the_command() -> None:
    header = "| code | meaning |"
    assert cli_errors.__doc__ is not None
    assert rows(SERVING, header) == rows(cli_errors.__doc__, header)
    codes = {status.exit_code for status in STATUSES.values()} | {cli_errors.INTERRUPTED, cli_errors.PARTIAL}
    assert codes <= {int(code) for code, _ in rows(SERVING, header)}


def test_limits_in_the_protos_are_those_of_the_code() -> None:
    def comment(file: str, field: str) -> str:
        text = Path(ROOT, "proto", "scannery", "v1", file).read_text()
        found = re.findall(rf"((?: *//[^\n]*\n)+)[^\n]*\b{field} = ", text)
        return " ".join("".join(found).split())

    assert f"1 to {limits.MAX_K};" in comment("search.proto", "k")
    assert f"0 to {limits.MAX_OFFSET}." in comment("search.proto", "offset")
    assert f"1 to {limits.MAX_QUERIES} queries" in comment("search.proto", "queries")
    assert f"at most {limits.MAX_BATCH_HITS}" in comment("search.proto", "queries")
    assert f"1 to {limits.MAX_GET_IDS} ids" in comment("search.proto", "ids")
    assert f"1 to {limits.MAX_QUERY_TEXT_BYTES} bytes" in comment("search.proto", "text")
    assert f"At most {limits.MAX_RETURN_FIELDS}." in comment("search.proto", "return_fields")
    assert f"absent: {limits.DEFAULT_K}" in comment("search.proto", "k")


def test_files_of_the_walks_exist() -> None:
    """A name without a folder is in the folder of the path before it."""
    missing, folder = [], ROOT
    for path in map(Path, re.findall(r"`([\w/]+\.py)`", ARCHITECTURE)):
        if not any(parent.joinpath(path).is_file() for parent in (ROOT, ROOT / "pipelines", folder)):
            missing.append(str(path))
        if len(path.parts) > 1:
            folder = ROOT / path.parent
    assert not missing
