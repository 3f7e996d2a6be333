"""Indexes with named vectors for tests of writes: what is written by the handlers, and what the index then has."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.services.creation import Alteration, Creation
from scannery.serving.services.write import FilteredWrites, Writes
from scannery.v1 import index_pb2 as pb
from scannery.v1.types_pb2 import Datapoint, Filter, Value, Vector
from tests.served import MINILM

__all__ = ["GIVEN", "TEXTS", "Named", "Vectors", "opened", "texts_spec"]

Vectors: TypeAlias = Mapping[str, Sequence[float] | None]

GIVEN: dict[str, Any] = {
    "index": "named",
    "source": {"id": "id", "vector": "vector", "text": "text", "title": "title"},
    "vectors": "optional",
    "attributes": {"show": "string"},
    "named_vectors": {"title": {"dimensions": 3, "distance": "dot"}, "image": {"dimensions": 2}},
    "live": {"seal_rows": 100_000, "merge_segments": 2},
}
"""Vectors are given."""

TEXTS: dict[str, Any] = {
    "index": "named",
    "source": {"id": "id", "text": "text", "title": "title"},
    "attributes": {"show": "string", "year": "int"},
    "named_vectors": {
        "title": {"encoder": {"model": MINILM, "dimensions": 8}},
        "show": {"encoder": {"model": MINILM, "dimensions": 6}, "distance": "dot"},
        "body": {"encoder": {"model": MINILM}},
        "image": {"dimensions": 2},
    },
    "live": {"seal_rows": 100_000, "merge_segments": 2},
}
"""Most vectors are made by encoders; there is no unnamed vector."""


def texts_spec(**keys: Any) -> dict[str, Any]:
    """Return `TEXTS` with other keys."""
    return TEXTS | keys


class Named:
    """One index of a catalog, through the handlers of writes."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog, self._writes = catalog, Writes(catalog)
        self._creation, self._alteration = Creation(catalog, None), Alteration(catalog, None)

    def create(self, spec: Mapping[str, Any], dimensions: int = 0, **fields: Any) -> pb.CreateIndexResponse:
        request = pb.CreateIndexRequest(spec_json=json.dumps(spec), dimensions=dimensions, **fields)
        return self._creation.create(request, Deadline.after(60))

    def alter(self, **changes: Any) -> pb.AlterIndexResponse:
        request = pb.AlterIndexRequest(index="named", changes_json=json.dumps(changes))
        return self._alteration.alter(request, Deadline.after(60))

    def upsert(self, *points: Mapping[str, Any], mask: Sequence[str] = ()) -> int:
        """Write datapoints, with a mask only what it names; return the sequence."""
        request = pb.UpsertRequest(index="named")
        for point in points:
            item = request.upserts.add(datapoint=datapoint(**point))
            item.update_mask.paths.extend(mask)
        return self._writes.upsert(request, Deadline.after(60)).sequence

    def delete(self, *ids: str) -> None:
        self._writes.delete(pb.DeleteRequest(index="named", ids=ids), Deadline.after(60))

    def update_where(self, **attributes: str) -> int:
        """Change attributes of all datapoints; return their number."""
        values = {name: Value(string_value=value) for name, value in attributes.items()}
        request = pb.UpdateWhereRequest(index="named", where=Filter(), attributes=values)
        return FilteredWrites(self.catalog).update(request, Deadline.after(60)).updated

    def vectors(self) -> dict[str, dict[str, list[float]]]:
        """Return the named vectors of each datapoint, by id and name."""
        index = self.catalog.live("named").state.opened()
        found: dict[str, dict[str, list[float]]] = {}
        for segment, rows_R in index.live_rows():
            ids = segment.ids.to_pylist()
            for name, named in segment.named.items():
                for row, vector in zip(rows_R.tolist(), named.vectors(rows_R), strict=True):
                    if vector is not None:
                        found.setdefault(ids[row], {})[name] = vector.tolist()
            for row in rows_R.tolist():
                found.setdefault(ids[row], {})
        return found

    def searchable(self, name: str) -> dict[str, list[float]]:
        """Return the live vectors of a name as a search reads them, by id."""
        index = self.catalog.live("named").state.opened().space(name).index
        found: dict[str, list[float]] = {}
        for segment, rows_R in index.live_rows():
            ids = segment.ids.to_pylist()
            vectors = segment.vectors(rows_R)
            found |= {ids[row]: vector.tolist() for row, vector in zip(rows_R, vectors, strict=True)}
        return found


def datapoint(
    vectors: Vectors | None = None, vector: Sequence[float] | None = None, **fields: Any
) -> Datapoint:
    """Return a datapoint; vectors of even positions are packed, others have values."""
    attributes = fields.pop("attributes", {})
    point = Datapoint(**fields)
    for name, value in attributes.items():
        point.attributes[name].CopyFrom(
            Value(string_value=value) if isinstance(value, str) else Value(int_value=value)
        )
    if vector is not None:
        point.vector.values.extend(vector)
    for number, (name, components) in enumerate((vectors or {}).items()):
        if number % 2:
            point.vectors[name].CopyFrom(Vector(values=components))
        else:
            point.vectors[name].CopyFrom(Vector(packed=np.array(components, "<f4").tobytes()))
    return point


@contextmanager
def opened(store: Path) -> Iterator[Named]:
    """Open a store in this process."""
    catalog = open_embedded_catalog(store, create=True, device="cpu")
    try:
        yield Named(catalog)
    finally:
        catalog.close()
