"""Judgement sets: files that other commands read, several people, interruptions, and hostile names and texts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scannery.evaluation.judgements import JudgementFile, read_judgement_lines, read_judgements, read_queries
from scannery.evaluation.judging.sets import MAX_CHARS, JudgementSets
from scannery.pipelines.errors import CollectionError

QUESTIONS = "molten rock\nbaking at home\n"


@pytest.fixture
def sets(tmp_path: Path) -> JudgementSets:
    return JudgementSets(tmp_path / "judgements")


@pytest.fixture
def folder(sets: JudgementSets) -> Path:
    return sets.folder / "podcasts" / "first"


@pytest.fixture
def ids(sets: JudgementSets) -> list[str]:
    return list(sets.add("podcasts", "first", "pasted.txt", QUESTIONS).ids)


def mark(sets: JudgementSets, question: str, document: str, level: int | None, by: str = "Ana"):
    return sets.mark("podcasts", "first", question, document, level, by)


def told(sets: JudgementSets, question: str) -> dict[str, tuple[int | None, list[tuple[str, int | None]]]]:
    marks = sets.marks("podcasts", "first", question)
    return {
        name: (pair.level, [(each.by, each.level) for each in pair.marks]) for name, pair in marks.items()
    }


def test_a_folder_is_made_with_its_first_set(sets: JudgementSets) -> None:
    assert sets.sets("podcasts") == []
    assert sets.contents("podcasts", "first").questions == []
    assert sets.marks("podcasts", "first", "q") == {}
    assert not sets.folder.exists()


def test_files_are_those_that_other_commands_read(sets: JudgementSets, folder: Path, ids: list[str]) -> None:
    mark(sets, ids[0], "hedgerow-007", 3)
    mark(sets, ids[1], "a b", 0, by="Ben")
    assert {name: str(query) for name, query in read_queries(folder / "queries.jsonl").items()} == {
        ids[0]: "molten rock",
        ids[1]: "baking at home",
    }
    assert read_judgements(folder / "qrels.tsv") == {ids[0]: {"hedgerow-007": 3}, ids[1]: {"a b": 0}}
    contents = sets.contents("podcasts", "first")
    assert [(each.judged, each.relevant) for each in contents.questions] == [(1, 1), (1, 0)]
    assert (contents.queries, contents.qrels) == (str(folder / "queries.jsonl"), str(folder / "qrels.tsv"))
    (summary,) = sets.sets("podcasts")
    assert (summary.name, summary.questions, summary.judged, summary.judgements) == ("first", 2, 2, 2)


@pytest.mark.parametrize("name", ["qrels.trec", "qrels.jsonl"])
def test_judgements_that_exist_keep_their_file(sets: JudgementSets, folder: Path, name: str) -> None:
    folder.mkdir(parents=True)
    (folder / "queries.jsonl").write_text('{"_id": "1", "text": "molten rock"}')
    with JudgementFile(folder / name) as file:
        file.add("1", "x", 1)
    mark(sets, "1", "y", 2)
    assert read_judgements(folder / name) == {"1": {"x": 1, "y": 2}}
    assert not (folder / "qrels.tsv").exists()
    assert told(sets, "1") == {"x": (1, []), "y": (2, [("Ana", 2)])}


def test_a_question_is_added_once(sets: JudgementSets, ids: list[str]) -> None:
    again = sets.add("podcasts", "first", "log.tsv", "q7\tmolten rock\nq8\tchess openings\n")
    assert (again.ids, again.new) == ([ids[0], "q8"], 1)
    assert [each.id for each in sets.contents("podcasts", "first").questions] == [*ids, "q8"]
    with pytest.raises(CollectionError, match="id 'q8' is that of another question"):
        sets.add("podcasts", "first", "log.tsv", "q8\tsomething else\n")


def test_marks_of_several_people_are_kept_and_the_newest_counts(sets: JudgementSets, ids: list[str]) -> None:
    mark(sets, ids[0], "a", 3)
    pair = mark(sets, ids[0], "a", 1, by="Ben")
    assert (pair.level, pair.differ) == (1, True)
    assert told(sets, ids[0]) == {"a": (1, [("Ana", 3), ("Ben", 1)])}
    contents = sets.contents("podcasts", "first")
    assert contents.shared == 1
    assert [(each.question, each.document) for each in contents.disputes] == [(ids[0], "a")]
    assert len(read_judgement_lines(contents.qrels)) == 1  # programs refuse a pair that occurs twice
    mark(sets, ids[0], "a", 1)
    assert sets.contents("podcasts", "first").disputes == []


def test_a_mark_is_taken_back_to_what_was_before(sets: JudgementSets, ids: list[str]) -> None:
    mark(sets, ids[0], "a", 3)
    mark(sets, ids[0], "b", 2)
    mark(sets, ids[0], "a", 0)
    mark(sets, ids[0], "a", 1, by="Ben")
    mark(sets, ids[0], "c", 1, by="Ben")
    assert mark(sets, ids[0], "a", None, by="Ben").level == 0
    assert mark(sets, ids[0], "a", None).level == 3
    assert mark(sets, ids[0], "a", None).level is None
    assert mark(sets, ids[0], "a", None).level is None
    assert read_judgements(sets.contents("podcasts", "first").qrels) == {ids[0]: {"b": 2, "c": 1}}


def test_what_is_changed_by_hand_meanwhile_counts(sets: JudgementSets, folder: Path, ids: list[str]) -> None:
    mark(sets, ids[0], "a", 3)
    mark(sets, ids[0], "b", 1)
    qrels = folder / "qrels.tsv"
    # As editors save: another file of this name, here without the last line feed.
    (folder / "edited").write_text(f"query-id\tcorpus-id\tscore\n{ids[0]}\ta\t0\n{ids[0]}\tc\t2")
    (folder / "edited").replace(qrels)
    assert told(sets, ids[0])["a"] == (0, [("Ana", 3)])
    mark(sets, ids[0], "a", 2, by="Ben")
    mark(sets, ids[0], "b", 3, by="Ben")
    assert told(sets, ids[0]) == {
        "a": (2, [("Ana", 3), ("", 0), ("Ben", 2)]),
        "b": (3, [("Ben", 3)]),
        "c": (2, []),
    }
    assert mark(sets, ids[0], "a", None, by="Ben").level == 0
    qrels.write_text("this is no file of judgements\n")
    with pytest.raises(CollectionError, match=r"qrels\.tsv, line 1"):
        mark(sets, ids[0], "a", 1)
    assert qrels.read_text() == "this is no file of judgements\n"
    assert "line 1" in sets.sets("podcasts")[0].problem


@pytest.mark.parametrize("name", ["queries.jsonl", "qrels.tsv", "marks.jsonl"])
def test_an_interrupted_line_is_lost_alone(
    sets: JudgementSets, folder: Path, ids: list[str], name: str
) -> None:
    mark(sets, ids[0], "a", 3)
    whole = (folder / name).read_bytes()
    sets.add("podcasts", "first", "more.txt", "another question")
    mark(sets, ids[0], "bcd", 2)
    longer = (folder / name).read_bytes()
    for size in range(len(whole), len(longer) - 1, 6):
        (folder / name).write_bytes(longer[:size])
        sets.contents("podcasts", "first")
        assert told(sets, ids[0])["a"] == (3, [("Ana", 3)])
        sets.add("podcasts", "first", "last.txt", "one more")
        mark(sets, ids[0], f"e{size}", 1)
        assert told(sets, ids[0])[f"e{size}"] == (1, [("Ana", 1)])
        texts = [each.text for each in sets.contents("podcasts", "first").questions]
        assert (
            {"molten rock", "one more"}
            <= set(texts)
            <= {*QUESTIONS.splitlines(), "another question", "one more"}
        )


def test_other_content_is_not_cut(sets: JudgementSets, folder: Path, ids: list[str]) -> None:
    (folder / "marks.jsonl").write_text("a note of mine")
    with pytest.raises(CollectionError, match="unfinished line of other content"):
        mark(sets, ids[0], "a", 1)
    assert (folder / "marks.jsonl").read_text() == "a note of mine"


def test_lines_that_are_no_marks_are_told(sets: JudgementSets, folder: Path, ids: list[str]) -> None:
    wrong = [
        "[]",
        "1",
        "{}",
        "\x00",
        '{"query-id": 1, "corpus-id": "a", "score": 1, "by": "x", "at": ""}',
        "[" * 9999,
    ]
    (folder / "marks.jsonl").write_text("".join(f"{line}\n" for line in wrong))
    mark(sets, ids[0], "a", 1)
    assert told(sets, ids[0]) == {"a": (1, [("Ana", 1)])}
    assert "6 lines" in sets.contents("podcasts", "first").warnings[0]


@pytest.mark.parametrize(
    "name", ["..", ".", "", "a/b", "/etc", "a\x00", "a\n", "A", "a" * 64, ".hidden", "é"]
)
def test_names_are_folders_and_nothing_else(sets: JudgementSets, name: str) -> None:
    for index, each in (("podcasts", name), (name, "first")):
        for call in (
            lambda index=index, each=each: sets.contents(index, each),
            lambda index=index, each=each: sets.marks(index, each, "q"),
            lambda index=index, each=each: sets.add(index, each, "a.txt", "question"),
            lambda index=index, each=each: sets.mark(index, each, "q", "d", 1, "Ana"),
            lambda index=index, each=each: sets.measure(index, each, {"dense": {}}),
        ):
            with pytest.raises(CollectionError, match="must match"):
                call()
    assert not sets.folder.exists()


@pytest.mark.parametrize(
    "document", ["a\tb", "a\nb", "a\rb", "", " a", "a ", "x" * 513, "\ud800", "\ufeffa", "\u00a0a", "a\x1f"]
)
def test_ids_that_a_line_cannot_hold_are_refused(
    sets: JudgementSets, folder: Path, ids: list[str], document: str
) -> None:
    mark(sets, ids[0], "a", 1)
    before = (folder / "qrels.tsv").read_bytes()
    with pytest.raises(CollectionError, match="document"):
        mark(sets, ids[0], document, 1)
    with pytest.raises(CollectionError, match="questions"):
        sets.add("podcasts", "first", "a.jsonl", json.dumps({"_id": document or " ", "text": "t"}) + "\n")
    assert (folder / "qrels.tsv").read_bytes() == before


@pytest.mark.parametrize(
    "document", ["a b", "query-id", "{}", "<script>", "\u202eid", "a\u2028b", "日本", "0", "'"]
)
@pytest.mark.parametrize("name", ["qrels.tsv", "qrels.trec", "qrels.jsonl"])
def test_ids_that_look_odd_come_back_as_they_are(tmp_path: Path, document: str, name: str) -> None:
    sets = JudgementSets(tmp_path)
    folder = tmp_path / "podcasts" / "first"
    folder.mkdir(parents=True)
    (folder / name).touch()
    questions = [each for each in dict.fromkeys(("query-id", "qid", document)) if not each.startswith("{")]
    lines = [json.dumps({"_id": question, "text": f"text of {question}"}) for question in questions]
    sets.add("podcasts", "first", "a.jsonl", "\n".join(lines))
    for question in questions:
        mark(sets, question, document, 2)
        mark(sets, question, "plain", 1)
    assert read_judgements(folder / name) == {q: {document: 2, "plain": 1} for q in questions}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("a\tb\tc\n", "line 1"),
        ('{"_id": "1"}\n', "line 1"),
        ('{"_id": "1", "text": "a"}\n{"_id": "1", "text": "b"}\n', "twice"),
        ('{"text": "\\ud800"}\n', "Unicode"),
        ('{"_id": "1", "text": "\\ud800"}\n', "Unicode"),
        ('{"_id": "1", "vector": [1, 2]}\n', "needs a text"),
        (json.dumps({"text": "x" * (MAX_CHARS + 1)}) + "\n", "needs a text"),
    ],
)
def test_wrong_questions_are_refused_and_nothing_is_added(
    sets: JudgementSets, ids: list[str], text: str, message: str
) -> None:
    file = "../../questions.tsv" if "\t" in text else "questions.jsonl"
    with pytest.raises(CollectionError, match=message) as refusal:
        sets.add("podcasts", "first", file, text)
    assert "/tmp" not in str(refusal.value)
    assert len(sets.contents("podcasts", "first").questions) == len(ids)


@pytest.mark.parametrize("file", ["questions", "questions.parquet", ".txt/", "https://example.org/q", "*"])
def test_files_of_other_types_are_refused(sets: JudgementSets, file: str) -> None:
    with pytest.raises(CollectionError, match="must end with"):
        sets.add("podcasts", "first", file, "question")


@pytest.mark.parametrize("by", ["", " ", "a\nb", "x" * 101, "\x1b[31m"])
def test_names_of_people_can_be_printed(sets: JudgementSets, ids: list[str], by: str) -> None:
    with pytest.raises(CollectionError, match="by"):
        mark(sets, ids[0], "a", 1, by=by)


@pytest.mark.parametrize("level", [-1, 4, True, 1.5, "2"])
def test_levels_are_four(sets: JudgementSets, ids: list[str], level) -> None:
    with pytest.raises(CollectionError, match="level"):
        mark(sets, ids[0], "a", level)


def test_many_writers_lose_nothing(sets: JudgementSets, ids: list[str]) -> None:
    # Each has its own object, as two consoles on one folder have.
    def write(person: int) -> None:
        mine = JudgementSets(sets.folder)
        mine.add("podcasts", "first", "a.txt", f"question of {person}\nof all\n")
        for document in range(8):
            mark(mine, ids[0], f"{person}-{document}", 2, by=f"person {person}")
            mark(mine, ids[1], "same", document % 4, by=f"person {person}")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    marks = told(sets, ids[0])
    assert len(marks) == 32
    assert all(level == 2 for level, _ in marks.values())
    level, standing = told(sets, ids[1])["same"]
    assert sorted(standing) == [(f"person {person}", 3) for person in range(4)]
    assert level == 3
    assert len(sets.contents("podcasts", "first").questions) == 2 + 4 + 1


def test_who_judges_in_a_terminal_keeps_the_file(sets: JudgementSets, folder: Path, ids: list[str]) -> None:
    with (
        JudgementFile(folder / "qrels.tsv"),
        pytest.raises(CollectionError, match="another process is judging"),
    ):
        mark(sets, ids[0], "a", 1)
    assert mark(sets, ids[0], "a", 1).level == 1


KILLED = """
import sys
from pathlib import Path
from scannery.evaluation.judging.sets import JudgementSets
sets = JudgementSets(Path(sys.argv[1]))
(question,) = sets.add("podcasts", "first", "a.txt", "question").ids
for number in range(100_000):
    sets.mark("podcasts", "first", question, f"document-{number % 50}", number % 4, "Ana")
    print(number, flush=True)
"""


@pytest.mark.system
def test_a_killed_process_loses_no_mark_that_it_has_answered(sets: JudgementSets, folder: Path) -> None:
    for count in (3, 61):
        with subprocess.Popen(
            [sys.executable, "-c", KILLED, str(sets.folder)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ,
        ) as process:
            assert process.stdout is not None
            for _ in range(count):
                last = int(process.stdout.readline())
            process.send_signal(signal.SIGKILL)
            last = max([last, *map(int, process.stdout.read().split())])
        (levels,) = read_judgements(folder / "qrels.tsv").values()
        # The next one may be on the disk, too, and not be answered.
        for document in range(min(50, last + 1)):
            number = max(each for each in range(document, last + 1, 50))
            allowed = {number % 4} | ({(last + 1) % 4} if (last + 1) % 50 == document else set())
            assert levels[f"document-{document}"] in allowed
        assert len(read_judgement_lines(folder / "qrels.tsv")) == len(levels)
        for path in folder.glob("*.jsonl"):
            assert all(json.loads(line) for line in path.read_text().splitlines())
