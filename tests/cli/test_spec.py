"""`scannery spec init`, `check` and `schema`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from scannery.cli.main import main
from scannery.indexer import parse_spec, spec_json_schema

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SPEC = f"""index: notes
source: {{id: id, text: body}}
encoder: {{model: {MODEL}}}
attributes: {{year: int, show: string}}
"""


def write(path: Path, records: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, records)))
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    capsys.readouterr()
    status = main(["spec", *arguments])
    captured = capsys.readouterr()
    return status, captured.out + captured.err


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "spec.yaml"
    path.write_text(SPEC)
    return str(path)


NOTES: list[dict[str, Any]] = [
    {"id": f"n{i}", "body": f"A note about the harbour, number {i}.", "year": 1990 + i, "show": "a"}
    for i in range(5)
]


@pytest.mark.system
def test_a_good_spec_and_good_data(tmp_path, spec, capsys):
    status, out = run(capsys, "check", spec, "--input", write(tmp_path / "n.jsonl", NOTES))
    assert status == 0
    assert "looked at all 5 records of 1 file(s)" in out
    assert "A note about the harbour, number 0." in out
    assert "english 100%" in out
    status, out = run(capsys, "check", spec)
    assert (status, "is valid" in out) == (0, True)


@pytest.mark.system
def test_named_vectors_are_told_with_how_often_they_are_filled(tmp_path, capsys):
    lines = [
        "index: notes",
        "source: {text: body, title: name}",
        "encoder: {model: all-MiniLM-L6-v2}",
        "named_vectors:",
        "  title: {encoder: {model: all-MiniLM-L6-v2}, vector: given}",
        "  image: {dimensions: 2, vector: picture}",
        "  sound: {dimensions: 2}",
    ]
    spec = tmp_path / "spec.yaml"
    spec.write_text("\n".join(lines))
    own: list[dict[str, Any]] = [
        {"name": "Harbours"},
        {"given": [0.5] * 384},
        {"picture": [1, 2]},
        {"picture": [1]},
        {},
    ]
    data = write(tmp_path / "n.jsonl", [note | more for note, more in zip(NOTES, own, strict=True)])
    status, out = run(capsys, "check", str(spec), "--json", "--input", data)
    assert status == 1
    report = json.loads(out)
    found = {field["name"]: (field["source"], field["present"]) for field in report["fields"]}
    assert found["vectors.title"] == ("given, or encoded title", 0.4)
    assert found["vectors.image"] == ("picture", 0.2)
    assert "vectors.sound" not in found  # only written live
    (fault,) = report["faults"]
    assert (fault["reason"], fault["field"]) == ("vector_size", "picture")


@pytest.mark.system
def test_all_faults_of_a_record_are_told_with_their_places(tmp_path, spec, capsys):
    bad = {"body": " ", "year": "soon", "show": {"a": 1}}
    data = write(tmp_path / "n.jsonl", [*NOTES, bad, {**NOTES[0], "id": "n9", "year": "later"}, {**NOTES[1]}])
    status, out = run(capsys, "check", spec, "--json", "--input", data)
    assert status == 1
    report = json.loads(out)
    assert (report["valid"], report["good"], report["records"], report["refused"]) == (True, False, 8, 3)
    faults = {(fault["reason"], fault["field"]): fault for fault in report["faults"]}
    assert faults["attribute", "year"]["records"] == 2
    assert "'soon'" in faults["attribute", "year"]["message"]
    assert faults["attribute", "year"]["place"].endswith("n.jsonl line 6")
    assert faults["attribute", "show"]["records"] == 1
    assert {("missing_id", "id"), ("missing_text", "body")} <= faults.keys()
    assert faults["duplicate_id", "id"]["place"].endswith("line 8")
    status, out = run(capsys, "check", spec, "--input", data)
    assert "3 of 8 records would be refused" in out


@pytest.mark.system
def test_fields_that_no_record_has_are_told_with_the_nearest_name(tmp_path, spec, capsys):
    renamed = [{"id": n["id"], "body": n["body"], "yeer": n["year"], "show": "a", "extra": 1} for n in NOTES]
    status, out = run(capsys, "check", spec, "--input", write(tmp_path / "n.jsonl", renamed))
    assert status == 1
    assert "no record has the field year; did you mean yeer?" in out
    assert "not used    yeer, extra" in out


@pytest.mark.system
def test_long_texts_are_told_and_cut(tmp_path, capsys, spec):
    long = [{**note, "body": "The tide comes in, and the boats turn. " * 200} for note in NOTES]
    data = write(tmp_path / "n.jsonl", long)
    status, out = run(capsys, "check", spec, "--input", data)
    assert status == 0
    assert "5 texts are too long for the encoder" in out
    assert "`source.chunk` prevents it" in out
    Path(spec).write_text(SPEC.replace("text: body", "text: body, chunk: {max_tokens: 128}"))
    status, out = run(capsys, "check", spec, "--json", "--input", data)
    report = json.loads(out)
    assert report["lengths"]["over_limit"] == 5
    assert report["lengths"]["cut_share"] == 0
    assert report["lengths"]["passages"] > 50
    assert report["passages"][1]["id"] == "n0#1"
    assert report["passages"][1]["tokens"] <= 128


@pytest.mark.parametrize(("given", "meant"), [
    ("image: 512", "named_vectors.image: must be a mapping such as `{dimensions: 512}`, got 512"),
    ("title: some/model", "`{encoder: {model: some/model}}`, got 'some/model'"),
    ("image:", "named_vectors.image: must be a mapping such as `{dimensions: 512}`, got None"),
    ("- image", "named_vectors: must be a mapping such as `{title: {encoder: {model: all-MiniLM-L6-v2}}}`"),
])  # fmt: skip
def test_a_named_vector_that_is_no_mapping_is_told_with_the_mapping(tmp_path, capsys, given, meant):
    path = tmp_path / "named.yaml"
    path.write_text(f"index: talks\nsource: {{id: id, text: text}}\nnamed_vectors:\n  {given}\n")
    status, out = run(capsys, "check", str(path))
    assert (status, meant in " ".join(out.split())) == (1, True), out


@pytest.mark.system
def test_a_spec_that_is_not_valid(tmp_path, capsys):
    (tmp_path / "bad.yaml").write_text(SPEC.replace("attributes", "atributes"))
    status, out = run(capsys, "check", str(tmp_path / "bad.yaml"))
    assert (status, "did you mean `attributes`?" in out) == (1, True)
    status, out = run(capsys, "check", str(tmp_path / "bad.yaml"), "--json")
    assert status == 1
    assert json.loads(out)["valid"] is False


@pytest.mark.system
def test_init_writes_a_spec_with_reasons(tmp_path, capsys):
    data = write(tmp_path / "Harbour notes.jsonl", NOTES)
    status, out = run(capsys, "init", data, "-o", str(tmp_path / "spec.yaml"))
    assert status == 0, out
    text = (tmp_path / "spec.yaml").read_text()
    parsed = parse_spec(yaml.safe_load(text))
    assert (parsed.index, parsed.source.id, parsed.source.text) == ("harbour-notes", "id", "body")
    assert parsed.attributes == {"year": "int"}
    assert parsed.encoder is not None
    assert parsed.encoder.model == MODEL
    assert parsed.lexical is not None
    assert "# show: string" in text
    assert "English (100%)" in text
    assert f"scannery build {tmp_path / 'spec.yaml'} --input" in out
    status, out = run(capsys, "init", data, "-o", str(tmp_path / "spec.yaml"))
    assert (status, "--force" in out) == (2, True)
    assert run(capsys, "init", data, "-o", "-") == (0, text)


def test_init_chooses_model_and_stemmer_by_the_language(tmp_path, capsys):
    texts = [
        "Der Hafen liegt im Nebel und die Boote sind nicht zu sehen.",
        "Am Abend kommt die Flut und es wird kalt.",
    ]
    data = write(tmp_path / "n.jsonl", [{"id": i, "text": text} for i, text in enumerate(texts)])
    status, out = run(capsys, "init", data, "-o", "-")
    written = yaml.safe_load(out)
    assert (status, written["lexical"]) == (0, {"language": "german"})
    assert written["encoder"] == {
        "model": "intfloat/multilingual-e5-small", "query_prompt": "query: ", "document_prompt": "passage: ",
    }  # fmt: skip


@pytest.mark.system
def test_init_cuts_long_texts(tmp_path, capsys):
    data = write(tmp_path / "n.jsonl", [{**note, "body": "The tide comes in. " * 300} for note in NOTES])
    _, out = run(capsys, "init", data, "-o", "-")
    assert yaml.safe_load(out)["source"]["chunk"] == {"max_tokens": 128, "overlap_tokens": 16}
    assert "5 of 5 texts are longer than the 254 tokens" in " ".join(out.replace("#", "").split())


def test_flags_win_over_guesses(tmp_path, capsys):
    records = [
        {"id": i, "slug": f"s{i}", "body": note["body"], "note": note["body"] * 3}
        for i, note in enumerate(NOTES)
    ]
    data = write(tmp_path / "n.jsonl", records)
    _, out = run(
        capsys, "init", data, "-o", "-", "--id", "slug", "--text", "body", "--title", "id", "--encoder", "./model",
    )  # fmt: skip
    written = yaml.safe_load(out)
    assert (written["source"]["id"], written["source"]["text"], written["source"]["title"]) == (
        "slug",
        "body",
        "id",
    )
    assert written["encoder"] == {"model": "./model"}


@pytest.mark.system
def test_vectors_need_no_encoder(tmp_path, capsys):
    np.save(tmp_path / "v.npy", np.random.default_rng(1).standard_normal((10, 8), np.float32))
    status, out = run(capsys, "init", str(tmp_path / "v.npy"), "-o", str(tmp_path / "spec.yaml"))
    assert status == 0, out
    written = yaml.safe_load((tmp_path / "spec.yaml").read_text())
    assert written["source"] == {"id": "id", "vector": "vector"}
    assert "encoder" not in written
    assert (
        main(
            [
                "build", str(tmp_path / "spec.yaml"), "--input", str(tmp_path / "v.npy"), "--store",
                str(tmp_path / "s"),
            ]
        )
        == 0
    )  # fmt: skip


@pytest.mark.system
def test_types_that_some_records_refuse_become_texts(tmp_path, capsys):
    records = [{**note, "price": price} for note, price in zip(NOTES, [1, 2, "free", 3, 4], strict=True)]
    _, out = run(capsys, "init", write(tmp_path / "n.jsonl", records), "-o", "-")
    assert yaml.safe_load(out)["attributes"]["price"] == "string"


@pytest.mark.system
def test_data_without_an_id_or_text(tmp_path, capsys):
    status, out = run(capsys, "init", write(tmp_path / "n.jsonl", [{"a": 1}, {"a": 1}]), "-o", "-")
    assert (status, "--text" in out) == (2, True)
    status, out = run(capsys, "init", write(tmp_path / "m.jsonl", [{"id": 1}, {"id": 2}]), "-o", "-")
    assert (status, "--text" in out) == (2, True)
    assert run(capsys, "init", str(tmp_path / "none.csv"), "-o", "-")[0] == 3


@pytest.mark.system
def test_a_sample_of_a_large_input_says_so(tmp_path, capsys, spec):
    many = [{**NOTES[0], "id": str(i)} for i in range(3000)]
    data = write(tmp_path / "n.jsonl", many)
    _, out = run(capsys, "check", spec, "--json", "--records", "100", "--input", data)
    report = json.loads(out)
    assert (report["records"], report["is_whole"]) == (100, False)


@pytest.mark.system
def test_the_schema(capsys):
    status, out = run(capsys, "schema")
    assert (status, json.loads(out)) == (0, spec_json_schema())


@pytest.mark.system
def test_a_failed_draft_is_not_left_behind(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text(
        "id,text\n" + "".join(f"{n},bees and owls number {n}\n" for n in range(5))
    )
    monkeypatch.setattr("scannery.cli.commands.spec._print", _raising)
    assert main(["spec", "init", str(tmp_path / "a.csv"), "-o", str(tmp_path / "spec.yaml")]) != 0
    assert not (tmp_path / "spec.yaml").exists()


def _raising(*_: object) -> None:
    raise OSError("no space left")
