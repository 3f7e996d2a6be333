"""Writes items of Beam's RAG package: in batches of each bundle, from every worker of the runner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import apache_beam
from apache_beam.ml.rag.ingestion.base import VectorDatabaseWriteConfig
from apache_beam.ml.rag.types import EmbeddableItem

from scannery.bridges.beam_rag.items import point_of
from scannery.bridges.connection import Connection
from scannery.client import Client, InvalidArgumentError, NewDatapoint

__all__ = ["ScanneryVectorWriterConfig"]

# Beam's types are partial: mypy would refuse every call of a transform as a call of an untyped function.
beam: Any = apache_beam


@dataclass(frozen=True, kw_only=True)
class ScanneryVectorWriterConfig(VectorDatabaseWriteConfig):
    """Where `VectorDatabaseWriteTransform` writes: an index of a server or a store, which is created if it is absent.

    An item with an id that is there already replaces it, so a bundle that is tried again changes nothing.
    """

    target: str
    """`host:port`, `http://host:port`, or the path or URI of a store. Workers on other machines need a server."""
    index: str
    """Its name."""
    dimensions: int | None = None
    """Dimensions of a new index; required if there is none and no `encoder` is given."""
    encoder: str | None = None
    """Model of a new index that encodes the texts of items without an embedding in the server."""
    distance: Literal["cosine", "dot", "squared_l2"] = "cosine"
    """Distance of a new index."""
    lexical: bool | Mapping[str, Any] = True
    """Whether words are indexed in a new index, or how: as in SPEC.yaml."""
    sparse: bool = False
    """Whether items of a new index may have sparse embeddings."""
    document_field: str | None = None
    """Key of the metadata with the id of the document that an item is a part of; default: each is one of its own."""
    batch_size: int = 200
    """Items written at once, 1 to 1,000; each batch is durable when it is written, and all or nothing."""
    connect_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Options of `scannery.connect`, such as `api_key` and `ca`; they are sent to the workers."""

    def __post_init__(self) -> None:
        if not 1 <= self.batch_size <= 1000:
            raise InvalidArgumentError(
                f"batch_size: must be 1 to 1000, got {self.batch_size}", field="batch_size"
            )

    def create_write_transform(self) -> Any:
        """Return a transform that writes items, and returns them."""
        return "Write to Scannery" >> beam.ParDo(_WriteFn(self))


class _WriteFn(apache_beam.DoFn):
    """Writes the items of a bundle, `batch_size` at once."""

    def __init__(self, config: ScanneryVectorWriterConfig) -> None:
        self._config = config
        self._connection = Connection(
            config.target, config.index, partial(_new_index, config), config.connect_options
        )
        self._waiting: list[NewDatapoint] = []

    def setup(self) -> None:
        """Connect; the index is created if it is absent."""
        self._connection.index()

    def start_bundle(self) -> None:
        """Forget what a bundle that failed has left."""
        self._waiting = []

    def process(self, item: EmbeddableItem) -> Iterator[EmbeddableItem]:
        """Write an item with others, and give it on."""
        self._waiting.append(point_of(item, self._config.document_field))
        if len(self._waiting) >= self._config.batch_size:
            self._flush()
        yield item

    def finish_bundle(self) -> None:
        """Write the rest."""
        self._flush()

    def teardown(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _flush(self) -> None:
        if self._waiting:
            self._connection.index().upsert_many(
                self._waiting, batch_size=self._config.batch_size, in_flight=1
            )
            self._waiting = []


def _new_index(config: ScanneryVectorWriterConfig, client: Client) -> Mapping[str, Any]:
    return {
        "dimensions": config.dimensions,
        "encoder": config.encoder,
        "distance": config.distance,
        "lexical": config.lexical or None,
        "sparse": config.sparse or None,
        "dynamic": True,
    }
