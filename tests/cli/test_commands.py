"""The command as people and scripts see it: what it prints, and how it ends."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
import typer

from scannery.cli.commands.serve import serve
from scannery.cli.declared_options import _parameter_name
from scannery.cli.errors import exit_code, one_line
from scannery.cli.main import main
from scannery.client import Hit, Hits
from scannery.indexer import Store
from scannery.runtime.errors import CodedError
from scannery.runtime.options import declared_options
from scannery.serving import SecurityConfig, Server, ServerConfig
from scannery.serving.config import AuditConfig, TrafficConfig
from tests.data import ROOT
from tests.served import commit_relevance, copied, make_text_store, serving

VECTOR = json.dumps([1.0] * 16)


@pytest.mark.parametrize("config", [ServerConfig, SecurityConfig, TrafficConfig, AuditConfig])
def test_each_option_of_a_server_is_a_flag_of_serve(config: type) -> None:
    flags = inspect.signature(serve).parameters
    named = {name: option for name, (_, option) in declared_options(config).items() if option.help}
    assert [name for name, option in named.items() if _parameter_name(name, option) not in flags] == []


@pytest.fixture(scope="module")
def server(library: Path) -> Iterator[Server]:
    with serving(library) as server:
        yield server


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main(arguments)
    output = capsys.readouterr()
    return status, output.out, output.err


def in_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    status, output, errors = run(capsys, *arguments, "--json")
    assert (status, errors) == (0, "")
    return json.loads(output)


def test_store_and_target_give_the_same_hits(
    capsys: pytest.CaptureFixture[str], server: Server, library: Path
) -> None:
    question = ("search", "--index", "library", "--vector", VECTOR, "-k", "4", "--where", '{"live": true}')
    embedded = in_json(capsys, *question, "--store", str(library))
    remote = in_json(capsys, *question, "--target", server.address)
    assert embedded == remote
    assert (embedded["index"], embedded["version"], len(embedded["hits"])) == ("library", 1, 4)
    for hit in embedded["hits"]:
        assert hit["attributes"]["live"] is True
        assert set(hit) >= {"id", "document_id", "score", "attributes"}


def test_text_is_asked_with_words(capsys: pytest.CaptureFixture[str], texts: Path) -> None:
    answer = in_json(capsys, "search", "how do eruptions happen", "-i", "texts", "-s", str(texts), "-k", "1")
    assert answer["hits"][0]["id"] == "volcano"


@pytest.mark.system
def test_phrases_are_asked_in_quotes_and_in_filters(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = make_text_store(tmp_path, lexical=True)
    asked = ("search", "-i", "texts", "-s", str(store), "--mode", "lexical")
    answer = in_json(capsys, *asked, 'the "game is over" moves')
    assert [hit["id"] for hit in answer["hits"]] == ["chess"]
    _, output, _ = run(capsys, *asked, 'the "game is over" moves', "--explain")
    assert 'all hits have "game is over"' in output
    where = json.dumps({"text": {"$phrase": "dough overnight", "$slop": 3}})
    answer = in_json(capsys, *asked, "the", "--where", where)
    assert [hit["id"] for hit in answer["hits"]] == ["bread"]


def test_plain_output_has_everything_and_cuts_nothing(
    capsys: pytest.CaptureFixture[str], texts: Path
) -> None:
    status, output, _ = run(
        capsys, "search", "how do eruptions happen", "-i", "texts", "-s", str(texts), "-k", "2"
    )
    assert status == 0
    blocks = output.split("\n1. ")[-1].split("\n2. ")
    assert len(blocks) == 2
    assert "Molten rock rises from deep below and breaks through the crust of the planet." in blocks[0]
    assert "id: volcano" in blocks[0]
    assert "letters: 77" in blocks[0]


@pytest.mark.system
def test_a_terminal_gets_a_table(texts: Path) -> None:
    arguments = ("search", "how do eruptions happen", "-i", "texts", "-s", str(texts), "-k", "1")
    result = subprocess.run(
        [sys.executable, "-m", "scannery.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "FORCE_COLOR": "1", "COLUMNS": "100"},
    )
    for text in ("score", "passage", "volcano", "Molten rock rises"):
        assert text in result.stdout
    assert max(map(len, result.stdout.splitlines())) < 200


def test_output_has_no_control_characters_of_the_data(capsys: pytest.CaptureFixture[str]) -> None:
    from scannery.cli.output import print_hits

    print_hits(
        Hits([Hit(id="a", document_id="a", title="x\x1b[31m", text="evil\x1b]0;t\x07\nline", score=1.0)])
    )
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "\x07" not in output


def test_hits_show_what_they_are_ordered_by(capsys: pytest.CaptureFixture[str]) -> None:
    from scannery.cli.output import print_hits

    hits = [
        Hit(id="a", document_id="a", score=0.5, rerank_score=0.75),
        Hit(id="b", document_id="b", score=0.016, dense_score=0.25, lexical_score=7.5, relevance=0.734),
        Hit(id="c", document_id="c", score=1.0),
    ]
    print_hits(Hits(hits))
    first = [line for line in capsys.readouterr().out.splitlines() if line[0].isdigit()]
    assert first == [
        "1. 0.5000 (rerank 0.7500)  a",
        "2. 0.0160 (relevance 73%, dense 0.2500, lexical 7.5000)  b",
        "3. 1.0000  c",
    ]


def test_no_hits_are_said(capsys: pytest.CaptureFixture[str], library: Path) -> None:
    arguments = ("search", "-i", "library", "-s", str(library), "--vector", VECTOR, "--where", '{"year": 1}')
    assert run(capsys, *arguments) == (0, "No hits.\n", "")
    assert in_json(capsys, *arguments)["hits"] == []


@pytest.mark.system
def test_a_search_for_relevant_hits(
    capsys: pytest.CaptureFixture[str], library: Path, tmp_path: Path
) -> None:
    store = copied(library, tmp_path)
    commit_relevance(Store.open(store), "library")
    arguments = ("search", "-i", "library", "-s", str(store), "--vector", VECTOR)
    every = in_json(capsys, *arguments)
    assert "nothing_relevant" not in every
    least = every["hits"][4]["relevance"]
    relevant = in_json(capsys, *arguments, "--min-relevance", str(least))
    assert relevant["hits"] == every["hits"][:5]
    status, output, _ = run(capsys, *arguments)
    assert status == 0
    assert f"1. {every['hits'][0]['score']:.4f} (relevance {every['hits'][0]['relevance']:.0%})  " in output
    nothing = (*arguments, "--min-relevance", "0.9999")
    assert run(capsys, *nothing) == (0, "Nothing relevant: no hit has a relevance of 0.9999.\n", "")
    answer = in_json(capsys, *nothing)
    assert (answer["hits"], answer["nothing_relevant"]) == ([], True)
    queries = tmp_path / "queries.jsonl"
    queries.write_text(f'{{"id": "q", "vector": {VECTOR}}}\n')
    _, output, _ = run(
        capsys,
        "search",
        "-i",
        "library",
        "-s",
        str(store),
        "--queries",
        str(queries),
        "--min-relevance",
        "0.9999",
    )
    assert json.loads(output) == {"id": "q", "version": 2, "hits": [], "nothing_relevant": True}


def test_get_prints_what_there_is_and_names_what_there_is_not(
    capsys: pytest.CaptureFixture[str], library: Path
) -> None:
    asked = ("get", "-i", "library", "-s", str(library))
    [point] = in_json(capsys, *asked, "d1", "--vectors")
    assert point["id"] == "d1"
    assert len(point["vector"]) == 16
    status, output, errors = run(capsys, *asked, "d1", "nobody", "nothing")
    assert status == 3
    assert "id: d1" in output
    assert errors == "error: index 'library' has no datapoint 'nobody', 'nothing'\n"


def test_options_reach_the_index(capsys: pytest.CaptureFixture[str], library: Path) -> None:
    asked = ("search", "-i", "library", "-s", str(library))
    answer = in_json(
        capsys, *asked, "--like", "d42", "-k", "3", "--max-per-group", "1", "--group-by", "show",
        "--offset", "1", "--min-score", "-1", "--exact", "--target-recall", "0.9", "--field", "title",
    )  # fmt: skip
    assert len(answer["hits"]) == 3
    assert all(
        set(hit) <= {"id", "document_id", "score", "title", "group", "attributes"} for hit in answer["hits"]
    )
    assert all(hit["attributes"] == {} for hit in answer["hits"])


@pytest.mark.system
def test_an_answer_can_be_explained(capsys: pytest.CaptureFixture[str], library: Path) -> None:
    asked = ("search", "-i", "library", "-s", str(library), "--vector", VECTOR, "--where", '{"live": true}')
    status, output, _ = run(capsys, *asked, "--explain")
    assert status == 0
    told = output.split("How it was answered\n")[1]
    assert told.count("exact_allowed; ") == 3  # one line for each segment
    assert "rows allowed" in told
    assert "expected recall 1.000" in told
    explanation = in_json(capsys, *asked, "--explain", "--leaves", "3", "--rescore", "20")["explanation"]
    assert {plan["plan"] for plan in explanation["segments"]} == {"exact_allowed"}
    assert set(explanation["stages_us"]) == {"encode", "filter", "search", "crowd", "hydrate"}
    assert "explanation" not in in_json(capsys, *asked)


@pytest.mark.system
def test_the_rank_of_a_datapoint_is_explained(capsys: pytest.CaptureFixture[str], library: Path) -> None:
    search = ("search", "-i", "library", "-s", str(library), "--vector", VECTOR)
    ids = [hit["id"] for hit in in_json(capsys, *search, "-k", "9")["hits"]]
    status, output, _ = run(capsys, *search, "-k", "5", "--why", ids[8])
    assert status == 0
    assert output.startswith(f"{ids[8]}: no hit, rank 9\n")
    assert output.endswith("  ✗ better hits come before it\n  remedy: k = 9\n")
    where = '{"published": {"$lt": "1999-01-01"}, "live": {"$exists": true}}'
    report = in_json(capsys, *search, "--why", ids[0], "--where", where)
    assert (report["id"], report["kept_out_by"], report["allowed"]) == (ids[0], "filter", False)
    assert report["conditions"][0]["condition"] == {"published": {"$lt": "1999-01-01"}}
    assert report["hit"]["id"] == ids[0]
    assert "search" not in report
    explained = run(capsys, *search, "--why", ids[0], "--explain")[1]
    assert explained.startswith(f"{ids[0]}: a hit, rank 1\n")
    assert "How it was answered\n" in explained
    assert in_json(capsys, *search, "--why", ids[0], "--explain")["search"]["mode"] == "dense"


@pytest.mark.system
@pytest.mark.parametrize(("arguments", "code", "message"), [
    ("search", 2, ""),
    ("", 2, ""),
    ("search -i library words", 2, "give either --target HOST:PORT or --store URI"),
    ("search -i library words -s STORE -t localhost:1", 2, "give either --target"),
    ("search -i library -s STORE", 2, "give QUERY, --like, --vector or --sparse"),
    ("search words -s STORE", 2, "Missing option '--index'"),
    ("search -i library -s STORE --vector [1] words", 2, "query.group.queries[1]: must have 16 dimensions"),
    ("search -i library -s STORE --like d1 --weights [1,2]", 2, "--weights must be a list of 1 numbers"),
    ("search -i library -s STORE --vector {}", 2, "--vector must be a list of numbers"),
    ("search -i library -s STORE --vector nope", 2, "--vector is not valid JSON"),
    ("search -i library -s STORE --vector VECTOR --where {", 2, "--where is not valid JSON"),
    ("search -i library -s STORE --vector VECTOR --where []", 2, "where: must be a dictionary"),
    ('search -i library -s STORE --vector VECTOR --where {"yaer":1}', 2, "where.yaer: no such attribute"),
    ("search -i library -s STORE --vector VECTOR -k 0", 2, "k: must be 1 to 10000, got 0"),
    ("search -i library -s STORE --vector VECTOR -k x", 2, "Invalid value for '-k'"),
    ("search -i library -s STORE --vector [1,2]", 2, "query: must have 16 dimensions, got 2"),
    ("search -i library -s STORE words -m hybrid", 2, "mode: index 'library' has no words for hybrid search"),
    ("search -i library -s STORE words -m dense --alpha 0.5", 2, "alpha: is for hybrid search, the mode is dense"),
    ("search -i library -s STORE --vector VECTOR --mode fuzzy", 2, "--mode"),
    ("search -i library -s STORE words", 2, "has no encoder"),
    ("search -i nobody -s STORE --vector VECTOR", 3, "there is no index 'nobody'; there are: flat, library"),
    ("search -i library -s /no/such/store words", 3, "there is no store at '/no/such/store'"),
    ("search -i library -s STORE --like nobody", 3, "no datapoint 'nobody'"),
    ("search -i library -s foo://bar words", 2, "unknown scheme"),
    ("search -i library -t localhost words", 2, "--target must be HOST:PORT"),
    ("search -i library -t 127.0.0.1:1 words --timeout 5", 4, "127.0.0.1:1"),
    ("search -i library -t 127.0.0.1:1 words --timeout 0", 2, "timeout_s"),
    ("get -i library -s STORE", 2, "Missing argument 'ID...'"),
    ("serve --store STORE --listen nowhere", 2, "--listen: must be host:port, got 'nowhere'"),
    ("serve --store STORE --drain -1", 2, "--drain: must be 0 to 3600, got -1"),
    ("serve --store STORE --keys /no/file", 2, "--keys: there is no file /no/file"),
    ("serve --store STORE --index library --cold other", 2, "--cold: 'other' is not among the served indexes"),
    ("serve --store STORE --workers 0", 2, "workers: must be 1 to 256"),
    ("serve --store /no/such/store", 3, "there is no store"),
    ("serve --store STORE --index nobody", 3, "there is no index nobody in"),
    ("build SPEC --input SPEC --store foo://bar", 2, "unknown scheme"),
    ("build SPEC --input SPEC --store SPEC", 2, "is a file; a store is a folder"),
    ("build SPEC --store STORE --delete @/no/ids", 3, "/no/ids: No such file or directory"),
    ("build SPEC --input SPEC --store STORE --queries /no/queries", 3, "queries: there is no file"),
    ("build /no/spec.yaml --input SPEC --store STORE", 2, "/no/spec.yaml: No such file or directory"),
    ("upsert /no/file -i library -s STORE", 3, "input '/no/file' matches no file"),
    ("upsert /dev/null -i library -s STORE", 2, "cannot tell the format of /dev/null"),
    ("delete --ids /no/file -i library -s STORE", 3, "/no/file: No such file or directory"),
    ("search --queries /no/file -i library -s STORE", 3, "queries: cannot read /no/file: No such file"),
    ("bench serve 127.0.0.1:1 -i library --queries /no/file", 3, "/no/file: No such file or directory"),
    ("top 127.0.0.1:1", 4, "no metrics at http://127.0.0.1:1/metrics: Connection refused"),
    ("nonsense", 2, "No such command 'nonsense'"),
    ("index show nobody --store STORE", 3, "nobody"),
])  # fmt: skip
def test_errors_are_one_line_and_have_a_code(
    capsys: pytest.CaptureFixture[str], library: Path, tmp_path: Path, arguments: str, code: int, message: str
) -> None:
    spec = tmp_path / "spec.jsonl"  # as JSON, a spec and an input in one
    spec.write_text('{"index": "library", "source": {"vector": "v"}}')
    for name, value in (("STORE", str(library)), ("VECTOR", VECTOR), ("SPEC", str(spec))):
        arguments = arguments.replace(name, value.replace(" ", ""))
    status, output, errors = run(capsys, *arguments.split())
    assert status == code
    assert message in errors
    assert bool(errors) == bool(message)
    if message:
        assert errors.startswith("error: ")
        assert errors.count("\n") == 1
        assert "Traceback" not in output + errors


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str], library: Path) -> None:
    status, _, errors = run(capsys, "--debug", "search", "-i", "nobody", "-s", str(library), "words")
    assert status == 3
    assert "Traceback" in errors
    assert errors.splitlines()[-1].startswith("error: index: there is no index 'nobody'")


@pytest.mark.system
def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    status, output, _ = run(capsys, "--version")
    assert (status, output.split()[0]) == (0, "scannery")
    assert f"(SQLite {apsw.sqlite_lib_version()})" in output
    assert "0 to 1. Default: measured by the build." in " ".join(
        run(capsys, "search", "--help")[1].replace("│", " ").split()
    )
    for command in ("search", "get", "serve", "index"):
        status, output, _ = run(capsys, command, "--help")
        assert (status, "Usage" in output) == (0, True)


@pytest.mark.system
def test_a_reader_that_leaves_early_is_no_error(library: Path) -> None:
    command = f"{sys.executable} -m scannery.cli.main search -i library -s {library} --vector '{VECTOR}' -k 600 --json"
    result = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{command} | head -1"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "{\n", "")


def test_every_error_of_every_room_declares_what_it_means() -> None:
    for room in ("client", "indexer", "runtime", "embed", "pipelines"):
        module = importlib.import_module(f"scannery.{room}.errors")
        for _, kind in inspect.getmembers(module, inspect.isclass):
            if issubclass(kind, Exception):
                assert issubclass(kind, CodedError), kind


def test_an_unexpected_error_is_named_by_its_type() -> None:
    assert exit_code(KeyError("x")) == 5
    assert one_line(ZeroDivisionError("a\nb")) == "ZeroDivisionError: a b"


@pytest.mark.system
def test_help_is_shown_as_it_is_written() -> None:
    """Rich takes what stands in square brackets for markup, and leaves it out."""
    from scannery.cli.main import app

    pages: list[Any] = [typer.main.get_command(app)]
    for page in pages:
        pages.extend(getattr(page, "commands", {}).values())
        assert "[" not in (page.help or ""), page.name
        for parameter in page.params:
            assert "[" not in (getattr(parameter, "help", None) or ""), (page.name, parameter.name)
    assert len(pages) > 20


@pytest.mark.parametrize("name", ["localhost", "localhost:7077", "a.b.example"])
def test_the_option_names_a_store_whatever_it_is_called(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, errors = run(capsys, "index", "create", "a", "--dimensions", "2", "--store", name)
    assert (status, errors) == (0, "")
    assert (tmp_path / name / "a").is_dir()
