"""Read test collections: queries, and relevance judgements in the formats of BEIR and TREC.

Queries are read by query_files.py; one without an id gets a hash of its text, so it stays when lines move.

Judgements, by their content:

    query-id  corpus-id  score          BEIR; the header may be missing
    query     0  document  level        TREC
    {"query-id": …, "corpus-id": …, "score": …}     JSON lines; also `query_id`, `document_id`, `relevance`

Columns are separated by tabs, or by blanks.

A file of judgements that grows while people judge: every line is synced at once, and the last can be undone.

The format is that of the lines it has; a new file gets it from its name: `.jsonl` JSON lines, `.trec` and `.qrels`
TREC's, others BEIR's table with a header.

A test collection without judgements: each query is taken from a stored document, which it should find.

It shows whether search works at all, and gives queries to begin judging with. It does not show which mode is better,
since lexical search finds a text by its own words. nDCG@10 on Cranfield: people's queries 0.38 dense, 0.37 lexical,
0.42 hybrid; titles 0.94, 0.99, 0.98; sentences 0.70, 0.99, 0.96.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from typing_extensions import Self

from scannery.indexer.store.folder_backend import sync_folder
from scannery.pipelines.errors import CollectionError, InputNotFoundError
from scannery.pipelines.sources.query_files import Query, query_records

__all__ = [
    "PASSAGES_PER_QUERY",
    "DerivedQuery",
    "Judgement",
    "JudgementFile",
    "Judgements",
    "Query",
    "Source",
    "derive_queries",
    "judgements_of",
    "judgements_so_far",
    "query_id_of",
    "read_judgement_lines",
    "read_judgements",
    "read_queries",
    "read_recall_queries",
]


Judgements = dict[str, dict[str, int]]
"""Query id → document id → level of relevance; 0: not relevant."""

_QUERY_KEYS = ("query-id", "query_id", "qid", "query")
_DOCUMENT_KEYS = ("corpus-id", "corpus_id", "document_id", "doc_id", "docid", "id")
_LEVEL_KEYS = ("score", "relevance", "level", "rel", "label")


class Judgement(NamedTuple):
    """One line of a file of judgements."""

    query_id: str
    document_id: str
    level: int


def read_queries(path: str | Path) -> dict[str, Query]:
    """Return the queries of a file by id.

    Raises:
        InputNotFoundError: there is no such file, or it cannot be read.
        CollectionError: a line has another form, or an id occurs twice; the message names the line.

    """
    queries: dict[str, Query] = {}
    hashed: set[str] = set()
    for location, explicit_id, query, _ in query_records(path):
        if explicit_id is None and query.text is None:
            raise _wrong("queries", location, "needs `_id`, a string, where there is no text")
        identifier = query_id_of(f"{query}") if explicit_id is None else explicit_id
        # A search log repeats its queries; those with equal texts have one id, and are one query.
        if explicit_id is None and identifier in hashed:
            continue
        if identifier in queries:
            raise _wrong("queries", location, f"the id {identifier!r} occurs twice")
        queries[identifier] = query
        hashed |= {identifier} if explicit_id is None else set()
    if not queries:
        raise CollectionError(f"queries: {path} is empty", field="queries")
    return queries


def query_id_of(text: str) -> str:
    """Return an id for a query that has none: a hash of its text."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _first(record: Mapping[str, Any], *names: str) -> Any:
    return next((record[name] for name in names if record.get(name) is not None), None)


def read_recall_queries(path: str | Path) -> list[str | np.ndarray]:
    """Return queries to measure recall with: the vector of each, or its text.

    Raises:
        InputNotFoundError, CollectionError: as `read_queries`.

    """
    records = [record.query for record in query_records(path)]
    queries = [record.vector if record.vector is not None else record.text or "" for record in records]
    if not queries:
        raise CollectionError(f"queries: {path} is empty", field="queries")
    return queries


def read_judgements(path: str | Path) -> Judgements:
    """Return the judgements of a file. If a pair occurs in several lines, the last one counts.

    Raises:
        InputNotFoundError, CollectionError: as `read_judgement_lines`.

    """
    return judgements_of(read_judgement_lines(path))


def judgements_of(lines: Iterable[Judgement]) -> Judgements:
    """Return judgements by query and document; the last one of a pair counts."""
    judgements: Judgements = {}
    for query_id, document_id, level in lines:
        judgements.setdefault(query_id, {})[document_id] = level
    return judgements


def read_judgement_lines(path: str | Path) -> list[Judgement]:
    """Return the judgements of a file, in its order.

    Raises:
        InputNotFoundError: there is no such file, or it cannot be read.
        CollectionError: the file has no judgements, or a line has none of the forms; the message names the line.

    """
    judgements = [
        judgement
        for _, judgement in _parsed_lines(_lines(Path(path), "qrels"))
        if isinstance(judgement, Judgement)
    ]
    if not judgements:
        raise CollectionError(f"qrels: {path} has no judgements", field="qrels")
    return judgements


def judgements_so_far(path: str | Path) -> Judgements:
    """Return the judgements of a file that may be added to meanwhile: none if it does not exist or is empty.

    A last line without its line feed is unfinished, and does not count.

    Raises:
        InputNotFoundError, CollectionError: as `read_judgement_lines`.

    """
    if not Path(path).exists():
        return {}
    lines = _lines(Path(path), "qrels", finished=True)
    return judgements_of(
        judgement for _, judgement in _parsed_lines(lines) if isinstance(judgement, Judgement)
    )


def _parsed_lines(lines: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Judgement | None]]:
    """Yield each line with its judgement; a header has none."""
    begun = False
    for location, line in lines:
        judgement = None if not begun and _is_header(line) else _parsed(location, line)
        begun = begun or judgement is not None
        yield line, judgement


def _is_header(line: str) -> bool:
    cells = _cells(line)
    # A query may have the name of a column.
    return cells[0].lower() in _QUERY_KEYS and not cells[-1].lstrip("-").isdecimal()


def _parsed(location: str, line: str) -> Judgement:
    if line.lstrip().startswith("{"):
        return _judgement_in_json(location, line)
    cells = _cells(line)
    if len(cells) not in (3, 4):
        raise _wrong("qrels", location, f"must have 3 or 4 columns, got {len(cells)}")
    return Judgement(cells[0], cells[-2], _level(location, cells[-1]))


def _judgement_in_json(location: str, line: str) -> Judgement:
    record = _object("qrels", location, line)
    values = []
    for keys in (_QUERY_KEYS, _DOCUMENT_KEYS, _LEVEL_KEYS):
        value = _first(record, *keys)
        if value is None:
            raise _wrong("qrels", location, f"needs one of {', '.join(keys)}")
        values.append(str(value))
    return Judgement(values[0], values[1], _level(location, values[2]))


def _level(location: str, text: str) -> int:
    try:
        number = float(text)
        if number == int(number):
            return int(number)
    except (ValueError, OverflowError):
        pass
    raise _wrong("qrels", location, f"the score must be an integer, got {text!r:.80}")


def _object(field: str, location: str, line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise _wrong(field, location, f"is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise _wrong(field, location, f"must be a JSON object, got {type(record).__name__}")
    return record


def _lines(path: Path, field: str, *, finished: bool = False) -> list[tuple[str, str]]:
    """Return the lines that are not blank, with their places; `finished`: those with a line feed."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CollectionError(f"{field}: {path} is not UTF-8", field=field) from error
    except OSError as error:
        raise InputNotFoundError(f"{field}: cannot read {path}: {error.strerror}", field=field) from error
    lines = enumerate(text.split("\n")[: -1 if finished else None], 1)
    return [(f"{path}, line {number}", line) for number, line in lines if line.strip()]


def _wrong(field: str, location: str, what: str) -> CollectionError:
    return CollectionError(f"{field}: {location}: {what}", field=field)


Format = Literal["beir", "trec", "jsonl"]
_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".trec": "trec", ".qrels": "trec"}
_COLUMNS = {"beir": 3, "trec": 4}
_HEADER = "query-id\tcorpus-id\tscore\n"
LOCK_TRY_S = 0.01
"""Seconds between two tries for a lock: the system's own waiting has no deadline."""


class JudgementFile:
    """Judgements of a file, old and new. A context manager: leaving it closes the file.

    Another process that opens the same file for judging is refused.

    Args:
        path: created if it does not exist.
        wait_s: how long to wait for another process that judges into it.

    Attributes:
        judgements: all of them by query and document.
        repaired: whether the end of the file was an unfinished line, which was removed.

    Raises:
        CollectionError: the file has other content, or another process judges into it.
        OSError: it cannot be written.

    """

    def __init__(self, path: str | Path, *, wait_s: float = 0.0) -> None:
        self.path = Path(path)
        self._file = _opened(self.path, wait_s)
        try:
            self._format = self._found_format()
            self.repaired = self._repair()
            self.judgements: Judgements = judgements_of(self._read())
            self._added: list[tuple[int, Judgement, int | None]] = []
            # Without it a new file may be missing after a power loss, with all of its synced lines.
            sync_folder(self.path.parent)
        except BaseException:
            os.close(self._file)
            raise

    def add(self, query_id: str, document_id: str, level: int) -> None:
        """Append a judgement; it is on the disk when this returns.

        Raises:
            CollectionError: the format cannot hold the id.
            OSError: the disk is full, or the like; the judgement does not count.

        """
        judgement = Judgement(query_id, document_id, level)
        before = self.judgements.get(query_id, {}).get(document_id)
        end = os.lseek(self._file, 0, os.SEEK_END)
        line = self._line(judgement)
        try:
            _write_all(self._file, (line if end or self._format != "beir" else _HEADER + line).encode())
            os.fsync(self._file)
        except OSError:
            os.ftruncate(self._file, end)
            raise
        self.judgements.setdefault(query_id, {})[document_id] = level
        self._added.append((end, judgement, before))

    def replace(self, query_id: str, document_id: str, level: int | None) -> None:
        """Give a pair one line with this level; None: no line. It is on the disk when this returns.

        Another file takes the name, so that readers see all of the former or all of the new one; `undo` reaches back to
        this.

        Raises:
            CollectionError, OSError: as `add`.

        """
        if document_id not in self.judgements.get(query_id, {}):
            if level is not None:
                self.add(query_id, document_id, level)
            return
        pair = (query_id, document_id)
        lines = [
            f"{line}\n"
            for line, judgement in _parsed_lines(_lines(self.path, "output"))
            if judgement is None or judgement[:2] != pair
        ]
        if level is not None:
            lines.append(self._line(Judgement(query_id, document_id, level)))
        path = self.path.resolve()
        new_path = path.with_name(f".{path.name}.new")
        new = os.open(new_path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o666)
        try:
            # Whoever waits for the former file finds this one locked, too.
            fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.fchmod(new, os.fstat(self._file).st_mode & 0o777)
            _write_all(new, "".join(lines).encode())
            os.fsync(new)
            new_path.replace(path)
        except BaseException:
            os.close(new)
            raise
        sync_folder(path.parent)
        os.close(self._file)
        self._file = new
        self._added.clear()
        if level is None:
            del self.judgements[query_id][document_id]
        else:
            self.judgements[query_id][document_id] = level

    def undo(self) -> Judgement | None:
        """Take back the last judgement that was added since the file was opened; None if there is none."""
        if not self._added:
            return None
        end, judgement, before = self._added.pop()
        os.ftruncate(self._file, end)
        os.fsync(self._file)
        levels = self.judgements[judgement.query_id]
        if before is None:
            del levels[judgement.document_id]
        else:
            levels[judgement.document_id] = before
        return judgement

    def close(self) -> None:
        """Close the file, and let other processes judge."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _repair(self) -> bool:
        """Complete or remove a last line without its line feed: a write was interrupted, or an editor left it out."""
        data = self.path.read_bytes()
        if not data or data.endswith(b"\n"):
            return False
        start = data.rfind(b"\n") + 1
        last = data[start:].decode(errors="replace")
        if self._is_whole(last):
            os.lseek(self._file, 0, os.SEEK_END)
            _write_all(self._file, b"\n")
            return False
        self._check_own(data[:start], last)
        os.ftruncate(self._file, start)
        return True

    def _check_own(self, before: bytes, last: str) -> None:
        """Raise CollectionError unless an unfinished line is one of judgements: other files must not be cut."""
        is_own = True
        if not before.strip():
            begins = [_HEADER, '{"query-id": ']
            # A line of TREC begins with an id; then the name of the file tells.
            is_own = self._format == "trec" or any(
                begin.startswith(last) or last.startswith(begin) for begin in begins
            )
        elif before != _HEADER.encode():
            with tempfile.NamedTemporaryFile() as lines:
                lines.write(before)
                lines.flush()
                try:
                    read_judgement_lines(lines.name)
                except CollectionError:
                    is_own = False
        if not is_own:
            raise CollectionError(f"output: {self.path} has other content than judgements", field="output")

    def _is_whole(self, line: str) -> bool:
        if self._format == "jsonl":
            return line.rstrip().endswith("}")
        cells = _cells(line)
        # A part of a TREC line can look like a line of BEIR's, so the number of columns must be that of the format.
        return len(cells) == _COLUMNS[self._format] and cells[-1].lstrip("-").isdecimal()

    def _read(self) -> list[Judgement]:
        data = self.path.read_bytes()
        # A file with nothing but a header is a new one.
        if not data.strip() or data == _HEADER.encode():
            return []
        return read_judgement_lines(self.path)

    def _found_format(self) -> Format:
        with self.path.open(encoding="utf-8-sig", errors="replace") as file:
            line = next((line for line in file if line.strip() and line.endswith("\n")), None)
        if line is None:
            return _FORMATS.get(self.path.suffix, "beir")
        if line.lstrip().startswith("{"):
            return "jsonl"
        return "trec" if len(_cells(line)) == 4 else "beir"

    def _line(self, judgement: Judgement) -> str:
        query_id, document_id, level = judgement
        if self._format == "jsonl":
            record = {"query-id": query_id, "corpus-id": document_id, "score": level}
            return json.dumps(record, ensure_ascii=False) + "\n"
        # Readers cut blanks off, and take a line that begins with a brace for JSON.
        names = [name for name in (query_id, document_id) if _is_odd(name)]
        names += [query_id] if query_id.startswith("{") else []
        if names:
            raise CollectionError(
                f"output: {self.path} cannot hold the id {names[0]!r:.80}; a name that ends with .jsonl can",
                field="output",
            )
        middle = ("0", document_id) if self._format == "trec" else (document_id,)
        return "\t".join((query_id, *middle, str(level))) + "\n"


def _is_odd(name: str) -> bool:
    return not name or name != name.strip() or any(char in name for char in "\t\r\n\ufeff")


def _opened(path: Path, wait_s: float) -> int:
    """Return the file, locked for this process."""
    until_s = time.monotonic() + wait_s
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have given the name to another file since it was opened.
            if os.path.samestat(os.fstat(file), path.stat()):
                return file
        except FileNotFoundError:
            pass
        except BlockingIOError as error:
            if time.monotonic() >= until_s:
                os.close(file)
                raise CollectionError(
                    f"output: another process is judging into {path}", field="output"
                ) from error
            time.sleep(LOCK_TRY_S)
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _cells(line: str) -> list[str]:
    cells = line.split("\t") if line.count("\t") >= 2 else line.split()
    return [cell.strip() for cell in cells]


Source = Literal["title", "sentence"]

PASSAGES_PER_QUERY = 8
"""Passages to draw for each query: some have no text, and a document gives one query, however many it has."""
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+|(?<=[。！？])|\n{2,}")
_SHORTEST, _LONGEST = 20, 300
"""Characters of a sentence."""


class Passage(Protocol):
    """The part of a datapoint that is needed here."""

    @property
    def id(self) -> str: ...
    @property
    def document_id(self) -> str: ...
    @property
    def title(self) -> str | None: ...
    @property
    def text(self) -> str | None: ...


@dataclass(frozen=True, kw_only=True)
class DerivedQuery:
    """A query, and what it is taken from."""

    query_id: str
    text: str
    passage_id: str
    document_id: str
    source: Source


def derive_queries(passages: Iterable[Passage], *, count: int, seed: int = 0) -> list[DerivedQuery]:
    """Return at most `count` queries, each from another document: all of titles if most have one, else of sentences.

    A title that several of the documents have is no query, since it would not name one of them.

    Args:
        passages: drawn from the index at random, PASSAGES_PER_QUERY for each query.
        count: queries wanted.
        seed: the same one and the same passages give the same queries.

    Raises:
        CollectionError: the passages have no texts.

    """
    picker = random.Random(seed)
    by_document: dict[str, Passage] = {}
    for passage in passages:
        if passage.text and passage.text.strip():
            by_document.setdefault(passage.document_id, passage)
    # Passages may come in the order of the index.
    drawn = picker.sample([*by_document.values()], min(count, len(by_document)))
    titles = Counter(_title(passage) for passage in drawn)
    distinct = {title for title, times in titles.items() if times == 1 and title}
    source: Source = "title" if 2 * len(distinct) >= len(drawn) > 0 else "sentence"
    queries: dict[str, DerivedQuery] = {}
    for passage in drawn:
        text = _title(passage) if source == "title" else _sentence(passage.text or "", picker)
        if text and (source == "sentence" or text in distinct):
            query = DerivedQuery(
                query_id=query_id_of(text),
                text=text,
                passage_id=passage.id,
                document_id=passage.document_id,
                source=source,
            )
            queries.setdefault(query.query_id, query)
    if not queries:
        raise CollectionError("derive: the index has no texts to take queries from", field="derive")
    return list(queries.values())


def _title(passage: Passage) -> str:
    return " ".join((passage.title or "").split())


def _sentence(text: str, picker: random.Random) -> str:
    parts = [" ".join(part.split())[:_LONGEST] for part in _SENTENCE_END.split(text)]
    sentences = [part for part in parts if len(part) >= _SHORTEST]
    return picker.choice(sentences) if sentences else " ".join(text.split())[:_LONGEST]
