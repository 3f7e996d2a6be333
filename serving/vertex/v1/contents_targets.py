"""Where contents are written: into an index as queries see it, or into its future content, built aside."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from scannery.live.maintenance.replacement import Replacement
from scannery.live.prepare import prepare
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.request.write import parse_upsert
from scannery.serving.vertex.shared.engine import Engine
from scannery.serving.vertex.shared.patience import patiently
from scannery.v1 import index_pb2

__all__ = ["Aside", "Live", "Target"]

_PLACE = re.compile(r"upserts\[(\d+)\]\.(?:datapoint\.)?")


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

    def __init__(self, catalog: BaseCatalog, index: str) -> None:
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

        def datapoint(found: re.Match[str]) -> str:
            return f"datapoint {batch[int(found[1])].datapoint.id!r:.200}: "

        raise InvalidRequestError(_PLACE.sub(datapoint, error.message, count=1), field=error.field) from error
