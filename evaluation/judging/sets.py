"""The folder of judgement sets.

    FOLDER/INDEX/SET/queries.jsonl    questions, `{"_id": …, "text": …}`
    FOLDER/INDEX/SET/qrels.tsv        judgements, a line for each pair; or qrels.trec or qrels.jsonl, if that exists
    FOLDER/INDEX/SET/marks.jsonl      who marked what and when (`marks`)

The first two are what `scannery evaluate`, `train` and `judge` read, and the truth: what is changed in them by hand, or
by `scannery judge`, counts. A mark is in the judgements before it is among the marks, so an interruption loses at most
who made it.
"""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scannery.evaluation.judgements import JudgementFile, judgements_so_far, read_queries
from scannery.evaluation.judging.growing_files import growing_file
from scannery.evaluation.judging.marks import Mark, PairMarks, marks_of, read_marks
from scannery.evaluation.judging.measured import Measured, measured
from scannery.indexer.spec.model import INDEX_NAME
from scannery.pipelines.errors import CollectionError

__all__ = ["Added", "Contents", "Dispute", "JudgementSets", "Question", "SetSummary"]

LEVELS = range(4)
MAX_QUESTIONS = 10_000
MAX_CHARS = 8000
"""Characters of a question."""
MAX_ID_BYTES = 512
MAX_NAME_CHARS = 100
MAX_DISPUTES = 200
WAIT_S = 2.0
"""Wait for another process that judges into the same file."""
QRELS = ("qrels.tsv", "qrels.trec", "qrels.jsonl")
TYPES = (".txt", ".tsv", ".csv", ".jsonl", ".json")


@dataclass(frozen=True, kw_only=True)
class SetSummary:
    """A set in the list of sets."""

    name: str
    questions: int
    judged: int
    """Number of questions with a judgement."""
    judgements: int
    problem: str
    """Message if its files cannot be read; else empty."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question of a set."""

    id: str
    text: str
    judged: int
    """Number of its judgements."""
    relevant: int
    """Number of those with a level above 0."""


@dataclass(frozen=True, kw_only=True)
class Dispute:
    """A pair on which people disagree."""

    question: str
    """Id of the question."""
    document: str
    marks: Sequence[Mark]
    """Last mark of each person."""


@dataclass(frozen=True, kw_only=True)
class Contents:
    """A set."""

    queries: str
    """File with the questions."""
    qrels: str
    """File with the judgements."""
    questions: Sequence[Question]
    shared: int
    """Number of pairs with marks of several people."""
    disputes: Sequence[Dispute]
    """Pairs on which they differ, at most MAX_DISPUTES."""
    warnings: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class Added:
    """Questions that were added."""

    ids: Sequence[str]
    """Ids of the questions, new or not, in their order."""
    new: int
    """Number of those that the set did not have."""


class JudgementSets:
    """Sets of questions and judgements in a folder. Several processes, and threads, may use it at once.

    A set is made when something is added to it; before, it is empty.

    Args:
        folder: made with its first set.
        now: clock of the marks.

    """

    def __init__(
        self, folder: Path, now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.timezone.utc)
    ) -> None:
        self.folder = folder.absolute()
        self._now = now

    def sets(self, index: str) -> list[SetSummary]:
        """Return the sets of an index by name. Raises CollectionError: the name can be none."""
        folder = self.folder / _checked("index", index)
        names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        return [
            self._summary(index, name)
            for name in names
            if INDEX_NAME.fullmatch(name) and any((folder / name).glob("q*"))
        ]

    def contents(self, index: str, name: str) -> Contents:
        """Return a set.

        Raises:
            CollectionError: the name can be none, or a file has other content; the message names the line.

        """
        files = self._files(index, name)
        texts, judgements = _texts(files.queries), judgements_so_far(files.qrels)
        pairs, wrong = read_marks(files.marks)
        marked = {
            pair: PairMarks(level=judgements.get(pair[0], {}).get(pair[1]), marks=_last(history))
            for pair, history in pairs.items()
            if pair[0] in texts
        }
        unasked = sum(name not in texts for name in judgements)
        warnings = [f"{wrong:,} lines of {files.marks} are no marks, and are left out"] if wrong else []
        if unasked:
            warnings.append(f"{unasked:,} judged questions are not in {files.queries}")
        disputes = [
            Dispute(question=pair[0], document=pair[1], marks=marks.marks)
            for pair, marks in marked.items()
            if marks.differ
        ]
        return Contents(
            queries=str(files.queries),
            qrels=str(files.qrels),
            questions=[
                Question(
                    id=each,
                    text=text,
                    judged=len(levels := judgements.get(each, {})),
                    relevant=sum(level > 0 for level in levels.values()),
                )
                for each, text in texts.items()
            ],
            shared=sum(len(marks.marks) > 1 for marks in marked.values()),
            disputes=disputes[:MAX_DISPUTES],
            warnings=warnings,
        )

    def marks(self, index: str, name: str, question: str) -> dict[str, PairMarks]:
        """Return what people say of the documents of a question, by document; of one that is not in the set: nothing.

        Raises:
            CollectionError: as `contents`.

        """
        files = self._files(index, name)
        levels = judgements_so_far(files.qrels).get(question, {})
        pairs, _ = read_marks(files.marks)
        documents = {**levels, **{pair[1]: None for pair in pairs if pair[0] == question}}
        return {
            document: PairMarks(level=levels.get(document), marks=_last(pairs.get((question, document), ())))
            for document in documents
        }

    def question_of(self, index: str, name: str, text: str) -> str:
        """Return the id of the question with this text; empty: the set does not have it. Raises as `contents`."""
        texts = _texts(self._files(index, name).queries)
        return next((each for each, question in texts.items() if question == text.strip()), "")

    def add(self, index: str, name: str, file: str, text: str) -> Added:
        """Add questions, those that the set does not have.

        Args:
            index: name of the index.
            name: name of the set, which is made if it does not exist.
            file: name of a file of queries, by whose ending the text is read: a `.txt` has a question in each line.
            text: content of the file.

        Raises:
            CollectionError: a line is no question, an id has another text in the set, or there would be too many; the
                message names the line. Nothing is added then.
            OSError: the folder cannot be written.

        """
        files = self._files(index, name)
        questions = _read_text(file, text)
        files.queries.parent.mkdir(parents=True, exist_ok=True)
        with growing_file(files.queries, "_id") as growing:
            texts = _read_texts(files.queries)
            ids = {each: identifier for identifier, each in reversed(texts.items())}
            new: dict[str, str] = {}
            for identifier, each in questions.items():
                # A question has one id, whatever file it comes from.
                if each in ids:
                    continue
                if identifier in texts:
                    raise CollectionError(
                        f"questions: the id {identifier!r:.80} is that of another question, {texts[identifier]!r:.80}",
                        field="questions",
                    )
                new[identifier] = each
                ids[each] = identifier
            if len(texts) + len(new) > MAX_QUESTIONS:
                raise CollectionError(f"questions: a set has at most {MAX_QUESTIONS:,}", field="questions")
            growing.add([{"_id": identifier, "text": each} for identifier, each in new.items()])
        return Added(ids=[ids[each] for each in questions.values()], new=len(new))

    def mark(
        self, index: str, name: str, question: str, document: str, level: int | None, by: str
    ) -> PairMarks:
        """Mark a document for a question, and return what people say of the two; it is on the disk then.

        Args:
            index: name of the index.
            name: name of the set.
            question: id of the question, which the set has.
            document: id of the document.
            level: 0 not relevant, 1 related, 2 relevant, 3 perfect; None: takes back the last mark of this person.
            by: name of the person.

        Raises:
            CollectionError: a value cannot be, or another process judges into the file.
            OSError: the folder cannot be written.

        """
        files = self._files(index, name)
        by = _checked_person(by)
        if level is not None and (type(level) is not int or level not in LEVELS):
            raise CollectionError(f"level: must be 0 to 3, or null, got {level!r:.20}", field="level")
        _checked_id("document", document)
        if question not in _texts(files.queries):
            raise CollectionError(f"question: the set has no question {question!r:.80}", field="question")
        pair = question, document
        at = self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        with (
            JudgementFile(files.qrels, wait_s=WAIT_S) as judgements,
            growing_file(files.marks, "query-id") as growing,
        ):
            history = read_marks(files.marks)[0].get(pair, [])
            new = []
            standing = marks_of(history)
            counting = judgements.judgements.get(question, {}).get(document)
            if counting != (standing[-1].level if standing else None):
                new.append(Mark(level=counting, by="", at=at))
            if level is not None or any(each.by == by for each in standing):
                new.append(Mark(level=level, by=by, at=at))
            standing = marks_of([*history, *new])
            judgements.replace(question, document, standing[-1].level if standing else None)
            growing.add([mark.record(pair) for mark in new])
        return PairMarks(level=standing[-1].level if standing else None, marks=_last([*history, *new]))

    def measure(self, index: str, name: str, rankings: Mapping[str, Mapping[str, Sequence[str]]]) -> Measured:
        """Return how well searches answer the questions that have a relevant document.

        Args:
            index: name of the index.
            name: name of the set.
            rankings: by column and by question: the documents, best first, at most `measured.DEPTH`. Questions that a
                column lacks are left out.

        Raises:
            CollectionError: as `contents`; or no question has a relevant document.
            MissingPackageError: `ir_measures` is not installed.

        """
        files = self._files(index, name)
        return measured(_texts(files.queries), judgements_so_far(files.qrels), rankings)

    def _summary(self, index: str, name: str) -> SetSummary:
        files = self._files(index, name)
        texts: dict[str, str] = {}
        try:
            texts, judgements, problem = _texts(files.queries), judgements_so_far(files.qrels), ""
        except (CollectionError, LookupError) as error:
            judgements, problem = {}, str(error)
        levels = [judgements.get(each, {}) for each in texts]
        return SetSummary(
            name=name,
            questions=len(texts),
            judged=sum(map(bool, levels)),
            judgements=sum(map(len, levels)),
            problem=problem,
        )

    def _files(self, index: str, name: str) -> _Files:
        folder = self.folder / _checked("index", index) / _checked("set", name)
        qrels = next((path for path in map(folder.joinpath, QRELS) if path.exists()), folder / QRELS[0])
        return _Files(queries=folder / "queries.jsonl", qrels=qrels, marks=folder / "marks.jsonl")


@dataclass(frozen=True, kw_only=True)
class _Files:
    queries: Path
    qrels: Path
    marks: Path


def _last(history: Sequence[Mark]) -> list[Mark]:
    """Return the last standing mark of each person, the newest last."""
    last: dict[str, Mark] = {}
    for mark in marks_of(history):
        last.pop(mark.by, None)
        last[mark.by] = mark
    return list(last.values())


def _texts(path: Path) -> dict[str, str]:
    """Return the questions of a file by id, without an unfinished line at its end, which is removed."""
    if not path.exists():
        return {}
    # Readers refuse a file that grows meanwhile.
    with growing_file(path, "_id"):
        return _read_texts(path)


def _read_texts(path: Path) -> dict[str, str]:
    """Return the questions of a file by id; those with a vector alone cannot be read by people, and are left out."""
    if not path.read_bytes().strip():
        return {}
    return {name: query.text for name, query in read_queries(path).items() if query.text is not None}


def _read_text(file: str, text: str) -> dict[str, str]:
    suffix = Path(file).suffix.lower()
    if suffix not in TYPES:
        raise CollectionError(
            f"file: must end with one of {', '.join(TYPES)}, got {file!r:.80}", field="file"
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"questions{suffix}"
        try:
            path.write_text(text, encoding="utf-8", newline="")
            queries = read_queries(path)
        except UnicodeEncodeError as error:
            raise CollectionError("text: is no Unicode", field="text") from error
        except CollectionError as error:
            raise CollectionError(str(error).replace(str(path), file), field="questions") from error
    questions = {}
    for identifier, query in queries.items():
        if query.text is None or len(query.text) > MAX_CHARS:
            raise CollectionError(
                f"questions: {identifier!r:.80}: needs a text of at most {MAX_CHARS:,} characters",
                field="questions",
            )
        questions[_checked_id("questions", identifier)] = query.text
    return questions


def _checked(field: str, name: str) -> str:
    # Names are folders.
    if not INDEX_NAME.fullmatch(name):
        raise CollectionError(f"{field}: must match {INDEX_NAME.pattern}, got {name!r:.80}", field=field)
    return name


def _checked_id(field: str, identifier: str) -> str:
    is_possible = (
        0 < len(identifier.encode(errors="replace")) <= MAX_ID_BYTES
        and identifier == identifier.strip()
        and all(char >= " " and char != "\ufeff" and not "\ud800" <= char <= "\udfff" for char in identifier)
        and not (field == "questions" and identifier.startswith("{"))
    )
    if not is_possible:
        raise CollectionError(
            f"{field}: an id has 1 to {MAX_ID_BYTES} bytes, no control characters and no blanks at its ends, "
            f"got {identifier!r:.80}",
            field=field,
        )
    return identifier


def _checked_person(name: str) -> str:
    name = name.strip()
    if not name or len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise CollectionError(
            f"by: a name has 1 to {MAX_NAME_CHARS} characters that can be printed, got {name!r:.80}",
            field="by",
        )
    return name
