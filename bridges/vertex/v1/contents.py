"""Writes folders of contents into indexes: batch updates.

A request names a folder; only folders below the operator's roots are read. Everything is read and checked once before
anything is written, so that a folder with a wrong record changes nothing. Then it is read again and written in batches
(contents.py): queries see the new datapoints as they arrive. With `isCompleteOverwrite` the batches are built
aside, and queries see the old datapoints until all new ones take their place at once.

Where contents are written: into an index as queries see it, or into its future content, built aside.

Records of contents, in the JSON form of the layout, as datapoints of the service.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from scannery.bridges.vertex.shared.context import Facade, patiently
from scannery.bridges.vertex.shared.line_files import folder_below
from scannery.bridges.vertex.v1.datapoints import own_datapoint
from scannery.bridges.vertex.v1.index_settings import Contents
from scannery.indexer import IndexSpec, InvalidRecordError, Manifest
from scannery.indexer.contents import ContentsReader, ContentsRecord
from scannery.live.maintenance.replacement import Replacement
from scannery.live.prepare import prepare
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.bridging import Deadline, Engine
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.request.write import parse_upsert
from scannery.v1 import index_pb2
from scannery.vertex.v1 import index_pb2 as pb
from scannery.vertex.v1.index_pb2 import IndexDatapoint, NearestNeighborSearchOperationMetadata

__all__ = ["ContentsWriter", "Live", "RecordError", "Target"]


_PREFIX = re.compile(r"upserts\[(\d+)\]\.(?:datapoint\.)?")


class Target(Protocol):
    """Takes what contents say, in batches, from one thread."""

    def upsert(self, batch: Sequence[index_pb2.Upsert]) -> None:
        """Write datapoints."""

    def delete(self, ids: Sequence[str]) -> None:
        """Delete datapoints; unknown ids are no error."""

    def end(self) -> None:
        """Finish: all that was taken is visible."""

    def close(self) -> None:
        """Free what is held."""


class Live:
    """An index as queries see it: each batch is visible at once."""

    def __init__(self, engine: Engine, index: str) -> None:
        """Write into an index by the services of this server."""
        self._engine, self._index = engine, index

    def upsert(self, batch: Sequence[index_pb2.Upsert]) -> None:
        """Write datapoints."""
        request = index_pb2.UpsertRequest(index=self._index, upserts=batch)
        with _named_by_ids(batch):
            patiently(partial(self._engine.upsert, request))

    def delete(self, ids: Sequence[str]) -> None:
        """Delete datapoints."""
        request = index_pb2.DeleteRequest(index=self._index, ids=ids)
        patiently(partial(self._engine.delete, request))

    def end(self) -> None:
        """Do nothing: all batches are visible."""

    def close(self) -> None:
        """Do nothing."""


class Aside:
    """The future content of an index: nothing is visible before the end, and then all of it is."""

    def __init__(self, catalog: Catalog, index: str) -> None:
        """Begin; raises as `Replacement`, and UnknownIndexError."""
        self._catalog, self._index = catalog, index
        self._replacement: Replacement = catalog.replacement(index)

    def upsert(self, batch: Sequence[index_pb2.Upsert]) -> None:
        """Take datapoints; raises InvalidRequestError as a write would."""
        request = index_pb2.UpsertRequest(index=self._index, upserts=batch)
        manifest, deadline = self._replacement.manifest, Deadline.after(None)
        with _named_by_ids(batch):
            upserts = parse_upsert(request, manifest, deadline)
        prepared = prepare(upserts, manifest, self._catalog.encoders, deadline)
        self._replacement.add(prepared.mutation.rows)

    def delete(self, ids: Sequence[str]) -> None:
        """Do nothing: what is not written is not there."""

    def end(self) -> None:
        """Publish, and open the new version here; other workers follow within about a second."""
        self._replacement.publish()
        self._catalog.open_created(self._index)

    def close(self) -> None:
        """Give up what is not published."""
        self._replacement.close()


@contextmanager
def _named_by_ids(batch: Sequence[index_pb2.Upsert]) -> Iterator[None]:
    """Within the context, errors about an item of a batch name its datapoint: callers do not know of batches."""
    try:
        yield
    except InvalidRequestError as error:

        def datapoint(match: re.Match[str]) -> str:
            return f"datapoint {batch[int(match[1])].datapoint.id!r:.200}: "

        raise InvalidRequestError(
            _PREFIX.sub(datapoint, error.message, count=1), field=error.field
        ) from error


RecordError = NearestNeighborSearchOperationMetadata.RecordError
_NUMBERS = ("value_int", "value_float", "value_double")


class RefusedRecordError(Exception):
    """The record cannot be a datapoint.

    Attributes:
        category: the service's name for the error.

    """

    def __init__(self, message: str, category: str) -> None:
        super().__init__(message)
        self.category = category


def to_datapoint(fields: Mapping[str, Any]) -> IndexDatapoint:
    """Return the datapoint of a record; raises RefusedRecordError. Keys that the layout does not have are ignored."""
    id = fields.get("id")
    if not isinstance(id, (str, int)) or isinstance(id, bool) or id == "":
        raise RefusedRecordError(
            f"id: must be a string that is not empty, or an integer, got {id!r:.80}", "INVALID_EMBEDDING_ID"
        )
    point = IndexDatapoint(datapoint_id=str(id))
    point.feature_vector.extend(_numbers(fields.get("embedding"), "embedding", "INVALID_EMBEDDING"))
    _add_sparse(point, fields.get("sparse_embedding"))
    for entry in _entries(fields.get("restricts"), "restricts", ("allow", "deny")):
        point.restricts.add(
            namespace=entry["namespace"],
            allow_list=_tokens(entry, "allow"),
            deny_list=_tokens(entry, "deny"),
        )
    for entry in _entries(fields.get("numeric_restricts"), "numeric_restricts", (*_NUMBERS, "op")):
        _add_number(point, entry)
    if (tag := fields.get("crowding_tag")) is not None:
        if not isinstance(tag, str):
            raise RefusedRecordError("crowding_tag: must be a string", "PARSING_ERROR")
        point.crowding_tag.crowding_attribute = tag
    if (metadata := fields.get("embedding_metadata")) is not None:
        _add_metadata(point, metadata)
    return point


def _add_sparse(point: IndexDatapoint, sparse: object) -> None:
    if not sparse:
        return
    if not isinstance(sparse, Mapping):
        raise RefusedRecordError("sparse_embedding: must be an object", "INVALID_SPARSE_EMBEDDING")
    if not any(sparse.values()):  # of all keys, since a misspelt key may hold the values
        return
    values = _numbers(sparse.get("values"), "sparse_embedding.values", "INVALID_SPARSE_EMBEDDING")
    dimensions = sparse.get("dimensions")
    if not isinstance(dimensions, list) or not all(
        isinstance(at, int) and not isinstance(at, bool) and 0 <= at < 1 << 63 for at in dimensions
    ):
        raise RefusedRecordError(
            "sparse_embedding.dimensions: must be integers from 0", "INVALID_SPARSE_DIMENSIONS"
        )
    if len(dimensions) != len(values):
        raise RefusedRecordError(
            f"sparse_embedding: has {len(values)} values and {len(dimensions)} dimensions",
            "INVALID_SPARSE_DIMENSIONS",
        )
    point.sparse_embedding.values.extend(values)
    point.sparse_embedding.dimensions.extend(dimensions)


def _add_number(point: IndexDatapoint, entry: Mapping[str, Any]) -> None:
    name = entry["namespace"]
    if entry.get("op") is not None:
        raise RefusedRecordError(
            f"numeric_restricts: {name!r} has an operator, which only queries have", "OP_IN_DATAPOINT"
        )
    numbers = {key: entry[key] for key in _NUMBERS if entry.get(key) is not None}
    if len(numbers) > 1:
        raise RefusedRecordError(
            f"numeric_restricts: {name!r} must have one of {', '.join(_NUMBERS)}", "MULTIPLE_VALUES"
        )
    if not numbers or not all(_is_number(value, key) for key, value in numbers.items()):
        raise RefusedRecordError(
            f"numeric_restricts: {name!r} must have a finite number as one of {', '.join(_NUMBERS)}",
            "INVALID_NUMERIC_VALUE",
        )
    point.numeric_restricts.add(namespace=name, **numbers)


def _add_metadata(point: IndexDatapoint, metadata: object) -> None:
    if not isinstance(metadata, dict):
        raise RefusedRecordError("embedding_metadata: must be an object", "PARSING_ERROR")
    try:
        point.embedding_metadata.update(metadata)
    except (TypeError, ValueError) as error:
        raise RefusedRecordError(f"embedding_metadata: {error}", "PARSING_ERROR") from error


def _entries(value: object, field: str, keys: tuple[str, ...]) -> Iterator[Mapping[str, Any]]:
    if value is None:
        return
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise RefusedRecordError(f"{field}: must be a list of objects", "PARSING_ERROR")
    seen = set()
    for entry in value:
        name = entry.get("namespace")
        if not isinstance(name, str) or not name:
            raise RefusedRecordError(f"{field}: each must have a namespace, a string", "NAMESPACE_MISSING")
        if name in seen:
            raise RefusedRecordError(f"{field}: the namespace {name!r} occurs twice", "DUPLICATE_NAMESPACE")
        unknown = [key for key in entry if key not in ("namespace", *keys)]
        if unknown:  # for example `allow_list`: to ignore it would lose its tokens without an error
            raise RefusedRecordError(
                f"{field}: {name!r} has an unknown key {unknown[0]!r}; known are namespace, {', '.join(keys)}",
                "PARSING_ERROR",
            )
        seen.add(name)
        yield entry


def _tokens(entry: Mapping[str, Any], key: str) -> list[str]:
    tokens = entry.get(key) or []
    if not isinstance(tokens, list) or not all(isinstance(token, str) and token for token in tokens):
        raise RefusedRecordError(
            f"restricts: {entry['namespace']!r}: {key} must be a list of strings that are not empty",
            "INVALID_TOKEN_VALUE",
        )
    return tokens


def _numbers(value: object, field: str, category: str) -> list[float]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(_is_number(item) for item in value):
        raise RefusedRecordError(f"{field}: must be a list of finite numbers", category)
    return value


def _is_number(value: object, key: str = "") -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    if key == "value_int":
        return isinstance(value, int) and -(1 << 63) <= value < 1 << 63
    return -3.4e38 < value < 3.4e38 and math.isfinite(value)


_FIELD = "index.metadata.contentsDeltaUri"
BATCH_ROWS = 500
MAX_PARTIAL_ERRORS = 10
"""Errors that are told of a file."""
MAX_TOLD_FILES, MAX_TOLD_ERRORS = 1000, 1000
"""Files, and errors of all of them, that are told: they are kept with all other operations."""
MAX_TOLD_CHARACTERS = 512
"""Characters of an id or a message that is told."""

Progress = Callable[[pb.NearestNeighborSearchOperationMetadata], None]
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

    def write(self, index: str, contents: Contents, target: Target, report: Progress) -> None:
        """Write a folder into an index.

        Args:
            index: name of the index.
            contents: the folder, checked.
            target: as `target` returned it.
            report: called with what was read so far.

        Raises:
            InvalidRequestError: a record is wrong, and nothing was written; or the folder has changed while it was
                read.

        """
        reader = self._facade.config.reader
        assert reader is not None
        manifest = self._facade.catalog.manifest(index)
        uri = folder_below(contents.uri, self._facade.config.contents, _FIELD)
        try:
            checked = _validate(reader, uri, manifest, report)
        except InvalidRecordError as error:
            raise InvalidRequestError(f"{_FIELD}: {error.message}", field=_FIELD) from error
        count = 0
        for batch in _batches(_changes(reader, uri, manifest.spec)):
            _write(target, batch)
            count += len(batch)
        if count != checked:
            raise InvalidRequestError(
                f"{_FIELD}: the folder has changed while it was read: it had {checked} records, then {count}",
                field=_FIELD,
            )
        target.end()


def _validate(reader: ContentsReader, uri: str, manifest: Manifest, report: Progress) -> int:
    """Read everything, and return the number of records; InvalidRequestError, after `report`, if one is wrong."""
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
    report(pb.NearestNeighborSearchOperationMetadata(content_validation_stats=shown))
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
    categories = RecordError.RecordErrorType.keys()
    return RecordError(
        error_type=RecordError.RecordErrorType.Value(category if category in categories else "PARSING_ERROR"),
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
