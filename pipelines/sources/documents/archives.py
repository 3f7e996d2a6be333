"""ZIP archives (DOCX, EPUB) and their XML, read with bounds: no bomb, no entity, no network."""

from __future__ import annotations

import posixpath
import zipfile
import zlib
from typing import Any, BinaryIO
from urllib.parse import unquote

from scannery.pipelines.sources.documents.document import DocumentError

__all__ = ["Archive", "resolved", "xml_root"]

MAX_ENTRIES = 50_000
MAX_ENTRY_BYTES = 64 * 2**20
MAX_READ_BYTES = 256 * 2**20
"""Most bytes read of one archive, after decompression."""
MAX_XML_TAGS = 4_000_000
_METHODS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
"""Those of DOCX and EPUB. `zipfile` decompresses others without a bound: 750 bytes of bzip2 may be gigabytes."""


class Archive:
    """An open archive; it may be used until its file is closed."""

    def __init__(self, file: BinaryIO, kind: str) -> None:
        """Read the directory of the archive.

        Args:
            file: seekable.
            kind: what the file should be, for errors.

        Raises:
            DocumentError: it is no archive, or has too many entries.

        """
        self.kind = kind
        try:
            self._zip = zipfile.ZipFile(file)
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise DocumentError("malformed", f"not a {kind} file: {error}") from error
        self._methods = {member.filename: member.compress_type for member in self._zip.infolist()}
        if len(self._methods) > MAX_ENTRIES:
            raise DocumentError("too_large", f"the archive has more than {MAX_ENTRIES} files")
        self._remaining = MAX_READ_BYTES

    def __contains__(self, name: str) -> bool:
        return name in self._methods

    def read(self, name: str) -> bytes:
        """Return the content of an entry.

        Raises:
            DocumentError: there is none, it is damaged, encrypted or too large.

        """
        if name not in self._methods:
            raise DocumentError("malformed", f"not a {self.kind} file: it has no {name}")
        if self._methods[name] not in _METHODS:
            raise DocumentError("malformed", f"{name} is not compressed as in a {self.kind} file")
        try:
            with self._zip.open(name) as entry:
                # Sizes in the directory may be wrong: what is read counts.
                data = entry.read(min(MAX_ENTRY_BYTES, self._remaining) + 1)
        except RuntimeError as error:  # the password
            raise DocumentError("encrypted", f"{name} is encrypted") from error
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError) as error:
            raise DocumentError("damaged_file", f"{name}: {error}") from error
        self._remaining -= len(data)
        if len(data) > MAX_ENTRY_BYTES or self._remaining < 0:
            raise DocumentError(
                "too_large", f"{name} is larger than {MAX_ENTRY_BYTES >> 20} MiB, decompressed"
            )
        return data

    def xml(self, name: str) -> Any:
        """Return the root element of an entry; raises as `read`, and for what is not XML."""
        return xml_root(self.read(name), name)


def xml_root(data: bytes, name: str, *, recover: bool = False) -> Any:
    """Return the root element of XML, parsed without entities of its own and without network.

    Raises:
        DocumentError: it is not XML, or too large.

    """
    from lxml import etree

    if data.count(b"<") > MAX_XML_TAGS:
        raise DocumentError("too_large", f"{name} has more than {MAX_XML_TAGS} tags")
    # Nesting and the length of a text are limited by the parser, since `huge_tree` is off.
    parser = etree.XMLParser(
        resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False, remove_comments=True,
        remove_pis=True, recover=recover,
    )  # fmt: skip
    try:
        root = etree.fromstring(data, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise DocumentError("malformed", f"{name} is not XML: {error}") from error
    if root is None:
        raise DocumentError("malformed", f"{name} has no element")
    return root


def resolved(base: str, href: str) -> str:
    """Return the name of the entry that `href` names, relative to the entry `base`."""
    path = unquote(href.partition("#")[0])
    return posixpath.normpath(posixpath.join(posixpath.dirname(base), path)).lstrip("/")
