"""Choose how an index cuts texts, where its spec leaves that open."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.sources import InputFile, has_headings

__all__ = ["with_headings"]


def with_headings(spec: IndexSpec, parent: Manifest | None, files: Sequence[InputFile]) -> IndexSpec:
    """Return the spec with `chunk.headings` set.

    An index whose texts are cut keeps its choice, also in a full build: another one would embed everything again. A new
    index cuts at headings if a file of its input has them.
    """
    chunk = spec.source.chunk
    if chunk is None or chunk.headings is not None:
        return spec
    old = None if parent is None else parent.spec.source.chunk
    found = has_headings(files) or spec.source.text_format == "html"  # which is read as Markdown
    headings = found if old is None else bool(old.headings)
    source = spec.source.model_copy(update={"chunk": chunk.model_copy(update={"headings": headings})})
    return spec.model_copy(update={"source": source})
