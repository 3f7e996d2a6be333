"""Qdrant: a folder of its local mode, or a server by its URL (the key in QDRANT_API_KEY)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from scannery.indexer import Distance
from scannery.pipelines.errors import InputNotFoundError, PeerError
from scannery.pipelines.peers.collection import (
    PeerCollection,
    PeerRecord,
    as_identifier,
    chosen,
    distance_of,
    json_value,
    loaded,
)
from scannery.pipelines.peers.options import PeerOptions
from scannery.pipelines.peers.pickles import only_plain_pickles

__all__ = ["open_qdrant"]

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
    vector = None
    if isinstance(params, dict):
        vector = chosen(options.vector, list(params), what="vectors", option="--vector")
        params = params[vector]
    elif options.vector:
        raise PeerError(f"--vector: collection {name!r} has one vector, without a name; leave the option out")
    if params.multivector_config is not None:
        raise PeerError(
            f"collection {name!r} has several vectors for each point, which an index cannot search"
        )
    found = getattr(params.distance, "value", params.distance)
    notes = []
    if sparse:
        notes.append(f"sparse vectors are left out: {', '.join(sorted(sparse))}")
    if found == "Cosine":
        notes.append("servers of Qdrant keep vectors for cosine with length 1, and so they are imported")
    return PeerCollection(
        name=name,
        dimensions=params.size,
        distance=distance_of(found, DISTANCES, options.distance),
        rows=client.count(name, exact=True).count,
        records=lambda size: _records(client, name, vector, size),
        notes=notes,
    )


def _client(source: str) -> Any:
    qdrant = loaded("qdrant_client", system="qdrant")
    if "://" in source:
        return qdrant.QdrantClient(url=source, api_key=os.environ.get("QDRANT_API_KEY"), timeout=60)
    if not (Path(source) / "meta.json").exists():
        raise InputNotFoundError(f"{source}: is no folder of Qdrant's local mode (it has no meta.json)")
    with only_plain_pickles(source):  # all points are loaded here
        return qdrant.QdrantClient(path=source)


def _records(client: Any, name: str, vector: str | None, size: int) -> Iterator[list[PeerRecord]]:
    offset = None
    while True:
        points, offset = client.scroll(
            name,
            limit=size,
            offset=offset,
            with_payload=True,
            with_vectors=True if vector is None else [vector],
        )
        yield [
            PeerRecord(
                as_identifier(point.id), _vector(point.vector, vector), json_value(point.payload or {})
            )
            for point in points
        ]
        if offset is None:
            return


def _vector(value: Any, name: str | None) -> np.ndarray | None:
    if isinstance(value, dict):
        value = value.get(name or "")
    return None if value is None else np.asarray(value, np.float32)
