"""What an index should be after some writes: a dictionary, and random writes to both."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import scannery
from scannery.client import Index
from scannery.indexer import IndexSpec, Store, parse_spec
from tests.data import datapoints, publish

DIMENSIONS = 8
WORDS = ["volcano", "bread", "chess", "battery", "violin", "tax", "river", "engine", "moon", "garden"]
SHOWS = ["gotime", "jsparty", "practicalai", None]

LIVE: IndexSpec = parse_spec(
    {
        "index": "live",
        "source": {"id": "id", "vector": "vector", "text": "text", "title": "title", "document_id": "doc"},
        "shards": 2,
        "lexical": True,
        "attributes": {"show": "string", "year": "int", "tags": "string_list"},
        # Nothing is sealed unless a test does it.
        "live": {"seal_rows": 100_000, "merge_segments": 3},
    }
)

Row = dict[str, Any]


def random_row(rng: random.Random, identifier: str) -> Row:
    return {
        "id": identifier,
        "document_id": f"doc{rng.randrange(40)}",
        "vector": [rng.gauss(0, 1) for _ in range(DIMENSIONS)],
        "title": rng.choice([None, rng.choice(WORDS)]),
        "text": " ".join(rng.choices(WORDS, k=rng.randrange(1, 8))),
        "attributes": {
            "show": rng.choice(SHOWS),
            "year": rng.choice([None, rng.randrange(2000, 2030)]),
            "tags": rng.choice([None, rng.sample(["a", "b", "c"], 2)]),
        },
        "payload": rng.choice([None, {"n": rng.randrange(100)}]),
    }


def table_of(rows: list[Row]) -> pa.Table:
    vectors = np.array([row["vector"] for row in rows], np.float32).reshape(-1, DIMENSIONS)
    columns = {
        "document_id": [row["document_id"] for row in rows],
        "title": [row["title"] for row in rows],
        "text": [row["text"] for row in rows],
        "text_start": [0 for _ in rows],
        "text_end": [len(row["text"]) for row in rows],
        "payload": [
            None if row["payload"] is None else json.dumps(row["payload"], separators=(",", ":"))
            for row in rows
        ],
        **{name: [row["attributes"][name] for row in rows] for name in LIVE.attributes},
    }
    return datapoints(LIVE, vectors, ids=[row["id"] for row in rows], columns=columns)


def make_store(folder: Path, rows: list[Row], *, spec: IndexSpec = LIVE, name: str = "store") -> Path:
    """Return a store whose index has some rows."""
    path = folder / name
    publish(Store.open(path, create=True), spec, table_of(rows), folder, shards=2)
    return path


@dataclass
class Model:
    """The rows that there should be, and the revision of each."""

    rng: random.Random
    ids: int = 150
    rows: dict[str, Row] = field(default_factory=dict)
    revisions: dict[str, int] = field(default_factory=dict)

    @classmethod
    def started(cls, seed: int, folder: Path, *, rows: int = 60, **options: Any) -> tuple[Model, Path]:
        """Return a model and a store that agree."""
        model = cls(random.Random(seed), **options)
        for number in range(rows):
            model.put(random_row(model.rng, f"id{number}"), 0)
        return model, make_store(folder, list(model.rows.values()))

    def put(self, row: Row, revision: int) -> None:
        self.rows[row["id"]] = row
        self.revisions[row["id"]] = revision

    def some_id(self) -> str:
        return f"id{self.rng.randrange(self.ids)}"

    def known_id(self) -> str:
        return self.rng.choice(sorted(self.rows)) if self.rows else "id0"

    def write(self, index: Index) -> None:
        """Do one random write to the index and here."""
        kind = self.rng.choices(
            [self._upsert, self._update, self._delete, self._delete_documents, self._conditional],
            [8, 4, 4, 1, 4],
        )[0]
        kind(index)

    def _upsert(self, index: Index) -> None:
        names = {self.some_id() for _ in range(self.rng.choice([1, 1, 3, 10, 40]))}
        rows = [random_row(self.rng, name) for name in sorted(names)]
        done = index.upsert(rows)  # type: ignore[arg-type]  # a dictionary with these keys
        assert done.written == len(rows)
        for row in rows:
            self.put(row, done.sequence)

    def _update(self, index: Index) -> None:
        names = sorted({self.known_id() for _ in range(self.rng.choice([1, 2, 5]))})
        fresh = [random_row(self.rng, name) for name in names]
        change = self.rng.choice([["year"], ["show", "tags"], ["title"], ["payload"]])
        points: list[dict[str, Any]] = []
        for row in fresh:
            attributes = {name: row["attributes"][name] for name in change if name in LIVE.attributes}
            plain = {name: row[name] for name in change if name not in LIVE.attributes}
            points.append({"id": row["id"], **plain, **({"attributes": attributes} if attributes else {})})
        if any(name not in self.rows for name in names):
            with pytest.raises(scannery.NotFoundError):
                index.update(points)  # type: ignore[arg-type]
            return
        done = index.update(points)  # type: ignore[arg-type]
        for point in points:
            old = self.rows[point["id"]]
            attributes = {**old["attributes"], **point.pop("attributes", {})}
            self.put({**old, **point, "attributes": attributes}, done.sequence)

    def _delete(self, index: Index) -> None:
        names = sorted({self.some_id() for _ in range(self.rng.choice([1, 5, 20]))})
        done = index.delete(names)
        assert done.deleted == sum(self.rows.pop(name, None) is not None for name in names)

    def _delete_documents(self, index: Index) -> None:
        documents = {f"doc{self.rng.randrange(40)}" for _ in range(2)}
        gone = [name for name, row in self.rows.items() if row["document_id"] in documents]
        assert index.delete(document_ids=sorted(documents)).deleted == len(gone)
        for name in gone:
            del self.rows[name]

    def _conditional(self, index: Index) -> None:
        name = self.some_id()
        row = random_row(self.rng, name)
        absent = self.rng.random() < 0.5
        revision = self.revisions.get(name, 0) + self.rng.choice([0, 0, 1])
        condition: dict[str, Any] = {"if_absent": True} if absent else {"if_revision": revision}
        holds = (name not in self.rows) if absent else name in self.rows and revision == self.revisions[name]
        other = random_row(self.rng, "other")
        batch: Any = [{**row, **condition}, other]
        if holds:
            done = index.upsert(batch)
            self.put(row, done.sequence)
            self.put(other, done.sequence)
        else:
            with pytest.raises(scannery.FailedPreconditionError):
                index.upsert(batch)

    def check_rows(self, index: Index) -> None:
        """Compare every datapoint."""
        names = sorted({*(f"id{i}" for i in range(self.ids)), "other"})
        for name, point in zip(names, index.get(names, vectors=True), strict=True):
            row = self.rows.get(name)
            assert (point is None) == (row is None), name
            if row is None or point is None:
                continue
            assert point.vector is not None
            np.testing.assert_array_equal(point.vector, np.array(row["vector"], np.float32))
            attributes = {key: value for key, value in row["attributes"].items() if value is not None}
            assert point.revision == self.revisions[name]
            assert (point.document_id, point.title, point.text, point.attributes, point.payload) == (
                row["document_id"], row["title"], row["text"], attributes, row["payload"],
            )  # fmt: skip
        assert index.stats().rows == len(self.rows)


def check_searches(index: Index, built: Index, rng: random.Random) -> None:
    """Compare searches of every kind with an index that was built from the same rows."""
    for _ in range(12):
        vector = [rng.gauss(0, 1) for _ in range(DIMENSIONS)]
        text = " ".join(rng.choices(WORDS, k=2))
        options: dict[str, Any] = {"k": rng.choice([1, 10, 500])}
        options |= rng.choice(
            [{}, {"where": {"show": "gotime"}}, {"where": {"year": {"$gte": 2010}, "tags": "a"}}]
        )
        options |= rng.choice([{}, {"max_per_group": 1}, {"max_per_group": 2, "group_by": "show"}])
        for query, mode in ((vector, "dense"), (text, "lexical")):
            one = index.search(query, mode=mode, vectors=True, **options)  # type: ignore[arg-type]
            other = built.search(query, mode=mode, vectors=True, **options)  # type: ignore[arg-type]
            assert [hit.id for hit in one] == [hit.id for hit in other]
            np.testing.assert_allclose([hit.score for hit in one], [hit.score for hit in other], rtol=1e-6)
