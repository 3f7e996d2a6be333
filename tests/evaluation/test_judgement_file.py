"""A file of judgements that grows: formats, undoing, interrupted writes, and two writers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scannery.evaluation.judgements import JudgementFile, read_judgements
from scannery.pipelines.errors import CollectionError

FORMATS = {
    "qrels.tsv": "query-id\tcorpus-id\tscore\nq1\ta b\t2\nq1\tc\t0\n",
    "qrels.trec": "q1\t0\ta b\t2\nq1\t0\tc\t0\n",
    "qrels.jsonl": '{"query-id": "q1", "corpus-id": "a b", "score": 2}\n'
    '{"query-id": "q1", "corpus-id": "c", "score": 0}\n',
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_name_of_a_new_file_gives_its_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with JudgementFile(path) as file:
        file.add("q1", "a b", 2)
        file.add("q1", "c", 0)
    assert path.read_text() == FORMATS[name]
    assert read_judgements(path) == {"q1": {"a b": 2, "c": 0}}
    with JudgementFile(path) as file:
        assert file.judgements == {"q1": {"a b": 2, "c": 0}}


@pytest.mark.parametrize("name", FORMATS)
def test_an_old_file_keeps_its_format(tmp_path: Path, name: str) -> None:
    path = tmp_path / "qrels"
    path.write_text(FORMATS[name])
    with JudgementFile(path) as file:
        file.add("q2", "d", 3)
    assert path.read_text().startswith(FORMATS[name])
    assert read_judgements(path)["q2"] == {"d": 3}
    assert len(path.read_text().splitlines()) == len(FORMATS[name].splitlines()) + 1


def test_undoing_takes_back_lines_of_this_session_only(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_text(FORMATS["qrels.tsv"])
    with JudgementFile(path) as file:
        file.add("q1", "c", 3)
        file.add("q2", "d", 1)
        assert file.undo() == ("q2", "d", 1)
        assert file.judgements == {"q1": {"a b": 2, "c": 3}, "q2": {}}
        assert file.undo() == ("q1", "c", 3)
        assert file.judgements["q1"]["c"] == 0
        assert file.undo() is None
    assert path.read_text() == FORMATS["qrels.tsv"]


def test_undoing_the_first_line_of_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    with JudgementFile(path) as file:
        file.add("q1", "x", 3)
        file.undo()
        file.add("q1", "a b", 2)
        file.add("q1", "c", 0)
    assert path.read_text() == FORMATS["qrels.tsv"]


@pytest.mark.system
@pytest.mark.parametrize("name", FORMATS)
def test_an_interrupted_write_never_becomes_another_judgement(tmp_path: Path, name: str) -> None:
    whole = FORMATS[name]
    for length in range(len(whole)):
        path = tmp_path / f"{length}-{name}"
        path.write_text(whole[:length])
        with JudgementFile(path) as file:
            pairs = {(q, d): level for q, levels in file.judgements.items() for d, level in levels.items()}
            assert pairs.items() <= {("q1", "a b"): 2, ("q1", "c"): 0}.items()
            complete = [line for line in whole[:length].split("\n")[:-1] if not line.startswith("query-id")]
            assert len(pairs) >= len(complete)
            file.add("q9", "z", 1)
        assert read_judgements(path)["q9"] == {"z": 1}


def test_a_number_as_a_document_does_not_look_like_a_level(tmp_path: Path) -> None:
    path = tmp_path / "qrels"
    path.write_text("q1 0 77 1\nq1 0 12")  # of `q1 0 1234 2`
    with JudgementFile(path) as file:
        assert (file.judgements, file.repaired) == ({"q1": {"77": 1}}, True)
    assert path.read_text() == "q1 0 77 1\n"


def test_a_line_without_its_line_feed_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    path.write_text("q1\td\t1")
    with JudgementFile(path) as file:
        assert (file.judgements, file.repaired) == ({"q1": {"d": 1}}, False)
        file.add("q1", "e", 2)
    assert read_judgements(path) == {"q1": {"d": 1, "e": 2}}


@pytest.mark.system
def test_judgements_survive_the_death_of_the_process(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    code = (
        "import os, signal, sys\n"
        "from scannery.evaluation.judgements import JudgementFile\n"
        "file = JudgementFile(sys.argv[1])\n"
        "file.add('q1', 'a b', 2); file.add('q1', 'c', 0)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", code, str(path)], check=False, timeout=60).returncode == -9
    assert path.read_text() == FORMATS["qrels.tsv"]
    JudgementFile(path).close()  # the lock died with its process


def test_every_judgement_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = os.fsync

    def counted(number: int) -> None:
        synced.append(number)
        sync(number)

    with JudgementFile(tmp_path / "qrels.tsv") as file:
        monkeypatch.setattr(os, "fsync", counted)
        file.add("q", "d", 1)
        file.add("q", "e", 1)
        file.undo()
    assert len(synced) == 3


def test_only_one_process_judges_into_a_file(tmp_path: Path) -> None:
    path = tmp_path / "qrels.tsv"
    with JudgementFile(path), pytest.raises(CollectionError, match="another process is judging into"):
        JudgementFile(path)


def test_ids_that_the_format_cannot_hold_are_refused(tmp_path: Path) -> None:
    with JudgementFile(tmp_path / "qrels.tsv") as file:
        with pytest.raises(
            CollectionError, match=r"cannot hold the id 'a\\tb'; a name that ends with .jsonl can"
        ):
            file.add("q", "a\tb", 1)
        assert file.judgements == {}
    with JudgementFile(tmp_path / "qrels.jsonl") as file:
        file.add("a\tb", "d", 1)
    assert read_judgements(tmp_path / "qrels.jsonl") == {"a\tb": {"d": 1}}


def test_other_files_are_not_written_to(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("buy milk\n")
    with pytest.raises(CollectionError, match="line 1: must have 3 or 4 columns"):
        JudgementFile(path)
    assert path.read_text() == "buy milk\n"


@pytest.mark.parametrize(
    "content",
    [b"my only copy", b'{"a": 1}', b"a line\nanother", b"\x89PNG\n\x00\x01", b'{"id": 1}\n{"id": 2'],
)
@pytest.mark.parametrize("name", ["notes.txt", "a.jsonl"])
def test_a_file_of_something_else_is_refused_and_not_cut(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CollectionError):
        JudgementFile(path)
    assert path.read_bytes().removesuffix(b"\n") == content  # a whole line of JSON gets its line feed
