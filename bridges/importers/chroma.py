"""Chroma: the folder of a persistent client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from scannery.bridges.importers.collection import (
    PeerCollection,
    PeerOptions,
    PeerRecord,
    chosen,
    distance_of,
    json_value,
    loaded,
)
from scannery.indexer import Distance
from scannery.pipelines.errors import InputNotFoundError, PeerError

__all__ = ["open_chroma"]

DISTANCES: dict[str, Distance] = {"cosine": "cosine", "ip": "dot", "l2": "squared_l2"}


def open_chroma(source: str, options: PeerOptions, _: ExitStack) -> PeerCollection:
    """Return a collection of a folder."""
    chromadb = loaded("chromadb", system="chroma")
    if not (Path(source) / "chroma.sqlite3").exists():
        raise InputNotFoundError(f"{source}: is no folder of a persistent Chroma (it has no chroma.sqlite3)")
    if options.vector is not None:
        raise PeerError("--vector: a Chroma collection has one vector, without a name; leave the option out")
    client = chromadb.PersistentClient(source, settings=chromadb.Settings(anonymized_telemetry=False))
    names = [each.name for each in client.list_collections()]
    name = chosen(options.collection, names, what="collections", option="--collection")
    collection = client.get_collection(name, embedding_function=None)
    rows = collection.count()
    first = collection.get(limit=1, include=["embeddings"])["embeddings"] if rows else []
    if not len(first):
        raise PeerError(f"collection {name!r} has no vectors")
    # As JSON: `configuration` would also make the embedding function that the folder names, and load its model.
    configuration = collection.configuration_json
    space = (configuration.get("hnsw") or configuration.get("spann") or {}).get("space")
    return PeerCollection(
        name=name,
        dimensions=len(first[0]),
        distance=distance_of(space, DISTANCES, options.distance),
        rows=rows,
        records=lambda size: _records(collection, size),
        notes=["the documents of Chroma are the texts"],
    )


def _records(collection: Any, size: int) -> Iterator[list[PeerRecord]]:
    offset = 0
    while True:
        page = collection.get(limit=size, offset=offset, include=["embeddings", "documents", "metadatas"])
        ids = page["ids"]
        if not ids:
            return
        columns = (page[name] for name in ("embeddings", "metadatas", "documents"))
        yield [
            PeerRecord(
                identifier,
                None if vector is None else np.asarray(vector, np.float32),
                json_value(metadata or {}),
                document,
            )
            for identifier, vector, metadata, document in zip(ids, *columns, strict=True)
        ]
        offset += len(ids)
