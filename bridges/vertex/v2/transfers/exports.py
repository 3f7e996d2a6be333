"""Exports: all data objects of a collection, from one snapshot, as files of JSON lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Collection as Names
from contextlib import contextmanager
from functools import partial

from scannery.bridges.vertex.shared.context import Facade, patiently
from scannery.bridges.vertex.shared.line_files import LineFiles, check_still_below
from scannery.bridges.vertex.v2.collections import Collection
from scannery.bridges.vertex.v2.data_objects.messages import StoredObject, stored_object
from scannery.bridges.vertex.v2.transfers.lines import LINE_FIELDS, line_of
from scannery.indexer import AlreadyExistsError, NotFoundError, Store
from scannery.indexer.local.files import scratch_folder
from scannery.runtime.errors import InvalidRequestError
from scannery.v1 import search_pb2
from scannery.vertex.v2 import collections_pb2 as pb

__all__ = ["check_unused", "export", "line_fields"]

PAGE = 1000
_NAME = "data-objects"
_CLAIM = "_exporting.json"
"""Imports leave out names that begin with an underscore."""
_FIELD = "gcs_destination.export_uri"


def export(
    facade: Facade, collection: Collection, target: str, fields: Names[str], report: Callable[[], None]
) -> None:
    """Write all data objects of a collection to a folder; its files appear when all are written.

    Args:
        facade: of the server.
        collection: that is read.
        target: folder or bucket prefix, checked.
        fields: LINE_FIELDS of each line.
        report: called after each page; its errors end the export.

    """
    with scratch_folder("export") as folder, LineFiles(folder, _NAME) as files:
        for page in _pages(facade, collection, vectors="vectors" in fields):
            for stored in page:
                files.add(line_of(stored, collection.schema, fields))
            report()
        # Much may have happened there since the request.
        check_still_below(target, facade.config.contents, _FIELD)
        check_unused(target)
        if files.lines:
            with _claimed(target):
                files.publish(target)


def check_unused(folder: str) -> None:
    """Raise InvalidRequestError if a folder or bucket prefix has files: their lines would be imported, too."""
    try:
        used = bool(Store.open(folder).list())
    except NotFoundError:
        used = False
    if used:
        raise _used()


@contextmanager
def _claimed(folder: str) -> Iterator[None]:
    """Within the context, no other export writes to a folder without files; one that is killed leaves the claim."""
    store = Store.open(folder, create=True)
    try:
        store.create(_CLAIM, b"{}\n")
    except AlreadyExistsError as error:
        raise _used() from error
    try:
        if len(store.list()) > 1:
            raise _used()
        yield
    finally:
        store.delete(_CLAIM)


def _used() -> InvalidRequestError:
    return InvalidRequestError.at(_FIELD, "must be a folder without files, or one that does not exist yet")


def line_fields(request: pb.ExportDataObjectsRequest) -> tuple[str, ...]:
    """Return which LINE_FIELDS the lines have; InvalidRequestError names what is wrong."""
    kind = request.field_filter.WhichOneof("selector")
    if kind is None:
        return LINE_FIELDS
    chosen = (
        request.field_filter.included_fields
        if kind == "included_fields"
        else request.field_filter.excluded_fields
    ).fields
    if not chosen or not {*chosen} <= {*LINE_FIELDS}:
        raise InvalidRequestError.at(
            f"field_filter.{kind}.fields",
            f"must be some of {', '.join(LINE_FIELDS)}, got {list(chosen)!r:.200}",
        )
    return tuple(name for name in LINE_FIELDS if (name in chosen) == (kind == "included_fields"))


def _pages(facade: Facade, collection: Collection, *, vectors: bool) -> Iterator[list[StoredObject]]:
    request = search_pb2.ScanRequest(index=collection.index, page_size=PAGE, return_vector=vectors)
    while True:
        page = patiently(partial(facade.engine.scan, request))
        yield [stored_object(point, collection.schema) for point in page.datapoints]
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token
