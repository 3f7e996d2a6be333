"""A file of judgements that grows while a person judges: every line is synced at once, and the last can be undone.

The format is that of the lines it has; a new file gets it from its name: `.jsonl` JSON lines, `.trec` and `.qrels`
TREC's, others BEIR's table with a header.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Literal

from typing_extensions import Self

from scannery.indexer.store.folder_backend import sync_folder
from scannery.pipelines.errors import CollectionError
from scannery.pipelines.evaluation.judgements import (
    Judgement,
    Judgements,
    judgements_of,
    read_judgement_lines,
)

__all__ = ["JudgementFile"]

Format = Literal["beir", "trec", "jsonl"]
_FORMATS: dict[str, Format] = {".jsonl": "jsonl", ".trec": "trec", ".qrels": "trec"}
_COLUMNS = {"beir": 3, "trec": 4}
_HEADER = "query-id\tcorpus-id\tscore\n"


class JudgementFile:
    """Judgements of a file, old and new. A context manager: leaving it closes the file.

    Another process that opens the same file for judging is refused.

    Args:
        path: created if it does not exist.

    Attributes:
        judgements: all of them by query and document.
        repaired: whether the end of the file was an unfinished line, which was removed.

    Raises:
        CollectionError: the file has other content, or another process judges into it.
        OSError: it cannot be written.

    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._lock()
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

    def _lock(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise CollectionError(
                f"output: another process is judging into {self.path}", field="output"
            ) from error

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
                one.startswith(last) or last.startswith(one) for one in begins
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
        for name in (query_id, document_id):
            if not name.strip() or any(char in name for char in "\t\r\n"):
                raise CollectionError(
                    f"output: {self.path} cannot hold the id {name!r:.80}; a name that ends with .jsonl can",
                    field="output",
                )
        middle = ("0", document_id) if self._format == "trec" else (document_id,)
        return "\t".join((query_id, *middle, str(level))) + "\n"


def _write_all(file: int, data: bytes) -> None:
    while data:
        data = data[os.write(file, data) :]


def _cells(line: str) -> list[str]:
    return line.strip().split("\t") if line.count("\t") >= 2 else line.split()
