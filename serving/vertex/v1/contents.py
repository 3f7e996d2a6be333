"""Writes folders of contents into indexes: batch updates.

A request names a folder; only folders below the operator's roots are read. Everything is read and checked once before
anything is written, so that a folder with a wrong record changes nothing. Then it is read again and written in batches
(contents_targets.py): queries see the new datapoints as they arrive. With `isCompleteOverwrite` the batches are built
aside, and queries see the old datapoints until all new ones take their place at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from scannery.indexer import IndexSpec, InvalidRecordError, Manifest
from scannery.indexer.contents import ContentsReader, ContentsRecord
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.vertex.shared.context import Facade
from scannery.serving.vertex.shared.roots import folder_below
from scannery.serving.vertex.v1.contents_targets import Aside, Live, Target
from scannery.serving.vertex.v1.datapoints import own_datapoint
from scannery.serving.vertex.v1.index_settings import Contents
from scannery.serving.vertex.v1.record_conversion import RecordError, RefusedRecordError, to_datapoint
from scannery.v1 import index_pb2
from scannery.vertex.v1 import index_pb2 as pb

__all__ = ["ContentsWriter"]

_FIELD = "index.metadata.contentsDeltaUri"
BATCH_ROWS = 500
MAX_PARTIAL_ERRORS = 10
"""Errors that are told of a file."""
MAX_TOLD_FILES, MAX_TOLD_ERRORS = 1000, 1000
"""Files, and errors of all of them, that are told: they are kept with all other operations."""
MAX_TOLD_CHARACTERS = 512
"""Of an id or a message that is told."""

Told = Callable[[pb.NearestNeighborSearchOperationMetadata], None]
Stats = pb.NearestNeighborSearchOperationMetadata.ContentValidationStats


class ContentsWriter:
    """Reads folders below the operator's roots into indexes. Safe to use from several threads."""

    def __init__(self, facade: Facade) -> None:
        """Read as the options of a server say."""
        self._facade = facade

    def check(self, contents: Contents) -> None:
        """Raise InvalidRequestError unless the folder is below one of the roots."""
        folder_below(contents.uri, self._facade.config.contents, _FIELD)

    def target(self, index: str, contents: Contents) -> Target:
        """Return where a folder is written. Stream updates that are acknowledged from now on are not overwritten."""
        if contents.overwrite:
            return Aside(self._facade.catalog, index)
        return Live(self._facade.engine, index)

    def write(self, index: str, contents: Contents, target: Target, told: Told) -> None:
        """Write a folder into an index.

        Args:
            index: name of the index.
            contents: the folder, checked.
            target: as `target` returned it.
            told: called with what was read so far.

        Raises:
            InvalidRequestError: a record is wrong, and nothing was written; or the folder has changed while it was
                read.

        """
        reader = self._facade.config.reader
        assert reader is not None
        manifest = self._facade.catalog.manifest(index)
        uri = folder_below(contents.uri, self._facade.config.contents, _FIELD)
        try:
            checked = _validate(reader, uri, manifest, told)
        except InvalidRecordError as error:
            raise InvalidRequestError(f"{_FIELD}: {error.message}", field=_FIELD) from error
        written = 0
        for batch in _batches(_changes(reader, uri, manifest.spec)):
            _write(target, batch)
            written += len(batch)
        if written != checked:
            raise InvalidRequestError(
                f"{_FIELD}: the folder has changed while it was read: it had {checked} records, then {written}",
                field=_FIELD,
            )
        target.end()


def _validate(reader: ContentsReader, uri: str, manifest: Manifest, told: Told) -> int:
    """Read everything, and return the number of records; InvalidRequestError if one is wrong, after `told` has all."""
    count = 0
    files: dict[str, Stats] = {}
    seen: set[str] = set()
    first, told_errors = "", 0
    for count, item in enumerate(reader(uri), 1):  # noqa: B007  the last one is the result
        stats = files.setdefault(item.source, Stats(source_gcs_uri=item.source))
        problem = _problem(item, manifest, seen)
        if problem is None:
            stats.valid_record_count += 1
            stats.valid_sparse_record_count += bool((item.fields or {}).get("sparse_embedding"))
            continue
        stats.invalid_record_count += 1
        first = first or f"{item.source}: {problem.error_message}"
        if len(stats.partial_errors) < MAX_PARTIAL_ERRORS and told_errors < MAX_TOLD_ERRORS:
            stats.partial_errors.append(problem)
            told_errors += 1
    shown = sorted(files.values(), key=lambda stats: not stats.invalid_record_count)[:MAX_TOLD_FILES]
    told(pb.NearestNeighborSearchOperationMetadata(content_validation_stats=shown))
    wrong = sum(stats.invalid_record_count for stats in files.values())
    if wrong:
        raise InvalidRequestError(
            f"{_FIELD}: {wrong} records cannot be written, nothing was written; the first: {first}",
            field=_FIELD,
        )
    return count


def _problem(item: ContentsRecord, manifest: Manifest, seen: set[str]) -> RecordError | None:
    if item.problem:
        return _error(item, item.problem, item.category or "PARSING_ERROR", item.id)
    if item.fields is None:
        return None
    id = str(item.fields.get("id", ""))
    try:
        point = to_datapoint(item.fields)
        size = len(point.feature_vector)
        if size not in (0, manifest.dimensions):
            raise RefusedRecordError(
                f"embedding: must have {manifest.dimensions} numbers, got {size}", "EMBEDDING_SIZE_MISMATCH"
            )
        if manifest.spec.distance == "cosine" and size and not any(point.feature_vector):
            raise RefusedRecordError("embedding: must not be all zeros", "INVALID_EMBEDDING")
        own_datapoint(point, manifest.spec, "record")
        if id in seen:
            raise RefusedRecordError("id: occurs twice", "INVALID_EMBEDDING_ID")
        seen.add(id)
    except RefusedRecordError as error:
        return _error(item, str(error), error.category, id)
    except InvalidRequestError as error:
        return _error(item, error.message.removeprefix("record."), "PARSING_ERROR", id)
    return None


def _error(item: ContentsRecord, message: str, category: str, id: str) -> RecordError:
    known = RecordError.RecordErrorType.keys()
    return RecordError(
        error_type=RecordError.RecordErrorType.Value(category if category in known else "PARSING_ERROR"),
        error_message=message[:MAX_TOLD_CHARACTERS],
        source_gcs_uri=item.source,
        embedding_id=id[:MAX_TOLD_CHARACTERS],
        raw_record=item.excerpt,
    )


def _changes(reader: ContentsReader, uri: str, spec: IndexSpec) -> Iterator[index_pb2.Upsert | str]:
    """Yield the datapoints to write, and the ids to delete."""
    for item in reader(uri):
        if item.deleted_id:
            yield item.deleted_id
        elif item.fields is not None:
            yield index_pb2.Upsert(datapoint=own_datapoint(to_datapoint(item.fields), spec, "record"))
        else:  # the folder has changed since it was checked
            raise InvalidRequestError(f"{_FIELD}: {item.source}: {item.problem}", field=_FIELD)


def _batches(
    changes: Iterator[index_pb2.Upsert | str],
) -> Iterator[list[index_pb2.Upsert] | list[str]]:
    batch: list[index_pb2.Upsert | str] = []
    for change in changes:
        if batch and (len(batch) == BATCH_ROWS or type(batch[0]) is not type(change)):
            yield batch  # type: ignore[misc]  # all of one type
            batch = []
        batch.append(change)
    if batch:
        yield batch  # type: ignore[misc]


def _write(target: Target, batch: list[index_pb2.Upsert] | list[str]) -> None:
    try:
        if isinstance(batch[0], str):
            target.delete(batch)
        else:
            target.upsert(batch)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{_FIELD}: {error.message}", field=_FIELD) from error
