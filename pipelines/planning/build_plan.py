"""Plan a build before any worker starts: cut the input, choose dimensions and number of shards.

Choose how an index cuts texts, where its spec leaves that open.

Learn the words that an index splits compounds into, from a sample of its input.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.lexical.analyser import ANALYSER_VERSION, chosen_parts, stem_of
from scannery.indexer.lexical.words import words_of
from scannery.indexer.manifest import Manifest, VectorsInfo
from scannery.indexer.spec.spec import MAX_SHARDS, EncoderSpec, IndexSpec, LexicalSpec
from scannery.indexer.versions.creation import keeps_compounds
from scannery.indexer.versions.declared_models import spec_problem
from scannery.pipelines.errors import SpecConflictError
from scannery.pipelines.planning.input_parts import CutMemory, cut_files
from scannery.pipelines.planning.planned_encoder import PlannedEncoder, recipe_of
from scannery.pipelines.planning.worker_resources import (
    SEGMENT_BYTES,
    UNEVEN,
    RowSize,
    row_size,
    rows_within,
)
from scannery.pipelines.records.source_columns import vector_size
from scannery.pipelines.sources import (
    Fields,
    InputFile,
    Part,
    Record,
    has_headings,
    one_by_one,
    read_batches,
    read_part,
)
from scannery.pipelines.state.progress import Progress, ProgressCallback
from scannery.pipelines.state.work_units import expected_rows, unit_bytes

__all__ = [
    "LANGUAGES",
    "auto_shards",
    "cut_input",
    "learned_compounds",
    "shards_of",
    "vectors_of",
    "with_compounds",
    "with_headings",
]


ROWS_PER_SHARD = 1_000_000
"""Most rows of a shard that `shards: auto` plans. With 384 dimensions and texts of 600 bytes, building it takes 10 GB;
with more of either it has fewer rows (worker_resources.SEGMENT_BYTES)."""

SAMPLED_VECTORS = 1000


def cut_input(
    files: Sequence[InputFile],
    spec: IndexSpec,
    progress: ProgressCallback | None,
    memory: CutMemory | None = None,
) -> tuple[list[Part], int]:
    """Return the parts of the input, and the size limit of a work unit in bytes."""
    limit, total, done = unit_bytes(files, spec), sum(file.size_bytes for file in files), 0

    def report(size_bytes: int) -> None:
        nonlocal done
        done += size_bytes
        if progress is not None:
            progress(Progress(stage="plan", done=done, total=total))

    return cut_files(files, limit, memory=memory, report=report), limit


def vectors_of(
    spec: IndexSpec,
    parts: Sequence[Part],
    encoders: Mapping[str, PlannedEncoder],
    parent: Manifest | None,
    *,
    updates: bool,
) -> dict[str, VectorsInfo]:
    """Return dimensions and encoder of the vectors of each name, "" first.

    Args:
        spec: of the index.
        parts: of the input.
        encoders: from `planned_encoders`.
        parent: the version before; its record of an encoder stays if the digests are equal, whatever the model's name.
        updates: whether rows of that version stay.

    Raises:
        SpecConflictError: the encoder does not fit the vectors of the source, or is not the model that the spec names.

    """
    planned = {name: encoders[recipe_of(encoder)] for name, encoder in spec.encoders.items()}
    dimensions = {"": _dimensions(spec, parts, planned.get(""), parent, updates=updates)} | {
        name: vectors.dimensions or planned[name].dimensions for name, vectors in spec.named_vectors.items()
    }
    existing = {} if parent is None else parent.vectors
    infos = {
        name: VectorsInfo(
            dimensions=size,
            encoder=_fingerprint(planned.get(name), existing.get(name)),
            query_encoder=_query_fingerprint(spec.encoders.get(name), encoders, size),
        )
        for name, size in dimensions.items()
    }
    if problem := spec_problem(spec, infos[""]):
        raise SpecConflictError(f"vector_model: {problem}", field="vector_model")
    return infos


def _query_fingerprint(
    spec: EncoderSpec | None, encoders: Mapping[str, PlannedEncoder], dimensions: int
) -> dict[str, Any] | None:
    """Return the fingerprint of a model for queries alone; None if there is none."""
    if spec is None or spec.query_model is None:
        return None
    encoder = encoders[recipe_of(spec.queries)]
    if encoder.dimensions != dimensions:
        raise SpecConflictError(
            f"encoder.query_model: {spec.query_model} has {encoder.dimensions} dimensions, the vectors that it is to "
            f"find have {dimensions}",
            field="encoder.query_model",
        )
    return encoder.fingerprint.to_dict()


def _fingerprint(encoder: PlannedEncoder | None, existing: VectorsInfo | None) -> dict[str, Any] | None:
    if encoder is None:
        return None
    fingerprint = existing.encoder if existing is not None else None
    same = fingerprint is not None and fingerprint.get("digest") == encoder.fingerprint.digest
    return fingerprint if same else encoder.fingerprint.to_dict()


def _dimensions(
    spec: IndexSpec,
    parts: Sequence[Part],
    encoder: PlannedEncoder | None,
    parent: Manifest | None,
    *,
    updates: bool,
) -> int:
    """Return the dimensions of unnamed vectors: of the encoder or of the input's vectors, else of `parent`, else 0."""
    before = parent.dimensions if parent is not None else 0
    if spec.source.vector is None:
        if encoder is not None:
            return encoder.dimensions
        # A full build drops those that came from texts or from the source, but not the place of those written live.
        stays = updates or (parent is not None and not _makes_unnamed(parent.spec))
        return before if stays else 0
    dimensions = _sampled_dimensions(spec, parts) or before or (encoder.dimensions if encoder else 0)
    # Without a valid vector, all records become dead letters if they must have one, so that the size does not matter.
    dimensions = dimensions if spec.vectors == "optional" else max(1, dimensions)
    if encoder is not None and encoder.dimensions != dimensions:
        raise SpecConflictError(
            f"encoder: {spec.encoder and spec.encoder.model} has {encoder.dimensions} dimensions, "
            f"the vectors of the source have {dimensions}",
            field="encoder.dimensions",
        )
    return dimensions


def _makes_unnamed(spec: IndexSpec) -> bool:
    """Return whether builds read or encode unnamed vectors; those of other indexes are only written live."""
    return spec.encoder is not None or spec.source.vector is not None


def _sampled_dimensions(spec: IndexSpec, parts: Sequence[Part]) -> int | None:
    """Return the most common size of the first 1,000 vectors, since the first record may be a bad one."""
    sizes: Counter[int] = Counter()
    fields = Fields.of(spec)
    for part in parts:
        for item in read_part(part, fields):
            size = vector_size(item, spec) if isinstance(item, Record) else None
            if size is not None:
                sizes[size] += 1
            if sum(sizes.values()) >= SAMPLED_VECTORS:
                return sizes.most_common(1)[0][0]
    return sizes.most_common(1)[0][0] if sizes else None


def shards_of(
    spec: IndexSpec,
    parts: Sequence[Part],
    parent: Manifest | None,
    vectors: Mapping[str, VectorsInfo],
) -> int:
    """Return the number of shards: of the spec, else of the index, else from the rows of the input and their size.

    Building the largest shard stays within `SEGMENT_BYTES` of memory, and shards have at most `ROWS_PER_SHARD` rows.
    """
    if spec.shards == "auto" and parent is not None:
        return parent.shards
    rows = expected_rows(parts, spec)
    return auto_shards(spec, rows, row_size(parts, rows, spec, vectors))


def auto_shards(spec: IndexSpec, rows: int, row: RowSize) -> int:
    """Return the number of shards of a new index: of the spec, else from its rows and their size, as `shards_of`."""
    if spec.shards != "auto":
        return spec.shards
    # The mean may be a little less than what fits, as shards differ in size.
    fits = rows_within(SEGMENT_BYTES, row) / UNEVEN
    return min(MAX_SHARDS, max(1, math.ceil(rows / min(ROWS_PER_SHARD, fits))))


def with_headings(spec: IndexSpec, parent: Manifest | None, files: Sequence[InputFile]) -> IndexSpec:
    """Return the spec with `chunk.headings` set.

    An index whose texts are cut keeps its choice, also in a full build: another one would embed everything again. A new
    index cuts at headings if a file of its input has them.
    """
    chunk = spec.source.chunk
    if chunk is None or chunk.headings is not None:
        return spec
    old = None if parent is None else parent.spec.source.chunk
    has_marks = has_headings(files) or spec.source.text_format == "html"  # which is read as Markdown
    headings = has_marks if old is None else bool(old.headings)
    source = spec.source.model_copy(update={"chunk": chunk.model_copy(update={"headings": headings})})
    return spec.model_copy(update={"source": source})


LANGUAGES = frozenset({"german"})
"""Languages whose compounds are split by default: those in which that was measured (docs/benchmarks/lexical.md)."""

SAMPLE_CHARACTERS = 4 << 20
"""Characters of texts, about 600,000 words, read while planning."""
SAMPLED_PARTS = 32
"""Parts of the input that the sample comes from, spread evenly: of each its beginning."""


def with_compounds(spec: IndexSpec, parent: Manifest | None, parts: Sequence[Part]) -> IndexSpec:
    """Return the spec with the words that compounds are split into, if the index has to learn them.

    An update keeps the words of the index, so that scores of its rows stay comparable.

    Args:
        spec: of the build.
        parent: the version that is updated; None for a new index and for a full build, which learn the words.
        parts: of the input.

    Raises:
        SpecConflictError: the dictionary that the spec names cannot be read.

    """
    if not parts or spec.lexical is None or not _learns(spec.lexical, parent):
        return spec
    compounds = spec.lexical.compounds
    dictionary = _dictionary(compounds) if isinstance(compounds, str) else ()
    lines = learned_compounds(_texts(spec, parts), spec.lexical, dictionary)
    return spec.model_copy(update={"lexical": spec.lexical.model_copy(update={"compounds": lines})})


def _learns(lexical: LexicalSpec, parent: Manifest | None) -> bool:
    compounds = lexical.compounds
    if compounds is False or isinstance(compounds, list):
        return False
    if parent is not None and parent.segments and parent.spec.lexical is not None:
        return not keeps_compounds(lexical, parent.spec.lexical)
    return compounds is not None or lexical.language in LANGUAGES


def learned_compounds(
    texts: Iterable[str], lexical: LexicalSpec, dictionary: Iterable[str] = ()
) -> list[str]:
    """Return the words that compounds are split into, in lines as `costs_of` takes them.

    Args:
        texts: a sample; as many are read as have SAMPLE_CHARACTERS.
        lexical: language and version of the analyser.
        dictionary: other words that compounds may have.

    """
    version, counts, read = lexical.analyser or ANALYSER_VERSION, Counter[str](), 0
    for text in texts:
        counts.update(words_of(text[: SAMPLE_CHARACTERS - read], version))
        read += len(text)
        if read >= SAMPLE_CHARACTERS:
            break
    dictionary_words = {word for line in dictionary for word in words_of(line, version)}
    return chosen_parts(counts, stem_of(lexical.language), dictionary_words)


def _texts(spec: IndexSpec, parts: Sequence[Part]) -> Iterator[str]:
    """Yield titles and texts of records from the beginning of some parts."""
    mapped, fields = FieldMapping.of(spec).fields, Fields.of(spec)
    sources = [mapped[column] for column in ("title", "text") if column in mapped]
    count = min(len(parts), SAMPLED_PARTS)
    for number in range(count):
        remaining = SAMPLE_CHARACTERS // count
        for item in one_by_one(read_batches(parts[len(parts) * number // count], fields)):
            values = [each.value(item.fields) for each in sources] if isinstance(item, Record) else []
            texts = [value[:remaining] for value in values if isinstance(value, str)]
            yield from texts
            remaining -= sum(map(len, texts))
            if remaining <= 0:
                break


def _dictionary(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SpecConflictError(
            f"lexical.compounds: cannot read the word list {path}: {error}", field="lexical.compounds"
        ) from error
