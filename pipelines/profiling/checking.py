"""What a spec makes of a sample: fields and passages, what would be refused and why, and what was converted."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scannery.embed.models.token_counts import TokenCounter
from scannery.embed.text.documents import cut
from scannery.embed.text.language import languages_of
from scannery.embed.text.transcripts import spoken_text
from scannery.indexer.datapoints.field_mapping import FieldMapping, MappedField
from scannery.indexer.datapoints.named_vectors import is_vector_column, vector_column
from scannery.indexer.datapoints.passages import PASSAGE_ATTRIBUTES, named_texts
from scannery.indexer.datapoints.validation import SPARSE, ValidatedBatch
from scannery.indexer.errors import InvalidRecordError
from scannery.indexer.models.references import located_model
from scannery.indexer.spec.model_reference import stored_reference
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.planning.build_plan import with_headings
from scannery.pipelines.profiling.field_profiles import profile_fields, shown
from scannery.pipelines.profiling.sample import Sample
from scannery.pipelines.records.source_columns import dead_letter, validate_records, vector_size
from scannery.pipelines.sources import Record
from scannery.pipelines.sources.documents.html_pages import html_share, mapping_of
from scannery.runtime.paths import current_folder

__all__ = [
    "ID_WARNINGS",
    "CheckReport",
    "CheckedField",
    "Fault",
    "PassageShown",
    "TextLengths",
    "check_sample",
    "counter_of",
]

ID_WARNINGS = {
    "row": "ids are the file and the line or row: if rows are inserted or sorted, ids move to other rows, and only a "
    "build with --full is right",
    "content": "ids are a hash of all fields: equal rows are one, and a changed row is a new one; the old one stays "
    "until a build with --full",
}
"""What ids mean that are made (SourceSpec.generated_id)."""
MAX_PASSAGES = 3
PASSAGE_CHARS = 300
LANGUAGE_TEXTS = 200
CHARS_PER_TOKEN = 4
"""Characters of a token of English; where the tokenizer of the model is not on this machine."""

_ROLES = {"embedding": "vector", SPARSE: "sparse_vector"}
_TYPES = {"id": "id", "document_id": "id", "title": "text", "text": "text", "embedding": "vector",
          SPARSE: "sparse vector", "payload": "JSON"}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class CheckedField:
    """What became of a field that the spec names."""

    name: str
    """Name, as in the index: `id`, `text`, …, or the attribute."""

    source: str
    """The field, path or template in the input; empty for constants."""

    type: str
    present: float
    """Share of the sample's records that have a value."""

    examples: tuple[str, ...]
    is_of_passages: bool = False
    """Whether each passage has a value of its own: who speaks, its headings, its page."""
    nearest: str | None = None
    """If no record has it: the field of the input with the most similar name."""

    @property
    def is_filled(self) -> bool:
        """Whether it has values without a field of the input: a constant, or what is known of passages."""
        return self.is_of_passages or not self.source


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is wrong with some records."""

    reason: str
    """Reason, as in dead letters."""

    field: str | None
    records: int
    message: str
    """Message of the first of them."""

    place: str
    """File, and line or row, of the first of them."""


@dataclasses.dataclass(frozen=True)
class TextLengths:
    """How long the texts are, for the encoder."""

    limit: int | None
    """Tokens that the encoder reads; None if that is not known."""

    counted: bool
    """Whether the tokens were counted by the encoder's tokenizer; else they are estimated from the characters."""

    longest: int
    over_limit: int
    """Texts, with their titles, that are longer. Without `source.chunk` their ends are cut off."""

    cut_share: float
    """Share of all tokens that is cut off; 0 with `source.chunk`."""

    passages: int | None
    """Datapoints that the sample becomes; None without the tokenizer."""


@dataclasses.dataclass(frozen=True)
class PassageShown:
    """One of the first passages."""

    id: str
    title: str | None
    text: str
    tokens: int | None


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """What a spec makes of a sample."""

    records: int
    files: int
    is_whole: bool
    """Whether the sample is the whole input."""

    refused: int
    """Records that would not be indexed."""

    fields: tuple[CheckedField, ...]
    unused: tuple[str, ...]
    """Fields of the input that the spec does not name."""

    faults: tuple[Fault, ...]
    """All that is wrong, the most frequent first; a record can have several."""

    converted: Mapping[tuple[str, str], int]
    """How many values were converted in a way that could be wrong, by attribute and what was done."""

    languages: tuple[tuple[str, float], ...]
    lengths: TextLengths | None
    passages: tuple[PassageShown, ...]
    html_share: float = 0.0
    """Share of texts that have HTML, unless `source.text_format` says how texts are written."""

    generated_id: str | None = None
    """What ids are made from, if they are."""

    @property
    def is_good(self) -> bool:
        """Whether every record is indexed, and every field of the spec is in some record."""
        return self.refused == 0 and all(field.present > 0 or field.is_filled for field in self.fields)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        values = dataclasses.asdict(self)
        values["converted"] = [
            {"field": field, "conversion": what, "values": count}
            for (field, what), count in self.converted.items()
        ]
        values["languages"] = dict(self.languages)
        return {"valid": True, "good": self.is_good, **values}


def counter_of(spec: IndexSpec, store: str | None) -> TokenCounter | None:
    """Return the counter of tokens of the spec's encoder; None if it is not on this machine, or there is none.

    Args:
        spec: as written.
        store: URI of the store, for a model `store:NAME@N`; None: it is counted as not on this machine.

    Raises:
        NotFoundError, CorruptError, StoreError: the model cannot be read from the store.

    """
    encoder = spec.encoder
    if encoder is None or spec.source.vector is not None:
        return None
    if store is None and stored_reference(encoder.model) is not None:
        return None
    with located_model(encoder.model, current_folder(), store) as location:
        return TokenCounter.of_local(
            location,
            label=encoder.model,
            prompt=encoder.document_prompt or "",
            max_tokens=encoder.max_tokens,
        )


def check_sample(spec: IndexSpec, sample: Sample, counter: TokenCounter | None) -> CheckReport:
    """Return what a spec makes of a sample.

    Args:
        spec: as written.
        sample: of the input.
        counter: of the encoder's tokens; None: lengths are estimated, and texts are not cut.

    """
    spec, records = with_headings(spec, None, sample.files), sample.records
    sizes = (vector_size(record, spec) for record in records)
    dimensions = {"": next((size for size in sizes if size is not None), 1)} | {
        name: vectors.dimensions for name, vectors in spec.named_vectors.items() if vectors.dimensions
    }
    valid = validate_records(records, spec, dimensions)
    repeated = {} if spec.source.has_ids_of_content else _repeated(valid, records)
    good = [row for row in range(len(valid.rows_N)) if row not in repeated]
    lengths, passages = _texts(spec, valid, good, counter)
    texts = _column(valid, "text")
    mapping = mapping_of(spec)
    profiles = profile_fields([record.fields for record in records])
    used = {
        name
        for mapped in mapping.fields.values()
        for expression in mapped.expressions
        for name in expression.names
    }
    names = [profile.path for profile in profiles]
    unused = tuple(
        p.path
        for p in profiles
        if not used & {".".join(p.parts[: n + 1]) for n in range(len(p.parts))}
        and not mapping.is_other(p.parts[0])
    )
    return CheckReport(
        records=len(records) + len(sample.letters),
        files=len(sample.files),
        is_whole=sample.is_whole,
        refused=len(sample.letters) + len(valid.rejected) + len(repeated),
        fields=(
            *(
                _field(column, expression, spec, records, names)
                for column, expression in mapping.fields.items()
                if not is_vector_column(column)
            ),
            *(
                _named_field(name, spec, mapping, valid, len(records))
                for name in spec.named_vectors
                if name in spec.named_encoders or vector_column(name) in mapping.fields
            ),  # others are only written live
        ),
        unused=unused,
        faults=_faults(sample, valid, records, repeated),
        converted=dict(valid.converted),
        languages=tuple(languages_of(spoken_text(text) or text for text in texts[:LANGUAGE_TEXTS] if text)),
        lengths=lengths,
        passages=passages,
        generated_id=None if spec.source.generated_id is None else spec.source.generated_id.path,
        html_share=0.0 if spec.source.text_format is not None else html_share(texts),
    )


def _field(
    column: str, mapped: MappedField, spec: IndexSpec, records: Sequence[Record], names: Sequence[str]
) -> CheckedField:
    values = [mapped.value(record.fields) for record in records]
    present = [value for value in values if value is not None]
    readable = [value for value in present if not isinstance(value, InvalidRecordError)]
    source = ", ".join(expression.text for expression in mapped.expressions)
    kind = spec.attributes.get(column)
    is_of_passages = (
        not present and spec.source.text is not None and PASSAGE_ATTRIBUTES.get(column) == kind is not None
    )
    near = [] if present or not source else difflib.get_close_matches(source, names, 1, 0.5)
    return CheckedField(
        name=_ROLES.get(column, column),
        source=source,
        type=_TYPES.get(column, spec.attributes.get(column, "")),
        present=len(present) / len(records) if records else 0.0,
        examples=tuple(dict.fromkeys(filter(None, map(shown, readable[:50]))))[:3],
        is_of_passages=is_of_passages,
        nearest=near[0] if near else None,
    )


def _named_field(
    name: str, spec: IndexSpec, mapping: FieldMapping, valid: ValidatedBatch, records: int
) -> CheckedField:
    """Return what becomes of a named vector: it is given, or there is a text for its encoder."""
    column, is_encoded = vector_column(name), name in spec.named_encoders
    has_vector = valid.table.column(column).is_valid().to_pylist()
    texts: Sequence[str | None] = (
        named_texts(valid.table, spec, name) if is_encoded else [None] * len(has_vector)
    )
    filled = sum(has or text is not None for has, text in zip(has_vector, texts, strict=True))
    field = mapping.name(column) if column in mapping.fields else None
    sources = [field, spec.text_field(name) if is_encoded else None]
    return CheckedField(
        name=f"vectors.{name}",
        source=", or encoded ".join(source for source in sources if source),
        type="vector",
        present=filled / records if records else 0.0,
        examples=tuple(shown(text) for text in dict.fromkeys(texts) if text)[:3],
    )


def _repeated(valid: ValidatedBatch, records: Sequence[Record]) -> dict[int, Record]:
    """Return the good rows whose id an earlier one has, with their records."""
    ids, seen, repeated = _column(valid, "id"), set(), {}
    for row, id in enumerate(ids):
        if id in seen:
            repeated[row] = records[int(valid.rows_N[row])]
        seen.add(id)
    return repeated


def _column(valid: ValidatedBatch, name: str) -> list[Any]:
    values: list[Any] = valid.table.column(name).to_pylist()
    return values


def _faults(
    sample: Sample, valid: ValidatedBatch, records: Sequence[Record], repeated: Mapping[int, Record]
) -> tuple[Fault, ...]:
    faults: dict[tuple[str, str | None, str], Fault] = {}

    def add(reason: str, field: str | None, message: str, location: str) -> None:
        kind = (reason, field, message.split(", got", maxsplit=1)[0] if field else "")
        fault = faults.get(kind) or Fault(reason, field, 0, message, location)
        faults[kind] = dataclasses.replace(fault, records=fault.records + 1)

    for letter in sample.letters:
        add(letter.reason, letter.field, letter.message, _location(letter.source, letter.line, letter.row))
    for rejected in valid.rejected:
        record = records[rejected.row]
        location = _location(record.source, record.line, record.row)
        letter = dead_letter(record, rejected)
        add(letter.reason, letter.field, letter.message, location)
        for error in rejected.more_errors:
            add(error.reason, error.field, error.message, location)
    ids = _column(valid, "id")
    for row, record in repeated.items():
        message = f"an earlier record has the id {ids[row]!r}"
        add("duplicate_id", "id", message, _location(record.source, record.line, record.row))
    return tuple(sorted(faults.values(), key=lambda fault: -fault.records))


def _location(source: str, line: int | None, row: int | None) -> str:
    number = f" line {line}" if line is not None else f" row {row}" if row is not None else ""
    return source + number


def _texts(
    spec: IndexSpec, valid: ValidatedBatch, good: Sequence[int], counter: TokenCounter | None
) -> tuple[TextLengths | None, tuple[PassageShown, ...]]:
    if spec.source.vector is not None or not good:
        return None, ()
    ids, titles, texts = (_column(valid, name) for name in ("id", "title", "text"))
    read = [spoken_text(texts[row] or "") or texts[row] or "" for row in good]
    whole = [f"{titles[row]}\n{text}" if titles[row] else text for row, text in zip(good, read, strict=True)]
    tokens = counter.count(whole) if counter else [len(text) // CHARS_PER_TOKEN for text in whole]
    limit = counter.passage_tokens if counter else None
    over = [size - limit for size in tokens if limit is not None and size > limit]
    chunk = spec.source.chunk
    passages = _passages(spec, [(ids[row], titles[row], texts[row]) for row in good], counter, tokens)
    return TextLengths(
        limit=limit,
        counted=counter is not None,
        longest=max(tokens),
        over_limit=len(over),
        cut_share=0.0 if chunk is not None or not over else sum(over) / sum(tokens),
        passages=len(passages) if counter or chunk is None else None,
    ), tuple(passages[:MAX_PASSAGES])


def _passages(
    spec: IndexSpec,
    documents: Iterable[tuple[str, str | None, str | None]],
    counter: TokenCounter | None,
    tokens: Sequence[int],
) -> list[PassageShown]:
    chunk = spec.source.chunk
    if chunk is None or counter is None:
        sizes: Iterable[int | None] = tokens if counter else (None for _ in tokens)
        return [
            PassageShown(id, title, (text or "")[:PASSAGE_CHARS], size)
            for (id, title, text), size in zip(documents, sizes, strict=True)
        ]
    chunker = counter.chunker(chunk.max_tokens, chunk.overlap_tokens, headings=bool(chunk.headings))
    return [
        PassageShown(f"{id}#{number}", title, passage.embedding_text[:PASSAGE_CHARS], passage.tokens)
        for id, title, text in documents
        for number, passage in enumerate(cut(text, chunker, title))
    ]
