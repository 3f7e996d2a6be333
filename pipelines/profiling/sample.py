"""The first records of each file of the input, as the build would read them."""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any

from scannery.indexer.spec.spec import CsvSpec, IndexSpec, SourceSpec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.errors import NothingToIndexError
from scannery.pipelines.profiling.field_profiles import flattened, numbered_columns, profile_fields
from scannery.pipelines.profiling.field_roles import TEXT_WORDS
from scannery.pipelines.profiling.value_types import is_missing
from scannery.pipelines.sources import (
    Fields,
    InputFile,
    Part,
    Record,
    arrange,
    find_files,
    one_by_one,
    read_batches,
    split_file,
)
from scannery.pipelines.sources.dialects import DELIMITERS, Dialect, find_dialect
from scannery.pipelines.sources.streams import read_blocks

__all__ = ["SAMPLE_RECORDS", "Sample", "init_sample", "read_sample"]

SAMPLE_RECORDS = 1000
MAX_FILES = 200
TEXT_ENDINGS = frozenset({".txt", ".text", ".dat", ".tab"})
TABLE_ROWS = 100
NEVER_TEXT = frozenset({"NULL", "\\N", "NaN", "nan", "#N/A"})
"""Words for no value that no text consists of, as "NA" (Namibia) and "None" may."""
PART_BYTES = 1 << 20
"""About what is read of a file; more of a Parquet file with large row groups."""


@dataclasses.dataclass(frozen=True)
class Sample:
    """What was read of the input."""

    files: tuple[InputFile, ...]
    """All files of the input."""

    read_files: int
    """Number of files that the sample comes from."""

    records: tuple[Record, ...]
    letters: tuple[DeadLetter, ...]
    """One for each record, or file, that could not be parsed."""

    is_whole: bool
    """Whether these are all records of the input."""

    formats: frozenset[str] = frozenset()
    """Formats of the files that were read, as parts name them."""


def read_sample(inputs: Sequence[str], source: SourceSpec, limit: int = SAMPLE_RECORDS) -> Sample:
    """Return up to `limit` records, from the beginnings of files that are spread evenly over the input.

    Args:
        inputs: files, folders and patterns, as a build takes them.
        source: of the spec; its field names are not used.
        limit: most records.

    Raises:
        InputNotFoundError, UnknownFormatError, SpecConflictError: as a build raises them.
        NothingToIndexError: no file has a record.

    """
    files = arrange(find_files(inputs), source)
    chosen = _spread(files, min(len(files), MAX_FILES, limit))
    share = max(1, limit // max(1, len(chosen)))
    items: list[Record | DeadLetter] = []
    is_whole, formats, fields = len(chosen) == len(files), set[str](), _all_fields(source)
    for file in chosen:
        part = next(_parts(file), None)
        if part is None:
            continue
        formats.add(part.format)
        batch = list(itertools.islice(one_by_one(read_batches(part, fields)), share + 1))
        is_whole &= len(batch) <= share and not _has_more(file)
        items += batch[:share]
    if not items:
        raise NothingToIndexError("the input has no records", field="input")
    records = tuple(item for item in items if isinstance(item, Record))
    letters = tuple(item for item in items if not isinstance(item, Record))
    return Sample(tuple(files), len(chosen), records, letters, is_whole, frozenset(formats))


def init_sample(inputs: Sequence[str], limit: int = SAMPLE_RECORDS) -> tuple[Sample, dict[str, Any]]:
    """Return up to `limit` records of an input without a spec, and the keys of `source` that reading it takes.

    Raises:
        As `read_sample`.

    """
    # The names under which files of bare vectors have their ids and vectors.
    source = SourceSpec(id="id", vector="vector")
    if _are_tables([file for file in find_files(inputs) if not file.problem]):
        source = SourceSpec(id="id", vector="vector", format="csv")
    sample = read_sample(inputs, source, limit)
    if path := _path_of_records(sample):
        source = source.model_copy(update={"records": path})
        sample = read_sample(inputs, source, limit)
    if (columns := numbered_columns([record.fields for record in sample.records])) is not None:
        source = source.model_copy(update={"vector": columns})
        sample = read_sample(inputs, source, limit)
    parts = [part for file in sample.files[:MAX_FILES] for part in itertools.islice(_parts(file), 1)]
    tables = [part for part in parts if part.format in DELIMITERS]
    csv = _common_dialect(tables)
    if tables and (words := _words_for_nothing(sample)):
        csv["missing"] = words
        csv_spec = CsvSpec(missing=words)
        sample = read_sample(inputs, source.model_copy(update={"csv": csv_spec}), limit)
    reading: dict[str, Any] = {} if source.format == "auto" else {"format": source.format}
    reading |= {"records": path} if path else {}
    return sample, reading | ({"csv": csv} if csv else {})


def _path_of_records(sample: Sample) -> str | None:
    """Return the path of the longest list of objects, if each file is one object of JSON around it; else None."""
    records = [record.fields for record in sample.records]
    are_json = all(".json" in PurePosixPath(file.path).suffixes for file in sample.files)
    if not are_json or len(records) != sample.read_files or sample.letters:
        return None
    if any(profile.words >= TEXT_WORDS for profile in profile_fields(records)):
        return None  # each object is a record itself, such as a mail with its recipients
    counts: dict[str, int] = {}
    for record in records:
        for parts, value in flattened(record):
            if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
                path = ".".join(parts)
                counts[path] = counts.get(path, 0) + len(value)
    best = max(counts, key=lambda path: counts[path], default=None)
    return best if best is not None and counts[best] > len(records) else None


def _words_for_nothing(sample: Sample) -> list[str]:
    """Return the texts of cells that stand for no value, such as NULL among numbers.

    They count in all columns, so none is taken that could be a value of a column of texts.
    """
    records = [record.fields for record in sample.records]
    texts = {profile.path for profile in profile_fields(records) if profile.is_text}
    words: dict[str, bool] = {}
    for name, value in (item for record in records for item in record.items()):
        if isinstance(value, str) and is_missing(value):
            words[value] = words.get(value, True) and (name not in texts or value in NEVER_TEXT)
    return [word for word, is_never_text in words.items() if is_never_text]


def _are_tables(files: Sequence[InputFile]) -> bool:
    """Return whether files that end as texts do are tables: spreadsheets save those with tabs as `.txt`."""
    return bool(files) and all(
        PurePosixPath(file.path).suffix.lower() in TEXT_ENDINGS and _is_table(file)
        for file in files[:MAX_FILES]
    )


def _is_table(file: InputFile) -> bool:
    blocks = itertools.islice(read_blocks(file.base, file.path, ""), 1)
    head = b"".join(blocks)
    dialect = find_dialect(iter([head]), "csv", None, file.source)
    text = head.decode(dialect.encoding, "replace").removeprefix("\ufeff")
    rows = [row for row in itertools.islice(dialect.reader(io.StringIO(text, newline="")), TABLE_ROWS) if row]
    # Prose can have a comma in each of its few lines.
    least = 2 if dialect.delimiter == "\t" else 3
    cells = {len(row) for row in rows}
    return len(cells) == 1 and cells.pop() >= least and len(rows) >= least and all(rows[0])


def _common_dialect(parts: Sequence[Part]) -> dict[str, Any]:
    """Return how all CSV files are written, where that is not the usual way and the same for all."""
    dialects = {part.dialect for part in parts}
    if len(dialects) != 1 or dialects == {""}:
        return {}
    dialect = Dialect.of(parts[0].dialect, parts[0].format)
    usual = Dialect(delimiter=DELIMITERS[parts[0].format])
    named = {
        "delimiter": "tab" if dialect.delimiter == "\t" else dialect.delimiter,
        "encoding": dialect.encoding,
        "escape": dialect.escape,
    }
    settings = {key: value for key, value in named.items() if getattr(dialect, key) != getattr(usual, key)}
    return settings | ({"header": dialect.above + 1} if dialect.above else {})


def _spread(files: Sequence[InputFile], count: int) -> list[InputFile]:
    return [files[len(files) * number // count] for number in range(count)]


def _parts(file: InputFile) -> Iterator[Part]:
    # The content is not hashed: that would read all of a file that is cut by rows.
    return split_file(dataclasses.replace(file, tag=file.tag or "sample"), PART_BYTES)


def _has_more(file: InputFile) -> bool:
    return len(list(itertools.islice(_parts(file), 2))) > 1


def _all_fields(source: SourceSpec) -> Fields:
    spec = IndexSpec.model_construct(index="sample", source=source, attributes={})
    return dataclasses.replace(Fields.of(spec), whole=True)
