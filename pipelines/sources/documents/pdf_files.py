"""PDF → text, page by page, in a process that is ended when it takes too long."""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scannery.pipelines.sources.documents.document import Document, DocumentError, with_whole_words
from scannery.pipelines.sources.locations import open_bytes

__all__ = ["read_pdf"]

PAGE_S = 60.0
"""Most seconds for one page, and for opening the file."""
FILE_S = 900.0
"""Most seconds for a file."""
MAX_PDF_BYTES = 512 * 2**20

_PROGRAM_TITLE = re.compile(
    r"untitled|microsoft (?:word|powerpoint|excel) - |.*\.(?:docx?|indd|tex|dvi|qxp)$", re.IGNORECASE
)


def read_pdf(base: str, path: str) -> Document:
    """Return the text of a file, with a form feed between pages.

    Raises:
        OSError: the file cannot be opened.
        DocumentError: it is no PDF, damaged, encrypted, without text (scanned), too large, or takes too long.

    """
    local = Path(base) / path
    if local.exists():
        answer = _checked(local)
    else:
        with tempfile.NamedTemporaryFile(suffix=".pdf") as copy, open_bytes(base, path) as remote:
            shutil.copyfileobj(remote, copy)
            copy.flush()
            answer = _checked(Path(copy.name))
    if "reason" in answer:
        raise DocumentError(answer["reason"], answer["message"])
    if _PROGRAM_TITLE.match(answer.get("title") or ""):
        answer["title"] = None
    return Document(**{**answer, "text": with_whole_words(answer["text"])})


def _checked(path: Path) -> dict[str, Any]:
    if path.stat().st_size > MAX_PDF_BYTES:
        raise DocumentError("too_large", f"the PDF is larger than {MAX_PDF_BYTES >> 20} MiB")
    return _PROCESS.ask(str(path))


class _Process:
    """The process that reads PDF files, started when it is needed. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def ask(self, path: str) -> dict[str, Any]:
        """Return the answer for a file."""
        with self._lock:
            child = self._running()
            assert child.stdin is not None
            try:
                child.stdin.write(json.dumps(path).encode() + b"\n")
                child.stdin.flush()
                for answer in _answers(child):
                    if "page" not in answer:
                        return answer
            except BrokenPipeError:
                pass
            except TimeoutError as error:
                self.stop()
                raise DocumentError("too_slow", str(error)) from error
            self.stop()
            raise DocumentError("damaged_file", "the PDF ended the process that read it")

    def stop(self) -> None:
        """End the process."""
        child, self._child = self._child, None
        if child is not None and self._owner == os.getpid():
            child.kill()
            child.communicate()

    def _running(self) -> subprocess.Popen[bytes]:
        # After a fork, the process is that of the parent.
        if self._child is None or self._owner != os.getpid():
            command = [sys.executable, str(Path(__file__).with_name("pdf_process.py"))]
            self._child = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )  # fmt: skip
            self._owner = os.getpid()
        return self._child


def _answers(child: subprocess.Popen[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the lines of an answer; they end early if the process ends. TimeoutError if it takes too long."""
    assert child.stdout is not None
    output = child.stdout.fileno()
    pieces: list[bytes] = []
    until = time.monotonic() + FILE_S
    while True:
        wait_s = min(PAGE_S, until - time.monotonic())
        if wait_s <= 0 or not select.select([output], [], [], wait_s)[0]:
            what = (
                f"a page takes more than {PAGE_S:g} s" if wait_s > 0 else f"it takes more than {FILE_S:g} s"
            )
            raise TimeoutError(f"the PDF was not read to its end: {what}")
        data = os.read(output, 1 << 20)
        if not data:
            return
        first, *more = data.split(b"\n")
        pieces.append(first)
        for line in more:
            yield json.loads(b"".join(pieces))
            pieces = [line]


_PROCESS = _Process()
atexit.register(_PROCESS.stop)
