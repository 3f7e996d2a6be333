"""Reads PDF files, as a process of its own, which has a limit of memory and can be ended at any time.

Run as a script, so that it imports the PDF library and nothing else. Each line of its input is a JSON string, the path
of a file; for each it writes lines of JSON: `{"page": n}` after each page, and at the end the fields of the document
(`{"text": …}`), or `{"reason": …, "message": …}`.
"""

from __future__ import annotations

import json
import logging
import resource
import sys
from typing import Any

MEMORY_BYTES = 4 << 30
MAX_CHARS = 16 * 2**20
MAX_PAGES = 50_000
PAGE_BREAK = "\n\n\f"


class _RefusedError(Exception):
    pass


def read(path: str) -> dict[str, Any]:
    """Return what a file holds, or why it cannot be read."""
    from pypdf import PdfReader
    from pypdf.errors import PyPdfError

    try:
        reader = PdfReader(path)
        if reader.is_encrypted and not reader.decrypt(""):
            return {"reason": "encrypted", "message": "the PDF is encrypted; save it without a password"}
        return _content(reader)
    except _RefusedError as error:
        return {"reason": "too_large", "message": str(error)}
    except MemoryError:
        return {
            "reason": "too_large",
            "message": f"the PDF needs more than {MEMORY_BYTES >> 30} GiB of memory",
        }
    except (PyPdfError, RecursionError) as error:
        return {"reason": "damaged_file", "message": f"not a PDF that can be read: {error!s:.300}"}
    except Exception as error:  # noqa: BLE001 -- a damaged file raises anything
        return {"reason": "damaged_file", "message": f"not a PDF that can be read: {error!r:.300}"}


def _content(reader: Any) -> dict[str, Any]:
    count = len(reader.pages)
    if count > MAX_PAGES:
        raise _RefusedError(f"the PDF has more than {MAX_PAGES} pages")
    pages: list[str] = []
    size = 0
    for number, page in enumerate(reader.pages, 1):
        pages.append(_clean(page.extract_text()))
        size += len(pages[-1])
        if size > MAX_CHARS:
            raise _RefusedError(f"the text is longer than {MAX_CHARS} characters")
        write({"page": number})
    if not any(pages):
        message = (
            f"the PDF has no text on its {count} page(s): it may be scanned; recognise the text first (OCR)"
        )
        return {"reason": "no_text", "message": message}
    return {"text": PAGE_BREAK.join(pages), "pages": count, **_metadata(reader)}


def _metadata(reader: Any) -> dict[str, Any]:
    try:
        info = reader.metadata
        created = info.creation_date if info else None
        values = {
            "title": info.title if info else None,
            "author": info.author if info else None,
            "published": created.isoformat() if created else None,
        }
    except Exception:  # noqa: BLE001 -- a wrong date does not make the text worse
        return {}
    return {name: text for name, value in values.items() if (text := _clean(str(value or "")))}


def _clean(text: str) -> str:
    """Return a text that is valid Unicode, without form feeds of its own."""
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\x00", "").replace("\f", "\n").strip()


def write(answer: dict[str, Any]) -> None:
    """Write a line of the answer."""
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Read files until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable(logging.CRITICAL)
    for line in sys.stdin:
        write(read(json.loads(line)))


if __name__ == "__main__":
    main()
