"""Qdrant: a folder of its local mode, or a server by its URL (the key in QDRANT_API_KEY)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from scannery.bridges.importers.collection import (
    PeerCollection,
    PeerOptions,
    PeerRecord,
    PeerVectors,
    as_identifier,
    chosen,
    distance_of,
    json_value,
    loaded,
    names_in_index,
    rename_notes,
)
from scannery.bridges.importers.pickles import only_plain_pickles
from scannery.indexer import Distance
from scannery.pipelines.errors import InputNotFoundError, PeerError

__all__ = ["open_qdrant"]

UNNAMED = ""
_MODELS = "qdrant_client.http.models.models"
DISTANCES: dict[str, Distance] = {"Cosine": "cosine", "Dot": "dot", "Euclid": "squared_l2"}


def open_qdrant(source: str, options: PeerOptions, stack: ExitStack) -> PeerCollection:
    """Return a collection of a folder or a server."""
    client = _client(source)
    stack.callback(client.close)
    names = [each.name for each in client.get_collections().collections]
    name = chosen(options.collection, names, what="collections", option="--collection")
    info = client.get_collection(name)
    params, sparse = info.config.params.vectors, info.config.params.sparse_vectors or {}
    if not params:
        raise PeerError(f"collection {name!r} has no dense vectors, only sparse ones ({', '.join(sparse)})")
    notes = [f"sparse vectors are left out: {', '.join(sorted(sparse))}"] if sparse else []
    usable = _usable(name, params, options, notes)
    if any(_distance(each) == "Cosine" for each in usable.values()):
        notes.append("servers of Qdrant keep vectors for cosine with length 1, and so they are imported")
    vectors = {
        vector: PeerVectors(each.size, distance_of(_distance(each), DISTANCES, options.distance))
        for vector, each in usable.items()
    }
    # The only vector is the one without a name in an index, as is Qdrant's own one without a name.
    unnamed = next(iter(vectors)) if len(vectors) == 1 else UNNAMED
    own_names = names_in_index([vector for vector in vectors if vector != unnamed])
    unnamed_vectors = vectors.get(unnamed, PeerVectors(0, "cosine"))
    vector_names = True if UNNAMED in vectors else list(vectors)
    return PeerCollection(
        name=name,
        dimensions=unnamed_vectors.dimensions,
        distance=unnamed_vectors.distance,
        rows=client.count(name, exact=True).count,
        records=lambda size: _records(client, name, unnamed, own_names, vector_names, size),
        named={own_names[vector]: vectors[vector] for vector in own_names},
        notes=[*notes, *rename_notes(own_names)],
    )


def _usable(name: str, params: Any, options: PeerOptions, notes: list[str]) -> dict[str, Any]:
    """Return the parameters of the vectors to import, by name; notes tell which are left out."""
    if not isinstance(params, dict):
        if options.vector:
            raise PeerError(
                f"--vector: collection {name!r} has one vector, without a name; leave the option out"
            )
        params = {UNNAMED: params}
    elif options.vector is not None:
        params = {
            vector: params[vector]
            for vector in [chosen(options.vector, list(params), what="vectors", option="--vector")]
        }
    usable = {vector: each for vector, each in params.items() if each.multivector_config is None}
    if not usable:
        raise PeerError(
            f"collection {name!r} has several vectors for each point, which an index cannot search"
        )
    if left_out := sorted(params.keys() - usable.keys()):
        notes.append(f"vectors of which a point has several are left out: {', '.join(left_out)}")
    return usable


def _distance(params: Any) -> str:
    return str(getattr(params.distance, "value", params.distance))


def _client(source: str) -> Any:
    qdrant = loaded("qdrant_client", system="qdrant")
    if "://" in source:
        return qdrant.QdrantClient(url=source, api_key=os.environ.get("QDRANT_API_KEY"), timeout=60)
    if not (Path(source) / "meta.json").exists():
        raise InputNotFoundError(f"{source}: is no folder of Qdrant's local mode (it has no meta.json)")
    library, models = import_module("qdrant_client.local.persistence"), qdrant.models
    classes = {(_MODELS, kind.__name__): kind for kind in (models.PointStruct, models.SparseVector)}
    with only_plain_pickles(source, library, classes):  # all points are loaded here
        return qdrant.QdrantClient(path=source)


def _records(
    client: Any, name: str, unnamed: str, names: Mapping[str, str], vector_names: bool | list[str], size: int
) -> Iterator[list[PeerRecord]]:
    offset = None
    while True:
        points, offset = client.scroll(
            name,
            limit=size,
            offset=offset,
            with_payload=True,
            with_vectors=vector_names,
        )
        yield [_record(point, unnamed, names) for point in points]
        if offset is None:
            return


def _record(point: Any, unnamed: str, names: Mapping[str, str]) -> PeerRecord:
    vectors = point.vector if isinstance(point.vector, dict) else {UNNAMED: point.vector}
    return PeerRecord(
        as_identifier(point.id),
        _vector(vectors.get(unnamed)),
        json_value(point.payload or {}),
        vectors={
            index_name: _array(vectors[name])
            for name, index_name in names.items()
            if vectors.get(name) is not None
        },
    )


def _vector(value: Any) -> np.ndarray | None:
    return None if value is None else _array(value)


def _array(value: Any) -> np.ndarray:
    return np.asarray(value, np.float32)
