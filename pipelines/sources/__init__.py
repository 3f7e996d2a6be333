"""Input files → records: file formats, cutting files into parts, reading parts."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

from scannery.indexer.datapoints.field_mapping import FieldExpression
from scannery.indexer.spec.spec import CsvSpec, SourceFormat, SourceSpec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.errors import InputChangedError, SpecConflictError, UnknownFormatError
from scannery.pipelines.sources import (
    arrays,
    arrow_files,
    columns,
    delimited,
    documents,
    feeds,
    json_documents,
    lines,
    managed,
    texts,
    transcripts,
    word_vectors,
)
from scannery.pipelines.sources.batches import Batch, one_by_one
from scannery.pipelines.sources.derived_fields import with_derived
from scannery.pipelines.sources.formats import HINTS, SUFFIXES, compression_of, format_in, format_of
from scannery.pipelines.sources.locations import InputFile, find_files, stamp_of
from scannery.pipelines.sources.parts import DamagedError, Fields, Part, Record

__all__ = [
    "HEADED",
    "SUFFIXES",
    "Batch",
    "Fields",
    "InputFile",
    "Part",
    "Record",
    "arrange",
    "find_files",
    "has_headings",
    "ids_to_delete",
    "one_by_one",
    "read_batches",
    "read_part",
    "split_file",
]

HEADED = frozenset({"markdown", "html", "docx", "epub", "notebook", "feed"})
"""Formats whose texts are Markdown, or become that."""

# A compressed file can only be read from its beginning, so n parts cost n/2 times its decompression.
MAX_COMPRESSED_PARTS = 64
TYPICAL_COMPRESSION = 4


def arrange(files: Sequence[InputFile], source: SourceSpec, fields: Fields | None = None) -> list[InputFile]:
    """Return the files with records, each with its companions (files of ids, or of ids to delete).

    Args:
        files: of the input.
        source: of the spec.
        fields: that the whole spec reads, if it is known.

    Raises:
        UnknownFormatError: no source reads files of this type; at most five are named.
        SpecConflictError: the files do not fit the spec, or each other.

    """
    unread = [file for file in files if file.problem]
    files = [
        file if format_of(file.path) else dataclasses.replace(file, sniffed=format_in(file)) for file in files
    ]
    if fields is None:
        fields = Fields(source.id, None, frozenset(FieldExpression(source.id).names), {})
    return [*_arranged([file for file in files if not file.problem], source, fields), *unread]


def _arranged(files: Sequence[InputFile], source: SourceSpec, fields: Fields) -> list[InputFile]:
    if source.text_format == "html":
        documents.check_packages(["html"])
    if source.format == "managed":
        return managed.arrange(files)
    if source.format == "csv":
        return [dataclasses.replace(file, layout="csv", csv=_csv(source)) for file in files]
    files = _feeds_arranged(files, source)
    names = {file.source for file in files}
    vectors = [file for file in files if _kind(file) in arrays.FORMATS]
    words = [file for file in files if _kind(file) == "vec"]
    ids = {file.source + arrays.IDS_SUFFIX for file in vectors} & names
    _check_formats([file for file in files if file.source not in ids])
    _check_vectors(vectors, words, ids, source)
    documents.check_packages([_kind(file) for file in files])
    return [
        dataclasses.replace(
            file,
            companions=_companions(file, ids),
            csv=_csv(source),
            encoding=source.encoding or "",
            records=source.records,
            may_be_transcript=source.text in (None, "text", ["text"]) and source.records is None,
            fields=fields,
        )
        for file in files
        if file.source not in ids
    ]


def _csv(source: SourceSpec) -> CsvSpec | None:
    """Return how files of CSV are written; `source.encoding` holds where `source.csv` names none."""
    if source.encoding is None or (source.csv is not None and source.csv.encoding is not None):
        return source.csv
    return (source.csv or CsvSpec()).model_copy(update={"encoding": source.encoding})


def _feeds_arranged(files: Sequence[InputFile], source: SourceSpec) -> list[InputFile]:
    """Return the files without those that are transcripts of a feed."""
    layout: SourceFormat = "feed" if source.format == "feed" else "auto"
    files = [dataclasses.replace(file, layout=layout, fetch=tuple(source.fetch)) for file in files]
    feed_files = [file for file in files if _kind(file) == "feed"]
    if feed_files:
        documents.check_packages(["feed"])
    beside = {
        f"{file.base.rstrip('/')}/{path}"
        for file in feed_files
        for path in feeds.transcripts_beside(file, compression_of(file.path))
    }
    return [file for file in files if file.source not in beside]


def ids_to_delete(files: Sequence[InputFile]) -> set[str]:
    """Return the ids in the input's files of ids to delete (managed layout)."""
    return {id for file in files if file.layout == "managed" for id in managed.deletes_of(file)}


def _companions(file: InputFile, ids: set[str]) -> tuple[str, ...]:
    return (file.path + arrays.IDS_SUFFIX,) if file.source + arrays.IDS_SUFFIX in ids else ()


def _check_vectors(
    files: Sequence[InputFile], words: Sequence[InputFile], ids: set[str], source: SourceSpec
) -> None:
    if (sources := [*files, *words]) and source.vector is None:
        raise SpecConflictError(f"source.vector: must be set for {sources[0].source}, which has only vectors",
                                field="source.vector")  # fmt: skip
    numbered = [file.source for file in files if file.source + arrays.IDS_SUFFIX not in ids]
    if len(numbered) > 1 and source.generated_id is None:
        raise SpecConflictError(
            f"{numbered[0]} and {numbered[1]} both number their rows from 0; give each a file of ids beside it "
            f"(such as {numbered[0]}{arrays.IDS_SUFFIX}, one id per line)",
            field="input",
        )


def _kind(file: InputFile) -> str:
    return (_found_format(file) or ("", ""))[0]


def _found_format(file: InputFile) -> tuple[str, str] | None:
    """Return format and compression of a file, by its layout or its ending."""
    if file.layout == "managed":
        return managed.format_of(file.path)
    if file.layout in ("csv", "feed"):
        return file.layout, compression_of(file.path)
    return format_of(file.path) or file.sniffed


def _check_formats(files: Sequence[InputFile]) -> None:
    unknown = [file.source for file in files if _found_format(file) is None or _is_other_xml(file)]
    if unknown:
        more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise UnknownFormatError(
            f"cannot tell the format of {', '.join(unknown[:5])}{more}; known endings: {' '.join(SUFFIXES)} "
            "(text formats also with .gz, .zst, .bz2 or .xz). A pattern such as 'folder/**/*.md' leaves other files "
            f"out{_hint(unknown)}",
            field="input",
        )


def _hint(sources: Sequence[str]) -> str:
    """Return what to do about files of formats that are known and not read."""
    endings = dict.fromkeys(PurePosixPath(source).suffix.lower() for source in sources)
    return "".join(f". {ending} is {HINTS[ending]}" for ending in endings if ending in HINTS)


def has_headings(files: Sequence[InputFile]) -> bool:
    """Return whether a file has a format with headings."""
    return any(_kind(file) in HEADED for file in files)


def _is_other_xml(file: InputFile) -> bool:
    is_xml = file.layout == "auto" and file.path.lower().endswith(".xml")
    return is_xml and not feeds.begins_as_feed(file)


def split_file(file: InputFile, limit: int) -> Iterator[Part]:
    """Yield the parts of a file in order, about `limit` bytes each; an empty file has none.

    A file that cannot be opened, or whose row index is damaged, is one part with a `problem`.
    """
    if file.problem:
        yield Part(
            base=file.base,
            path=file.path,
            format="",
            problem="unreadable_file",
            message=file.problem,
            records=0,
        )
        return
    detected = _found_format(file)
    if detected is None:
        raise UnknownFormatError(f"cannot tell the format of {file.source}", field="input")
    format, compression = detected
    if compression:
        limit = max(limit, file.size_bytes * TYPICAL_COMPRESSION // MAX_COMPRESSED_PARTS)
    try:
        stamp = _stamp(file)
        is_json = format == "jsonl" and _is_json(file)
        if is_json and file.may_be_transcript and transcripts.is_transcript(file, compression):
            format = "transcript"
        for part in _split(file, format, compression, limit):
            # A feed names its companions itself.
            yield dataclasses.replace(part, stamp=_stamp(part) if format == "feed" else stamp)
    except DamagedError as error:
        yield _problem(file, format, "damaged_file", error)
    except OSError as error:
        yield _problem(file, format, "unreadable_file", error)


def read_part(part: Part, fields: Fields) -> Iterator[Record | DeadLetter]:
    """Yield the records of a part in order, and a dead letter for each that cannot be parsed.

    Raises:
        InputChangedError: as `read_batches`.

    """
    return one_by_one(read_batches(part, fields))


def read_batches(part: Part, fields: Fields) -> Iterator[Batch | Record | DeadLetter]:
    """Yield the records of a part as `read_part` does, with neighbouring records of columnar files as batches.

    Raises:
        InputChangedError: the file changed since planning, or cannot be read any more. This is not a dead letter,
            because that would be stored under the hash of the earlier content.

    """
    if part.problem is not None:
        yield DeadLetter(reason=part.problem, source=part.source, message=part.message)
        return
    try:
        yield from with_derived(_read(part, fields), part, fields)
        changed = _stamp(part) != part.stamp
    except OSError as error:
        raise InputChangedError(
            f"{part.source} cannot be read any more: {error}; run the build again"
        ) from error
    if changed:
        raise InputChangedError(f"{part.source} changed while it was read; run the build again")


_Reader = Callable[[Part, Fields], Iterator[Batch | Record | DeadLetter]]
_FIELD_READERS: dict[str, _Reader] = {
    "jsonl": lines.read,
    json_documents.FORMAT: json_documents.read,
    "parquet": columns.read_parquet,
    "arrow": arrow_files.read,
    "vec": word_vectors.read,
    **dict.fromkeys(delimited.DELIMITERS, delimited.read),
    **dict.fromkeys(arrays.FORMATS, arrays.read),
    **dict.fromkeys(managed.FORMATS, managed.read),
}
_WHOLE_READERS: dict[str, Callable[[Part], Iterator[Batch | Record | DeadLetter]]] = {
    "avro": columns.read_avro,
    "feed": feeds.read,
    **dict.fromkeys(transcripts.FORMATS, transcripts.read),
    **dict.fromkeys(documents.FORMATS, documents.read),
}
"""Readers of formats whose records have all of their fields."""


def _read(part: Part, fields: Fields) -> Iterator[Batch | Record | DeadLetter]:
    if part.format in _WHOLE_READERS:
        return _WHOLE_READERS[part.format](part)
    return _FIELD_READERS.get(part.format, texts.read)(part, fields)


def _split(file: InputFile, format: str, compression: str, limit: int) -> Iterator[Part]:
    if format in managed.FORMATS:
        return managed.split(file, format, compression, limit)
    if format in arrays.FORMATS:
        return arrays.split(file, format, limit)
    if format in delimited.DELIMITERS:
        return delimited.split(file, format, compression, limit)
    by_rows = {"parquet": columns.split_parquet, "arrow": arrow_files.split, "avro": columns.split_avro}
    if format in by_rows:
        return by_rows[format](file, limit)
    in_order = {
        "jsonl": json_documents.split if _is_json(file) else lines.split,
        "vec": word_vectors.split,
        "feed": feeds.split,
    }
    if format in in_order:
        return in_order[format](file, compression, limit)
    return texts.split(file, format, compression)


def _is_json(file: InputFile) -> bool:
    # Of a file without an ending, only reading it tells whether it is a list.
    return file.sniffed is not None or ".json" in PurePosixPath(file.path.lower()).suffixes


def _stamp(file: InputFile | Part) -> str:
    return "|".join(stamp_of(file.base, path) for path in (file.path, *file.companions))


def _problem(file: InputFile, format: str, reason: str, error: Exception) -> Part:
    # The dead letter has the path beside the message.
    message = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return Part(base=file.base, path=file.path, format=format, problem=reason, message=message, records=0)
