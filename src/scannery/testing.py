"""For tests of code that uses Scannery: a store that lives as long as a test, and an encoder that needs no model.

>>> import scannery.testing
>>> documents = [{"id": "a", "text": "red apples", "attributes": {"year": 2024}}, {"id": "b", "text": "blue sky"}]
>>> with scannery.testing.client(documents) as client:
...     [hit.id for hit in client.index("test").search("apples", k=1)]
['a']

Searches go through the real engine; only the model is replaced. With `serve`, they go through a real server, too.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scannery.client import Client
from scannery.client.connect import DEFAULT_TIMEOUT_S
from scannery.client.errors import InvalidArgumentError
from scannery.client.transport.embedded import EmbeddedTransport

if TYPE_CHECKING:
    from scannery.serving import Server
    from scannery.serving.encoding.encoder_pool import EncoderPool

__all__ = ["WordEncoder", "client", "serve"]


class WordEncoder:
    """Encodes a text as its words: texts that share words are near each other. The same on every machine."""

    def __init__(self, dimensions: int = 64) -> None:
        self.dimensions = dimensions

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return float32 (texts, dimensions), rows of length 1."""
        vectors_ND = np.zeros((len(texts), self.dimensions), np.float32)
        for row, text in enumerate(texts):
            for word in re.findall(r"\w+", text.casefold()) or [text]:
                vectors_ND[row] += self._direction(word)
        vectors_ND /= np.linalg.norm(vectors_ND, axis=1, keepdims=True)
        return vectors_ND

    encode_documents = encode_queries

    def _direction(self, word: str) -> np.ndarray:
        seed = int.from_bytes(hashlib.sha256(word.encode("utf-8", "replace")).digest()[:8], "little")
        return np.random.default_rng(seed).standard_normal(self.dimensions).astype(np.float32)


@contextmanager
def client(
    documents: Sequence[Mapping[str, Any]],
    *,
    index: str = "test",
    distance: str = "cosine",
    lexical: bool = True,
    encoder: Any = None,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Iterator[Client]:
    """Give a client of a store with one index, which is gone afterwards.

    Args:
        documents: `id`, `text` or `vector`, and optionally `document_id`, `title`, `attributes`, `payload` (JSON text).
        index: its name.
        distance: `cosine`, `dot` or `squared_l2`.
        lexical: whether `mode="lexical"` and `"hybrid"` work; without texts they never do.
        encoder: has `dimensions`, `encode_queries` and `encode_documents`; default: a `WordEncoder`.
        timeout_s: of the client.

    Raises:
        InvalidArgumentError: a document is wrong.

    """
    from scannery.indexer.local.files import scratch_folder
    from scannery.serving.embedded import EmbeddedEngine

    encoder = encoder or WordEncoder()
    with scratch_folder("testing") as folder:
        catalog = _catalog(folder, documents, index, distance, lexical, encoder)
        with Client(EmbeddedTransport(EmbeddedEngine(catalog)), timeout_s=timeout_s) as made:
            yield made


@contextmanager
def serve(documents: Sequence[Mapping[str, Any]], *, index: str = "test", **options: Any) -> Iterator[Server]:
    """Give a server on a free port of this machine (`server.address`), with an index as `client` has it.

    It is asked with vectors: a server loads real models only. `options` are those of `client`.
    """
    from scannery.indexer.local.files import scratch_folder
    from scannery.serving import Server, ServerConfig

    distance, lexical = options.get("distance", "cosine"), options.get("lexical", True)
    encoder = options.get("encoder") or WordEncoder()
    with scratch_folder("testing") as folder:
        _catalog(folder, documents, index, distance, lexical, encoder)
        with Server(ServerConfig(store=str(folder), listen="127.0.0.1:0")) as server:
            yield server


def _catalog(
    folder: Path,
    documents: Sequence[Mapping[str, Any]],
    index: str,
    distance: str,
    lexical: bool,
    encoder: Any,
) -> Any:
    from scannery.indexer import (
        IndexerError,
        Manifest,
        SegmentCache,
        Store,
        build_segment,
        commit,
        parse_spec,
        segment_key,
    )
    from scannery.serving.catalog.roles import embedded_catalog

    texts = any("vector" not in document for document in documents)
    source = {"id": "id", "text": "text"} if texts else {"id": "id", "vector": "vector"}
    spec_fields: dict[str, Any] = {
        "index": index,
        "source": source,
        "distance": distance,
        "lexical": lexical and texts,
        "attributes": _attribute_types(documents),
    }
    if texts:
        spec_fields["encoder"] = {"model": "scannery.testing"}
    try:
        spec = parse_spec(spec_fields)
        table = _table(spec, documents, encoder)
        store = Store.open(folder, create=True)
        built = build_segment(table, spec=spec, shard=0, directory=folder)
        store.write_file(segment_key(index, built.entry.key), built.path)
    except (IndexerError, KeyError) as error:
        raise InvalidArgumentError(f"documents: {error}", field="documents") from error
    commit(
        store,
        Manifest(
            index=index,
            version=1,
            created_at=dt.datetime.now(dt.timezone.utc),
            spec=spec,
            dimensions=table.schema.field("embedding").type.list_size,
            shards=1,
            segments=(built.entry,),
        ),
    )
    return embedded_catalog(store, encoders=_pool(encoder), cache=SegmentCache(folder / "cache"))


def _table(spec: Any, documents: Sequence[Mapping[str, Any]], encoder: Any) -> Any:
    import pyarrow as pa

    from scannery.indexer import datapoint_schema

    if not documents:
        raise InvalidArgumentError("documents: there must be at least one", field="documents")
    missing = [document["text"] for document in documents if "vector" not in document]
    encoded = iter(encoder.encode_documents(missing)) if missing else iter(())
    vectors = [document["vector"] if "vector" in document else next(encoded) for document in documents]
    schema = datapoint_schema(spec, len(vectors[0]))
    columns = {
        "document_id": [document.get("document_id", document["id"]) for document in documents],
        "embedding": [np.asarray(vector, np.float32) for vector in vectors],
    }
    return pa.table(
        [
            pa.array(columns.get(f.name) or [_field(document, f.name) for document in documents], f.type)
            for f in schema
        ],
        schema=schema,
    )


def _field(document: Mapping[str, Any], name: str) -> Any:
    return document.get(name, document.get("attributes", {}).get(name))


def _attribute_types(documents: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    values = {
        name: value
        for document in documents
        for name, value in document.get("attributes", {}).items()
        if value is not None
    }
    return {name: _type(name, value) for name, value in values.items()}


def _type(name: str, value: object) -> str:
    if isinstance(value, dict) and value.keys() == {"lat", "lon"}:
        return "geo"
    # bool is an int, and must be asked for first.
    for kind, type_name in _TYPES.items():
        if isinstance(value, kind):
            return type_name
    raise InvalidArgumentError(
        f"documents: attribute {name!r} cannot be a {type(value).__name__}", field="documents"
    )


_TYPES: dict[type, str] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "string",
    list: "string_list",
    dt.datetime: "timestamp",
}


def _pool(encoder: Any) -> EncoderPool:
    from scannery.serving.encoding.encoder_pool import EncoderPool
    from scannery.serving.encoding.query_encoder import QueryEncoder

    one = QueryEncoder(encoder)

    class Pool(EncoderPool):
        """The one encoder of every index."""

        def encoder_of(self, manifest: object, *, field: str = "query") -> QueryEncoder:
            """Return it."""
            return one

    return Pool()
