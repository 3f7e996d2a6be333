"""Documents as people have them, a file a record: Markdown, HTML, PDF, DOCX, EPUB and notebooks."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, BinaryIO

from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.errors import MissingPackageError
from scannery.pipelines.sources.documents.document import Document, DocumentError
from scannery.pipelines.sources.documents.docx_files import read_docx
from scannery.pipelines.sources.documents.epub_files import read_epub
from scannery.pipelines.sources.documents.html_pages import read_html
from scannery.pipelines.sources.documents.pdf_files import read_pdf
from scannery.pipelines.sources.documents.text_documents import (
    front_matter,
    has_bad_front_matter,
    markdown_title,
    read_notebook,
)
from scannery.pipelines.sources.locations import open_bytes
from scannery.pipelines.sources.parts import MAX_RECORD_BYTES, DamagedError, Part, Record
from scannery.pipelines.sources.streams import read_whole

__all__ = [
    "FILE_FIELDS",
    "FORMATS",
    "TEXT_SHARE",
    "check_packages",
    "document_record",
    "has_bad_front_matter",
    "markdown_fields",
    "read",
]

FILE_FIELDS = ("id", "path", "name", "folder")
"""Fields of a record that is a file, which tell where it is."""

TEXT_SHARE = {"html": 0.2, "pdf": 0.05, "docx": 0.1, "epub": 0.3, "notebook": 0.3}
"""About how much of a file is its text, for estimates."""

_PACKAGES = {"html": "lxml", "docx": "lxml", "epub": "lxml", "feed": "lxml", "ttml": "lxml", "pdf": "pypdf"}
_FROM_FILE: dict[str, Callable[[BinaryIO], Document]] = {"docx": read_docx, "epub": read_epub}
FORMATS = frozenset({"pdf", "html", "notebook", *_FROM_FILE})


def check_packages(formats: Sequence[str]) -> None:
    """Check that the packages that read these formats are installed.

    Raises:
        MissingPackageError: names the extra to install.

    """
    missing = {
        format: package
        for format in sorted({*formats} & {*_PACKAGES})
        if importlib.util.find_spec(package := _PACKAGES[format]) is None
    }
    if missing:
        needs = ", ".join(f"{format.upper()} needs {package}" for format, package in missing.items())
        raise MissingPackageError(
            f'{needs}: install it with pip install "scannery[documents]"', field="input"
        )


def read(part: Part) -> Iterator[Record | DeadLetter]:
    """Yield the file as one record: `id`, `path`, `name`, `folder`, `text`, and what the document says of itself."""
    try:
        document = _document(part)
        if not document.text.strip():
            raise DocumentError("no_text", "the document has no text")
    except DamagedError as error:
        yield _reject(part, "damaged_file", str(error))
    except DocumentError as error:
        yield _reject(part, error.reason, str(error))
    else:
        yield document_record(part, document.fields())


def document_record(part: Part, fields: dict[str, Any]) -> Record:
    """Return the record of a file; its own names win over those of the document."""
    path = PurePosixPath(part.path)
    folder = "" if path.parent == PurePosixPath(".") else str(path.parent)
    properties = {"id": part.path, "path": part.path, "name": path.name.split(".")[0], "folder": folder}
    return Record({**fields, **properties}, part.source)


def markdown_fields(text: str) -> dict[str, Any]:
    """Return the fields of a Markdown text: those of its front matter, `title` and `text`."""
    fields = front_matter(text)
    title = fields.get("title")
    fields["title"] = str(title) if title not in (None, "") else markdown_title(text)
    return {**fields, "text": text}


def _document(part: Part) -> Document:
    if part.format == "pdf":
        return read_pdf(part.base, part.path)
    if part.format in _FROM_FILE:
        with open_bytes(part.base, part.path) as file:
            return _FROM_FILE[part.format](file)
    data = read_whole(part)
    if len(data) > MAX_RECORD_BYTES:
        raise DocumentError("too_large", f"the file is larger than {MAX_RECORD_BYTES} bytes")
    return read_html(data, part.dialect) if part.format == "html" else read_notebook(data)


def _reject(part: Part, reason: str, message: str) -> DeadLetter:
    return DeadLetter(reason=reason, source=part.source, message=message, id=part.path)
