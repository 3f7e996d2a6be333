"""EPUB → Markdown: its chapters in reading order, each below its heading (EPUB 2 and 3)."""

from __future__ import annotations

from typing import Any, BinaryIO

from scannery.pipelines.sources.documents.archives import Archive, resolved
from scannery.pipelines.sources.documents.document import MAX_TEXT_CHARS, Document, DocumentError, one_line
from scannery.pipelines.sources.documents.html_pages import read_html

__all__ = ["read_epub"]

_CONTAINER = "META-INF/container.xml"
_ROOTFILE = ".//{urn:oasis:names:tc:opendocument:xmlns:container}rootfile"
_OPF = "{http://www.idpf.org/2007/opf}"
_DC = "{http://purl.org/dc/elements/1.1/}"
_NCX = "{http://www.daisy.org/z3986/2005/ncx/}"
_XHTML = "{http://www.w3.org/1999/xhtml}"
_TEXT_TYPES = frozenset({"application/xhtml+xml", "text/html"})
# Algorithms that scramble fonts; all others are DRM.
_FONTS = ("http://www.idpf.org/2008/embedding", "http://ns.adobe.com/pdf/enc#RC")
MOST_CHAPTERS = 5000


def read_epub(file: BinaryIO) -> Document:
    """Return the text of a book.

    Raises:
        DocumentError: it is no EPUB file, damaged, protected or too large.

    """
    archive = Archive(file, "EPUB")
    _check_protection(archive)
    rootfile = archive.xml(_CONTAINER).find(_ROOTFILE)
    name = "" if rootfile is None else rootfile.get("full-path") or ""
    package = archive.xml(name)
    items = {item.get("id"): item for item in package.iterfind(f"{_OPF}manifest/{_OPF}item")}
    names = _chapter_names(archive, name, items.values())
    texts, size = [], 0
    for reference in package.findall(f"{_OPF}spine/{_OPF}itemref")[:MOST_CHAPTERS]:
        item = items.get(reference.get("idref"))
        if (
            item is None
            or item.get("media-type") not in _TEXT_TYPES
            or "nav" in (item.get("properties") or "").split()
        ):
            continue
        entry = resolved(name, item.get("href") or "")
        text = _chapter(archive.read(entry), names.get(entry)) if entry in archive else ""
        size += len(text)
        if size > MAX_TEXT_CHARS:
            raise DocumentError("too_large", f"the text is longer than {MAX_TEXT_CHARS} characters")
        texts += [text] if text else []
    return Document(
        text="\n\n".join(texts),
        title=_metadata(package, "title"),
        author=_metadata(package, "creator"),
        language=_metadata(package, "language"),
        description=_metadata(package, "description"),
        published=_metadata(package, "date"),
    )


def _chapter(data: bytes, name: str | None) -> str:
    """Return the text of a chapter, below its name in the table of contents if it has no heading of its own."""
    text = read_html(data).text
    return f"# {name}\n\n{text}" if name and text and not text.startswith("#") else text


def _check_protection(archive: Archive) -> None:
    if "META-INF/encryption.xml" not in archive:
        return
    for method in archive.xml("META-INF/encryption.xml").iter(
        "{http://www.w3.org/2001/04/xmlenc#}EncryptionMethod"
    ):
        if method.get("Algorithm") not in _FONTS and method.getparent().tag.endswith("EncryptedData"):
            raise DocumentError("encrypted", "the book is protected (DRM)")


def _metadata(package: Any, name: str) -> str | None:
    return one_line(package.findtext(f"{_OPF}metadata/{_DC}{name}") or "") or None


def _chapter_names(archive: Archive, package: str, items: Any) -> dict[str, str]:
    """Return the names of chapters by their entries, from the table of contents."""
    names: dict[str, str] = {}
    for item in items:
        entry = resolved(package, item.get("href") or "")
        if entry not in archive:
            continue
        if "nav" in (item.get("properties") or "").split():
            for link in archive.xml(entry).iter(f"{_XHTML}a"):
                names.setdefault(resolved(entry, link.get("href") or ""), one_line("".join(link.itertext())))
        elif item.get("media-type") == "application/x-dtbncx+xml":
            for point in archive.xml(entry).iter(f"{_NCX}navPoint"):
                target = point.find(f"{_NCX}content")
                label = one_line(point.findtext(f"{_NCX}navLabel/{_NCX}text") or "")
                if target is not None:
                    names.setdefault(resolved(entry, target.get("src") or ""), label)
    return {entry: name for entry, name in names.items() if name}
