"""`scannery build`: what it prints, and how it fails."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import scannery
from scannery.cli.commands.build import build
from scannery.cli.errors import PARTIAL
from scannery.cli.main import main
from scannery.pipelines import InputNotFoundError, ModeError, NothingToIndexError, TooManyDeadLettersError

app = typer.Typer(pretty_exceptions_enable=False)
app.command()(build)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A spec and two input files, one of them with a bad record."""
    (tmp_path / "spec.yaml").write_text("index: v\nsource: {vector: vector}\n")
    for name in "ab":
        lines = [json.dumps({"id": f"{name}{i}", "vector": [1.0, float(i)]}) for i in range(5)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    with (tmp_path / "b.jsonl").open("a") as file:
        file.write("\n{broken")
    return tmp_path


def run(corpus: Path, *arguments: str, status: int = 0) -> str:
    result = CliRunner().invoke(
        app, [str(corpus / "spec.yaml"), "--store", str(corpus / "store"), *arguments], catch_exceptions=False
    )
    assert result.exit_code == status, result.output
    return result.stdout


@pytest.mark.system
def test_the_next_command_can_be_copied_where_a_path_has_blanks(corpus):
    store = str(corpus / "a store")
    arguments = [str(corpus / "spec.yaml"), "--store", store, "--input", str(corpus / "a.jsonl")]
    printed = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    [command] = [line for line in printed.splitlines() if line.startswith("Next: ")]
    assert shlex.split(command)[-2:] == ["--store", store]


@pytest.mark.system
def test_the_summary_names_counts_and_dead_letters(corpus):
    printed = run(
        corpus, "--input", str(corpus / "a.jsonl"), "--input", str(corpus / "b.jsonl"), status=PARTIAL
    )
    assert "v: version 1" in printed
    assert "Next: scannery search --vector '[…]' --index v" in printed  # it has no encoder to ask with words
    assert "10 in 1 shard(s)" in printed
    assert f"1  malformed: {corpus}/b.jsonl, line 6: not JSON" in printed
    path = next(line.split()[-1] for line in printed.splitlines() if "dead-letters/" in line)
    assert json.loads(Path(path).read_text())["line"] == 6
    assert "already up to date: version 1" in run(
        corpus, "--input", *map(str, sorted(corpus.glob("*.jsonl"))), status=PARTIAL
    )


@pytest.mark.system
def test_a_log_gets_lines_of_progress(corpus, capfd, monkeypatch):
    monkeypatch.setattr("scannery.cli.progress.LINE_EVERY_S", 0)
    main(
        [
            "build", str(corpus / "spec.yaml"), "--store", str(corpus / "store"), "--input", str(corpus / "a.jsonl"),
        ]
    )  # fmt: skip
    out, err = capfd.readouterr()
    assert "reading input: 100%" in err
    assert "v: version 1" in out


@pytest.mark.system
def test_words_after_input_are_inputs_and_the_rest_goes_to_the_runner(corpus):
    inputs = [str(corpus / "a.jsonl"), str(corpus / "b.jsonl")]
    printed = run(corpus, "--json", "--input", *inputs, "--", "--direct_num_workers=1", status=PARTIAL)
    report = json.loads(printed)
    assert (report["documents"], report["files"], report["version"]) == (10, 2, 1)
    assert report["dead_letters"] == {"malformed": 1}
    assert report["seconds"]["wall"] > 0


@pytest.mark.system
@pytest.mark.parametrize(("limit", "fails"), [("0", True), ("1", False), ("5%", True), ("0.5", False)])
@pytest.mark.parametrize("option", ["--allow-errors", "--max-dead-letters", "spec"])
def test_the_limit_of_refused_records(corpus, option, limit, fails):
    arguments = ["--input", str(corpus / "*.jsonl")]
    if option == "spec":
        (corpus / "spec.yaml").write_text(f"index: v\nsource: {{vector: vector, max_errors: {limit}}}\n")
    else:
        arguments += [option, limit]
    if fails:
        with pytest.raises(TooManyDeadLettersError, match=r"first .*b\.jsonl, line 6: not JSON"):
            run(corpus, *arguments)
    else:
        run(corpus, *arguments)


@pytest.mark.system
def test_a_limit_in_the_spec_can_change_without_reading_the_input_again(corpus):
    arguments = ["--json", "--input", str(corpus / "*.jsonl")]
    run(corpus, *arguments, status=PARTIAL)
    units = sorted((corpus / "store/v/stage/units").glob("*.json"))
    (corpus / "spec.yaml").write_text("index: v\nsource: {vector: vector, max_errors: 10%}\n")
    report = json.loads(run(corpus, *arguments))
    assert (report["errors_allowed"], report["documents"]) == (True, 10)
    assert sorted((corpus / "store/v/stage/units").glob("*.json")) == units


@pytest.mark.system
def test_a_field_that_no_record_has_is_told_with_the_name_it_could_mean(corpus):
    (corpus / "spec.yaml").write_text("index: v\nsource: {vector: vector, title: vektor}\n")
    printed = run(corpus, "--input", str(corpus / "a.jsonl"))
    assert "! no record has a value in the field `vektor`, which the spec names" in printed
    (corpus / "spec.yaml").write_text("index: v\nsource: {vector: vector}\nattributes: {yeer: int}\n")
    (corpus / "c.jsonl").write_text('{"id": "c", "vector": [1, 2], "year": 3}\n')
    printed = run(corpus, "--input", str(corpus / "c.jsonl"))
    assert "the field `yeer`, which the spec names; did you mean `year`?" in printed


@pytest.mark.system
def test_a_full_build_tells_what_it_removed_and_which_live_updates_it_dropped(corpus):
    run(corpus, "--input", str(corpus / "a.jsonl"))
    with scannery.connect(str(corpus / "store")) as client:
        client.index("v").upsert([{"id": "live", "vector": [1.0, 9.0]}, {"id": "a1", "vector": [9.0, 1.0]}])
    (corpus / "a.jsonl").write_text((corpus / "a.jsonl").read_text().split("\n", 1)[1])  # without a0
    printed = run(corpus, "--full", "--input", str(corpus / "a.jsonl"))
    assert "! 2 datapoints are not in the input, and this full build removed them" in printed
    assert "! 2 datapoints of live updates were removed, or replaced by the input" in printed
    again = run(corpus, "--full", "--input", str(corpus / "a.jsonl"))
    assert "removed" not in again
    (corpus / "spec.yaml").write_text("index: v\nsource: {vector: vector}\ndistance: dot\n")
    (corpus / "a.jsonl").write_text('{"id": "a2", "vector": [1, 2]}\n')
    report = json.loads(run(corpus, "--full", "--json", "--input", str(corpus / "a.jsonl")))
    assert (report["removed_datapoints"], report["dropped_live"]) == (3, 0)


@pytest.mark.system
def test_passages_of_documents_are_not_counted_as_documents(corpus):
    (corpus / "spec.yaml").write_text("index: v\nsource: {vector: vector, document_id: doc}\n")
    lines = [{"id": f"{doc}#{i}", "doc": doc, "vector": [1, i]} for doc in "xyz" for i in range(4)]
    (corpus / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    printed = run(corpus, "--input", str(corpus / "a.jsonl"))
    assert "records     12 from 1 file(s)" in printed
    assert "datapoints  12 of 3 documents in 1 shard(s)" in printed


@pytest.mark.system
def test_each_reason_has_its_first_record(corpus):
    with (corpus / "a.jsonl").open("a") as file:
        file.write('\n{"id": "x", "vector": "none"}\n{"id": "y"}\n{"id": "z", "vector": 3}\n')
    printed = run(corpus, "--input", str(corpus / "*.jsonl"), status=PARTIAL)
    assert f"2  vector; first {corpus}/a.jsonl, line 6: vector: " in printed
    assert f"1  missing_vector: {corpus}/a.jsonl, line 7: vector: is missing" in printed
    assert "line 8" not in printed


@pytest.mark.parametrize("limit", ["many", "-1", "1.5", "inf", "101%"])
def test_a_wrong_limit_is_a_usage_error(corpus, limit):
    arguments = ["--store", "x", "--input", "y", f"--allow-errors={limit}"]
    result = CliRunner().invoke(app, [str(corpus / "spec.yaml"), *arguments])
    assert result.exit_code == 2


@pytest.mark.system
def test_updates_say_what_changed_and_what_was_kept(corpus):
    run(corpus, "--input", str(corpus / "a.jsonl"))
    (corpus / "ids.txt").write_text("a0\r\n\na1\nnobody")
    printed = run(
        corpus, "--input", str(corpus / "b.jsonl"), "--delete", f"@{corpus / 'ids.txt'}", "--delete", "b0",
        status=PARTIAL,
    )  # fmt: skip
    assert "4 added, 3 removed, 1 to delete not found" in printed
    assert "3 documents of the index are not in this input and were kept; --full removes them" in printed
    report = json.loads(run(corpus, "--json", "--full", "--input", str(corpus / "b.jsonl"), status=PARTIAL))
    assert (report["mode"], report["passages"]) == ("full", 5)
    assert json.loads(run(corpus, "--json", "--delete", "b1"))["removed"] == 1
    with pytest.raises(ModeError):
        run(corpus, "--mode", "replace", "--input", str(corpus / "a.jsonl"))


@pytest.mark.system
def test_errors_are_those_of_the_pipeline(corpus):
    with pytest.raises(InputNotFoundError, match="matches no file"):
        run(corpus, "--input", str(corpus / "none*.jsonl"))
    (corpus / "bad.jsonl").write_text("{}\n")
    with pytest.raises(NothingToIndexError, match="missing_id"):
        run(corpus, "--input", str(corpus / "bad.jsonl"))


@pytest.mark.system
def test_loading_the_command_imports_nothing_slow():
    # NumPy comes with the SDK; what takes seconds to import must wait until it is needed.
    heavy = "('apache_beam', 'torch', 'scann', 'pyarrow', 'numba')"
    code = f"import sys, scannery.cli.commands.build; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={
        "PYTHONPATH": ":".join(path for path in sys.path if path),
    })  # fmt: skip
    assert done.stdout.strip() == "[]"


@pytest.mark.system
def test_a_build_that_stops_after_embedding_says_how_to_go_on(corpus):
    source = ["--input", str(corpus / "a.jsonl")]
    printed = run(corpus, *source, "--until", "embed")
    assert "v: embedded; no version was made" in printed
    assert "5 for 1 shard(s)" in printed
    assert "Next: the same command without --until" in printed
    assert json.loads(run(corpus, *source, "--until", "embed", "--json"))["until"] == "embed"
    assert "v: version 1" in run(corpus, *source)
    with pytest.raises(typer.BadParameter, match="--until must be embed"):
        build(corpus / "spec.yaml", str(corpus / "store"), until="segment")


def test_a_plan_prints_needs_and_price_and_makes_nothing(corpus):
    source = ["--input", str(corpus / "a.jsonl"), "--plan"]
    printed = run(corpus, *source, "--workers", "4", "--machine", "l4")
    assert "5 records in 1 file(s)" in printed
    assert all(word in printed for word in ("segment", "memory", "l4: one L4", "Nothing was"))
    plan = json.loads(run(corpus, *source, "--json", "--price-per-hour", "2"))
    assert (plan["passages"], plan["shards"], len(plan["costs"])) == (5, 1, 1)
    assert not (corpus / "store").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--machine", "l4", "--workers", "2"], "--workers, --machine: only with --plan"),
        (["--plan", "--price-per-hour", "nan"], "--price-per-hour must be a positive number, got nan"),
        (["--plan", "--passages-per-s", "-5"], "--passages-per-s must be a positive number, got -5"),
        (["--plan", "--until", "segment"], "--until must be embed, got 'segment'"),
        (["--plan", "--accelerator", "l4"], "only the runner 'dataflow' has machines by stage"),
        (["--plan", "--mode", "some"], "mode must be one of full, upsert, got 'some'"),
        (["--plan", "--delete", "a"], "--delete: not with --plan"),
    ],
)
def test_options_of_a_plan_are_checked(corpus, capsys, words, message):
    store = corpus / "store"
    source = [str(corpus / "spec.yaml"), "--input", str(corpus / "a.jsonl"), "--store", str(store)]
    assert main(["build", *source, *words]) == 2
    assert message in capsys.readouterr().err
    assert not store.exists()
