"""Indexes with named vectors, made by hand, and what a search of them must find."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from scannery.indexer import (
    IndexSpec,
    Manifest,
    Store,
    VectorsInfo,
    build_segment,
    commit,
    expected_recall,
    parse_spec,
    shard_of,
    store_segment,
    vector_column,
    vectors_array,
    written_schema,
)
from tests.served import MINILM, SENTENCES

Vectors = Mapping[str, Sequence[np.ndarray | None]]


def named_table(
    spec: IndexSpec,
    dimensions: int,
    ids: Sequence[str],
    vectors: Vectors,
    columns: Mapping[str, Sequence[Any]] | None = None,
) -> pa.Table:
    """Return datapoints with named vectors, and the unnamed ones by the name ""; columns not given are null."""
    schema = written_schema(spec, dimensions)
    given: dict[str, Any] = {"id": ids, "document_id": ids, "embedding": vectors.get(""), **(columns or {})}
    given = {
        name: pa.array(values, schema.field(name).type)
        for name, values in given.items()
        if values is not None
    }
    given |= {vector_column(name): vectors_array(values) for name, values in vectors.items() if name}
    arrays = [given.get(field.name, pa.nulls(len(ids), field.type)) for field in schema]
    return pa.table(arrays, schema=schema)


def publish_named(
    store: Store,
    spec: IndexSpec,
    table: pa.Table,
    folder: Path,
    *,
    dimensions: int,
    named: Mapping[str, int],
    shards: int = 1,
    encoders: Mapping[str, dict[str, Any]] | None = None,
) -> Manifest:
    """Build the segments of a table by shard, and by whether rows have the unnamed vector; commit the version.

    Args:
        store: where it is published.
        spec: of the index.
        table: the datapoints.
        folder: for files on their way.
        dimensions: of the unnamed vector; 0: there is none.
        named: the dimensions of each name.
        shards: of the index.
        encoders: the fingerprint of the encoder of each name that has one; "" is the unnamed vector.

    """
    numbers = np.array([shard_of(text, shards) for text in table.column("document_id").to_pylist()])
    has_vector = table.column("embedding").is_valid().to_numpy()
    entries = []
    for shard in range(shards):
        for kind in (True, False):
            rows = table.filter(pa.array((numbers == shard) & (has_vector == kind)))
            if rows.num_rows:
                built = build_segment(rows, spec=spec, shard=shard, directory=folder)
                store_segment(store, spec.index, built)
                entries.append(built.entry)
    encoders = encoders or {}
    manifest = Manifest.model_validate(
        {
            "index": spec.index,
            "version": 1,
            "created_at": "2026-01-01T00:00:00Z",
            "spec": spec,
            "encoder": encoders.get(""),
            "dimensions": dimensions,
            "named_vectors": {
                name: VectorsInfo(dimensions=size, encoder=encoders.get(name)) for name, size in named.items()
            },
            "shards": shards,
            "segments": tuple(entries),
            "recall": expected_recall(entries, spec.target_recall),
        }
    )
    return commit(store, manifest)


TITLES = {"volcano": "Mountains of fire", "bread": "Baking at home"}
PICTURES = {
    name: np.eye(3, dtype=np.float32)[row % 3] + row for row, name in enumerate(SENTENCES) if row != 1
}
"""All but the second sentence have one."""


def make_told_store(folder: Path) -> Path:
    """Return a store with `told`: named vectors only, of titles and texts by the real model, and given ones."""
    from scannery.embed import Encoder

    encoder = Encoder.load(MINILM, device="cpu")
    spec = parse_spec(
        {
            "index": "told",
            "source": {"id": "id", "text": "text", "title": "title"},
            "lexical": True,
            "attributes": {"letters": "int"},
            "named_vectors": {
                "title": {"encoder": {"model": MINILM}},
                "body": {"encoder": {"model": MINILM}, "distance": "dot"},
                "picture": {"dimensions": 3, "distance": "squared_l2"},
            },
        }
    )
    ids = list(SENTENCES)
    titles = dict(zip(TITLES, encoder.encode_documents(list(TITLES.values())), strict=True))
    vectors = {
        "title": [titles.get(name) for name in ids],
        "body": list(encoder.encode_documents(list(SENTENCES.values()))),
        "picture": [PICTURES.get(name) for name in ids],
    }
    columns: dict[str, Sequence[Any]] = {
        "title": [TITLES.get(name) for name in ids],
        "text": list(SENTENCES.values()),
        "letters": [len(text) for text in SENTENCES.values()],
    }
    fingerprint = encoder.fingerprint.to_dict()
    publish_named(
        Store.open(folder / "store", create=True),
        spec,
        named_table(spec, 0, ids, vectors, columns),
        folder,
        dimensions=0,
        named={"title": 384, "body": 384, "picture": 3},
        encoders={"title": fingerprint, "body": fingerprint},
    )
    return folder / "store"
