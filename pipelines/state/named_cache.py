"""The cache of named vectors: a catalogue of the texts that earlier builds embedded, by name of the vectors.

It is made like the one of documents (embedding_cache.py), of the units' lists of texts (`named_list`). An entry is the
hash of a name, its encoder, its field and a text. The text itself is compared where the vector is read.

Shapes: N rows of a unit, D dimensions.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints.named_vectors import vector_column
from scannery.indexer.datapoints.searched_text import SEARCHED_COLUMNS, texts_of_field
from scannery.indexer.errors import NotFoundError
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.pipelines.errors import StageDamagedError
from scannery.pipelines.state.embedding_cache import Catalogue, remove_catalogue, write_entries
from scannery.pipelines.state.row_groups import rows_of_shards
from scannery.pipelines.state.stage_outputs import read_beside

__all__ = [
    "EncodedTexts",
    "NamedCatalogue",
    "named_list",
    "remove_named_catalogue",
    "write_named_catalogue",
]

BESIDE = "named"
_SHARD_SHIFT = np.uint64(24)


@dataclasses.dataclass(frozen=True)
class EncodedTexts:
    """Texts that an encoder made the vectors of a name of."""

    name: str
    digest: str
    """Of the encoder."""
    field: str
    """Of the datapoint that has the texts."""
    rows: Mapping[str, int]
    """Row of the unit with the vector, by text."""


def text_hash(name: str, digest: str, field: str, text: str) -> bytes:
    """Return the 16 bytes that two texts share if they have the same vector."""
    hashed = blake2b("\0".join((name, digest, field, "")).encode(), digest_size=16)
    hashed.update(text.encode())
    return hashed.digest()


def named_list(texts: Sequence[EncodedTexts], shard_N: np.ndarray) -> bytes:
    """Return which texts a unit has vectors of: their hash prefixes, shards, and rows there.

    Args:
        texts: by name.
        shard_N: shard of each row, int64.

    """
    place_N = np.zeros(len(shard_N), np.uint64)
    for shard in np.unique(shard_N):
        own_N = shard_N == shard
        place_N[own_N] = (np.uint64(shard) << _SHARD_SHIFT) | np.arange(own_N.sum(), dtype=np.uint64)
    prefixes = b"".join(
        text_hash(own.name, own.digest, own.field, text)[:8] for own in texts for text in own.rows
    )
    rows = np.array([row for own in texts for row in own.rows.values()], np.int64)
    return np.stack([np.frombuffer(prefixes, np.uint64), place_N[rows]]).tobytes()


def write_named_catalogue(store: Store, index: str, name: str) -> bool:
    """Write the catalogue of the named vectors in all embeddings files of the index; False if it would be empty."""

    def texts_in(unit: str) -> np.ndarray:
        return np.frombuffer(read_beside(store, index, unit, BESIDE) or b"", np.uint64).reshape(2, -1)

    return write_entries(store, index, _name(name), texts_in)


def remove_named_catalogue(store: Store, index: str, name: str) -> None:
    """Remove the catalogue of a build that has ended."""
    remove_catalogue(store, index, _name(name))


def _name(catalogue: str) -> str:
    return f"{catalogue}.{BESIDE}"


class NamedCatalogue:
    """An open catalogue.

    Args:
        store: where the embeddings files are.
        spec: of the index.
        catalogue: the entries.

    """

    def __init__(self, store: Store, spec: IndexSpec, catalogue: Catalogue) -> None:
        self._store, self._spec, self._catalogue = store, spec, catalogue

    @classmethod
    @contextlib.contextmanager
    def open(cls, store: Store, spec: IndexSpec, name: str) -> Iterator[NamedCatalogue]:
        """Yield the catalogue that `write_named_catalogue` wrote; NotFoundError if it wrote none."""
        with Catalogue.open(store, spec.index, _name(name)) as catalogue:
            yield cls(store, spec, catalogue)

    def find(self, name: str, digest: str, texts: Sequence[str]) -> dict[str, np.ndarray]:
        """Return the stored vectors of a name by text, float32 (D,); unknown texts are left out."""
        field = self._spec.text_field(name)
        texts_by_hash = {text_hash(name, digest, field, text): text for text in texts}
        wanted: dict[str, dict[int, dict[int, str]]] = defaultdict(lambda: defaultdict(dict))
        for value, unit, shard, row in self._catalogue.places(sorted(texts_by_hash)):
            wanted[unit][shard][row] = texts_by_hash[value]
        found: dict[str, np.ndarray] = {}
        for unit, shards in sorted(wanted.items()):
            missing = {
                shard: {row: text for row, text in rows.items() if text not in found}
                for shard, rows in shards.items()
            }
            missing = {shard: rows for shard, rows in missing.items() if rows}
            if missing:
                found.update(self._read(unit, name, field, missing))
        return found

    def _read(
        self, unit: str, name: str, field: str, wanted: Mapping[int, Mapping[int, str]]
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the vectors of texts at these rows of shards."""
        columns = [vector_column(name), *dict.fromkeys([*SEARCHED_COLUMNS, field])]
        with contextlib.suppress(StageDamagedError, NotFoundError, KeyError, pa.ArrowException, OSError):
            for shard, table in rows_of_shards(self._store, self._spec.index, unit, {*wanted}, columns):
                yield from _vectors_at(table, name, field, wanted[shard])
        # Texts that cannot be read are embedded again.


def _vectors_at(
    table: pa.Table, name: str, field: str, wanted: Mapping[int, str]
) -> Iterator[tuple[str, np.ndarray]]:
    rows = [row for row in wanted if row < table.num_rows]
    own = table.take(pa.array(rows, pa.int64()))
    texts, vectors = texts_of_field(own, field), own.column(vector_column(name))
    for row, text, vector in zip(rows, texts, vectors, strict=True):
        if text == wanted[row] and vector.is_valid:
            yield text, vector.values.to_numpy(zero_copy_only=False).astype(np.float32)
