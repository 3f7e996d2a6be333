"""The first records of each file of the input, as the build would read them."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from scannery.indexer.spec.spec import IndexSpec, SourceSpec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.errors import NothingToIndexError
from scannery.pipelines.sources import (  # fmt: skip
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

__all__ = ["SAMPLE_RECORDS", "Sample", "init_sample", "read_sample"]

SAMPLE_RECORDS = 1000
MAX_FILES = 200
PART_BYTES = 1 << 20
"""About what is read of a file; more of a Parquet file with large row groups."""


class _AnyName(frozenset[str]):
    """Every name: readers then return all columns."""

    def __contains__(self, name: object) -> bool:
        return True


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
    is_whole = len(chosen) == len(files)
    for file in chosen:
        found = list(itertools.islice(_items(file, source), share + 1))
        is_whole &= len(found) <= share and not _has_more(file)
        items += found[:share]
    if not items:
        raise NothingToIndexError("the input has no records", field="input")
    records = tuple(item for item in items if isinstance(item, Record))
    letters = tuple(item for item in items if not isinstance(item, Record))
    return Sample(tuple(files), len(chosen), records, letters, is_whole)


def init_sample(inputs: Sequence[str], limit: int = SAMPLE_RECORDS) -> tuple[Sample, dict[str, Any]]:
    """Return up to `limit` records of an input without a spec, and how its CSV files are written, as `source.csv`.

    Raises:
        As `read_sample`.

    """
    # The names under which files of bare vectors have their ids and vectors.
    source = SourceSpec(id="id", vector="vector")
    return read_sample(inputs, source, limit), {}


def _spread(files: Sequence[InputFile], count: int) -> list[InputFile]:
    return [files[len(files) * place // count] for place in range(count)]


def _items(file: InputFile, source: SourceSpec) -> Iterator[Record | DeadLetter]:
    fields = _all_fields(source)
    for part in itertools.islice(_parts(file), 1):
        yield from one_by_one(read_batches(part, fields))


def _parts(file: InputFile) -> Iterator[Part]:
    # The content is not hashed: that would read all of a file that is cut by rows.
    return split_file(dataclasses.replace(file, tag=file.tag or "sample"), PART_BYTES)


def _has_more(file: InputFile) -> bool:
    return len(list(itertools.islice(_parts(file), 2))) > 1


def _all_fields(source: SourceSpec) -> Fields:
    spec = IndexSpec.model_construct(index="sample", source=source, attributes={})
    return dataclasses.replace(Fields.of(spec), names=_AnyName())
