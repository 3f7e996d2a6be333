"""The rows of one group of leaves that the queries of a batch find or name.

Shapes: R rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import count

import numpy as np

from scannery.serving.engine.wire_fields import framed
from scannery.v1.leaf_pb2 import LeafFetchRequest, LeafFetchResponse, LeafFound
from scannery.v1.search_pb2 import Hit
from scannery.v1.types_pb2 import Value, Vector

__all__ = ["LeafTable"]

_DATAPOINT = Hit.DATAPOINT_FIELD_NUMBER


class LeafTable:
    """Rows by number, in the order in which they came, and what the leaves told of them."""

    def __init__(self) -> None:
        # Counts new ids without a step of the interpreter for each.
        self._numbers: defaultdict[str, int] = defaultdict(count().__next__)
        self._listed: list[str] = []
        self._ranks = np.empty(0, np.int64)
        """The place of each row in the order of ids, of the rows that were known when it was last asked for."""
        self.values: dict[int, Value] = {}
        """The values of the column that groups are made of, of the rows that have one."""
        self.datapoints: dict[int, bytes] = {}
        """With the fields of the request, each as the field `datapoint` of a Hit."""
        self.texts: dict[int, str] = {}
        """The texts that are searched by words, and reranked."""
        self._vectors: dict[tuple[str, int], np.ndarray] = {}

    def numbers_of(self, ids: Iterable[str]) -> np.ndarray:
        """Return the number of each row, int64 (R,); new rows get one."""
        return np.fromiter(map(self._numbers.__getitem__, ids), np.int64)

    def number_of(self, identifier: str) -> int | None:
        """Return the number of a row; None: it is not known."""
        return self._numbers.get(identifier)

    def take_in(self, found: LeafFound) -> np.ndarray:
        """Return the number of each row that a leaf found, int64 (R,), and keep what it returned with them."""
        numbers_R = self.numbers_of(found.ids)
        numbers = numbers_R.tolist() if found.groups or found.datapoints else []
        if found.groups:
            pairs = zip(numbers, found.groups, strict=True)
            self.values.update((number, value) for number, value in pairs if value.WhichOneof("kind"))
        if found.datapoints:
            self.datapoints.update(zip(numbers, found.datapoints, strict=True))
        return numbers_R

    def add(self, request: LeafFetchRequest, response: LeafFetchResponse) -> None:
        """Keep what a leaf returned."""
        numbers_R = self.numbers_of(request.ids[each.place] for each in response.found)
        for number, each in zip(numbers_R.tolist(), response.found, strict=True):
            if request.datapoint:
                self.datapoints[number] = framed(_DATAPOINT, each.datapoint.SerializeToString())
            if request.searched_text:
                self.texts[number] = each.searched_text
            for name, vector in each.searched_vectors.items():
                self._vectors[name, number] = _components(vector)

    def vector_of(self, name: str, row: int) -> np.ndarray | None:
        """Return the vector of a name of a row, float32 (D,); None if it has none."""
        return self._vectors.get((name, row))

    def ranks_of(self, rows: np.ndarray) -> np.ndarray:
        """Return a number for each of some rows, int64 (R,), which is greater where the id is."""
        ids = self._ids()
        if len(self._ranks) < len(ids):
            self._ranks = np.empty(len(ids), np.int64)
            self._ranks[sorted(range(len(ids)), key=ids.__getitem__)] = np.arange(len(ids))
        ranks_R: np.ndarray = self._ranks[rows]
        return ranks_R

    def ids_of(self, rows: np.ndarray) -> list[str]:
        """Return the ids of some rows."""
        ids = self._ids()
        return [ids[row] for row in rows.tolist()]

    def _ids(self) -> list[str]:
        if len(self._listed) < len(self._numbers):
            self._listed = list(self._numbers)
        return self._listed


def _components(vector: Vector) -> np.ndarray:
    if vector.packed:
        return np.frombuffer(vector.packed, "<f4").astype(np.float32)
    return np.array(vector.values, np.float32)
