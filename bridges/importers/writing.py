"""Write a collection of another system into an index, through the same calls as any other datapoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from scannery.bridges.importers.collection import PeerCollection, PeerRecord, record_problem
from scannery.client import AlreadyExistsError, Client, Index, IndexInfo, NewDatapoint, NotFoundError
from scannery.pipelines.errors import PeerError

__all__ = ["ImportReport", "ImportSettings", "import_collection"]

BATCH_ROWS = 500
"""Rows in one call; a repeated import asks for the ids of as many at once."""


@dataclass(frozen=True, kw_only=True)
class ImportSettings:
    """How a collection becomes an index."""

    text: str | None = None
    """Name of the payload's field that is the text; None: that which the system names, if any."""
    payload: Literal["attributes", "payload"] = "attributes"
    """What the fields of a payload become: attributes, which filters can use, or a payload that is only returned."""
    encoder: str | None = None
    """The model that made the vectors, for text queries."""
    encoders: Mapping[str, str] = field(default_factory=dict)
    """The models that made named vectors, by name."""
    lexical: bool = False
    overwrite: bool = False
    """Also write rows whose ids the index has."""
    skip_invalid: bool = False
    """Leave rows out that cannot be written, rather than end."""
    timeout_s: float = 60.0


@dataclass(kw_only=True)
class ImportReport:
    """What an import did."""

    index: str
    source: str
    read: int = 0
    written: int = 0
    present: int = 0
    """Rows that the index had, which were not written again."""
    left_out: int = 0
    """Rows that cannot be written."""
    examples: list[str] = field(default_factory=list)
    """Why, of the first ones."""
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0


MAX_EXAMPLES = 5
NOT_ATTRIBUTES = frozenset({"id", "document_id"})


def import_collection(
    client: Client,
    name: str,
    collection: PeerCollection,
    settings: ImportSettings,
    progress: Callable[[int], None] | None = None,
) -> ImportReport:
    """Write all rows of a collection into an index, which is created if there is none.

    Repeating it goes on where an earlier run ended: rows that are there are not written again.

    Args:
        client: of the index.
        name: of the index.
        collection: is read.
        settings: how.
        progress: is called with the number of rows that were read so far.

    Raises:
        PeerError: the collection does not fit the index, or a row is invalid.
        ScanneryError: a write failed; what was written before stays.

    """
    started = time.monotonic()
    report = ImportReport(index=name, source=collection.name, notes=list(collection.notes))
    index, is_new = _opened(client, name, collection, settings)
    rows = _Rows(
        index, collection, settings, report, check=not is_new and not settings.overwrite, progress=progress
    )
    done = index.upsert_many(rows.points(), batch_size=BATCH_ROWS, timeout_s=settings.timeout_s)
    report.written, report.seconds = done.written, time.monotonic() - started
    return report


def _opened(
    client: Client, name: str, collection: PeerCollection, settings: ImportSettings
) -> tuple[Index, bool]:
    """Return the index, and whether it is new; PeerError if one that exists does not fit."""
    index = client.index(name)
    try:
        info = index.stats(timeout_s=settings.timeout_s)
    except NotFoundError:
        try:
            spec = _spec(name, collection, settings)
            client.create_index(spec, dimensions=collection.dimensions or None, timeout_s=settings.timeout_s)
        except AlreadyExistsError:  # by another process, just now
            return _opened(client, name, collection, settings)
        try:
            _check(index.stats(timeout_s=settings.timeout_s), collection)
        except PeerError:  # an encoder has other dimensions than the vectors
            client.drop_index(name, timeout_s=settings.timeout_s)
            raise
        return index, True
    _check(info, collection)
    return index, False


def _check(info: IndexInfo, collection: PeerCollection) -> None:
    """Raise PeerError if the vectors of a collection do not fit an index."""
    existing, imported = (info.dimensions, info.distance), (collection.dimensions, collection.distance)
    if existing != imported and (collection.dimensions or info.dimensions):
        raise PeerError(
            f"index {info.name!r} has {existing[0]} dimensions and {existing[1]}, the collection "
            f"{imported[0]} and {imported[1]}; choose another --index"
        )
    for name, vectors in collection.named.items():
        vector_info = info.named_vectors.get(name)
        if vector_info is None or (vector_info.dimensions, vector_info.distance) != vectors:
            has = (
                "no such vector"
                if vector_info is None
                else f"{vector_info.dimensions} dimensions and {vector_info.distance}"
            )
            raise PeerError(
                f"vectors {name!r}: index {info.name!r} has {has}, the collection {vectors.dimensions} dimensions and "
                f"{vectors.distance}; choose another --index"
            )


def _spec(name: str, collection: PeerCollection, settings: ImportSettings) -> dict[str, Any]:
    if settings.encoder and not collection.dimensions:
        raise PeerError(f"--encoder: the vectors have names, give NAME=MODEL: {', '.join(collection.named)}")
    for vector in settings.encoders.keys() - collection.named.keys():
        raise PeerError(f"--encoder: the source has no vector {vector!r}: {', '.join(collection.named)}")
    vector_field = {"vector": "vector"} if collection.dimensions else {}
    named = {
        vector: {"distance": vectors.distance, **_made(vectors.dimensions, settings.encoders.get(vector))}
        for vector, vectors in collection.named.items()
    }
    return {
        "index": name,
        "source": {"id": "id", "text": "text", **vector_field},
        "distance": collection.distance,
        **({"named_vectors": named, "vectors": "optional"} if named else {}),
        **({"dynamic": True} if settings.payload == "attributes" else {}),
        **({"encoder": {"model": settings.encoder}} if settings.encoder else {}),
        **({"lexical": True} if settings.lexical else {}),
    }


def _made(dimensions: int, model: str | None) -> dict[str, Any]:
    return {"dimensions": dimensions} if model is None else {"encoder": {"model": model}}


class _Rows:
    """The rows of a collection as datapoints."""

    def __init__(
        self,
        index: Index,
        collection: PeerCollection,
        settings: ImportSettings,
        report: ImportReport,
        *,
        check: bool,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._index, self._collection, self._settings = index, collection, settings
        self._report, self._check, self._progress = report, check, progress

    def points(self) -> Iterator[NewDatapoint]:
        """Yield those that are to be written."""
        report = self._report
        for batch in self._collection.records(BATCH_ROWS):
            present = self._present([record.id for record in batch])
            report.read += len(batch)
            for record in batch:
                if record.id in present:
                    report.present += 1
                elif self._is_valid(record):
                    yield self._point(record)
            if self._progress is not None:
                self._progress(report.read)

    def _present(self, ids: list[str]) -> set[str]:
        if not self._check or not ids:
            return set()
        stored = self._index.get(ids, fields=[], timeout_s=self._settings.timeout_s)
        return {point.id for point in stored if point is not None}

    def _is_valid(self, record: PeerRecord) -> bool:
        problem = record_problem(record, self._collection)
        if problem is None:
            return True
        if not self._settings.skip_invalid:
            raise PeerError(f"row {record.id!r:.200}: {problem}; --skip-invalid leaves such rows out")
        self._report.left_out += 1
        if len(self._report.examples) < MAX_EXAMPLES:
            self._report.examples.append(f"{record.id!r:.200}: {problem}")
        return False

    def _point(self, record: PeerRecord) -> NewDatapoint:
        payload, text = dict(record.payload), record.text
        if self._settings.text is not None:
            content = payload.pop(self._settings.text, None)
            text = None if content is None else str(content)
        point: NewDatapoint = {"id": record.id, "vector": record.vector}
        if record.vectors:
            point["vectors"] = record.vectors
        if text:
            point["text"] = text
        if self._settings.payload == "attributes":
            remainder = {name: payload.pop(name) for name in [*payload] if not _can_be_attribute(name)}
            point.update({"attributes": payload} if payload else {})
            payload = remainder
        point.update({"payload": payload} if payload else {})
        return point


def _can_be_attribute(name: str) -> bool:
    """Return whether an undeclared attribute can have a name; others stand for something else in filters."""
    return bool(name) and name not in NOT_ATTRIBUTES and name[0] != "$"
