"""Random datapoints, as Python values, as what a client writes, and as records of a build.

Values come from small sets, so that filters find something, vectors are equal now and then, and words repeat.
Components and sparse weights are multiples of one half: their products are exact in float32, and so are ties.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from scannery.indexer import IndexSpec, parse_spec

__all__ = [
    "ATTRIBUTES", "DIMENSIONS", "DYNAMIC", "INDEX", "NAMED", "PLACES", "PLAIN", "WORDS", "Row", "Shape", "exact",
    "make_spec", "random_dynamic", "random_row", "random_values", "random_vector", "random_vectors",
]  # fmt: skip

INDEX = "modelled"
DIMENSIONS = 5
DOCUMENTS = 40
WORDS = ["volcano", "bread", "chess", "battery", "violin", "tax", "river", "engine", "moon", "garden"]
EPOCH = dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc)
ATTRIBUTES = {
    "show": "string",
    "tags": "string_list",
    "year": "int",
    "rating": "float",
    "live": "bool",
    "published": "timestamp",
    "place": "geo",
}
NAMED = {"front": (5, "dot"), "back": (3, "squared_l2")}
"""Dimensions and distance of the named vectors."""
NAMED_SHARES = {"front": 0.85, "back": 0.5}
"""Shares of the rows that have them: where segments are searched by ScaNN, the vectors of one name are, too."""
DYNAMIC = ["extra", "größe", "a.b"]
"""Names of attributes that the spec does not declare."""
_ANYTHING: list[Any] = [
    1, 1.0, "1", True, False, 0, None, 2.5, -3, "b", "ü", "",
    [], ["a", 1], [1.0, True, "b"], [2], {"n": [1, None]}, [[1]],
]  # fmt: skip
"""Values of dynamic attributes: equal numbers of different types, and kinds that no filter compares."""


class Shape(NamedTuple):
    """What the rows of an index may have besides."""

    dynamic: bool = False
    """Attributes that are not declared."""
    vectorless: bool = False
    """No vector."""
    operators: bool = False
    """Filters by beginnings of strings, elements of lists, and places."""
    named: bool = False
    """Named vectors."""
    whole_documents: bool = False
    """Scores by the words of whole documents."""


PLAIN = Shape()
PLACES = [
    {"lat": 52.52, "lon": 13.4},
    {"lat": 52.4, "lon": 13.06},
    {"lat": -41.29, "lon": 174.78},
    {"lat": 64.15, "lon": -21.94},
    {"lat": 21.31, "lon": -157.86},
]


def make_spec(
    *,
    distance: str = "dot",
    shards: int = 2,
    documents: bool = True,
    live: dict[str, Any] | None = None,
    scann: bool = False,
    dynamic: bool = False,
    vectorless: bool = False,
    named: bool = False,
    whole_documents: bool = False,
    **others: Any,
) -> IndexSpec:
    """Return the spec of the index; nothing is sealed or merged unless an operation does it, or `live` says so.

    Without `documents`, records of a build are documents of their own, whatever live rows belong to. With `scann`, a
    segment is as small as one may be that it searches.
    """
    return parse_spec(
        {
            "index": INDEX,
            "source": {
                "id": "id",
                "vector": "vector",
                "text": "text",
                "title": "title",
                "document_id": "document" if documents else None,
                "payload": "payload",
                "sparse_vector": "sparse",
            },
            "distance": distance,
            "shards": shards,
            "lexical": {"language": "none", "scope": "document" if whole_documents else "passage"},
            "attributes": ATTRIBUTES,
            "scann": {"exact_below_rows": 1000, "leaves": 8} if scann else {},
            "live": live or {"seal_rows": 100_000, "seal_age_s": 1e6, "merge_segments": 3},
            "dynamic": dynamic,
            "vectors": "optional" if vectorless else "required",
            "named_vectors": {
                name: {"dimensions": size, "distance": distance, "vector": f"{name}_vector"}
                for name, (size, distance) in NAMED.items()
            }
            if named
            else {},
        }
    )


@dataclass(frozen=True)
class Row:
    """A datapoint that there should be."""

    id: str
    document_id: str
    vector: tuple[float, ...] | None
    title: str | None
    text: str | None
    attributes: dict[str, Any] = field(hash=False)
    """Without those that are not set."""
    payload: Any = field(hash=False)
    sparse: dict[int, float] | None = field(hash=False)
    revision: int = 0
    dynamic: dict[str, Any] = field(default_factory=dict, hash=False)
    """Attributes that are not declared; null is a value."""
    vectors: dict[str, tuple[float, ...]] = field(default_factory=dict, hash=False)
    """Named vectors."""

    @cached_property
    def all_attributes(self) -> dict[str, Any]:
        """The attributes, declared or not."""
        return {**self.attributes, **self.dynamic}

    @cached_property
    def words(self) -> Counter[str]:
        """How often each word stands in title and text."""
        return Counter(f"{self.title or ''} {self.text or ''}".split())

    @cached_property
    def length(self) -> int:
        """Words of title and text."""
        return self.words.total()

    def changed(self, change: dict[str, Any], revision: int) -> Row:
        """Return the row after a partial update; None clears."""
        given = change.get("attributes", {})
        attributes = self.attributes | {name: value for name, value in given.items() if name in ATTRIBUTES}
        dynamic = self.dynamic | {name: value for name, value in given.items() if name not in ATTRIBUTES}
        for name in given:
            if given[name] is None:
                dynamic.pop(name, None)
        plain: dict[str, Any] = {name: change[name] for name in ("title", "payload") if name in change}
        present = {name: value for name, value in attributes.items() if value is not None}
        vectors = self.vectors | (change.get("vectors", {}) or {})
        plain["vectors"] = (
            {name: tuple(vector) for name, vector in vectors.items() if vector is not None}
            if change.get("vectors", {}) is not None
            else {}
        )
        return replace(self, **plain, attributes=present, dynamic=dynamic, revision=revision)

    def same_content(self, other: Row) -> bool:
        """Return whether both are equal but for their revisions."""
        equal = replace(self, revision=0) == replace(other, revision=0)
        return equal and exact(self.dynamic) == exact(other.dynamic)

    def to_upsert(self) -> dict[str, Any]:
        """Return what a client writes."""
        point: dict[str, Any] = {
            "id": self.id,
            "document_id": self.document_id,
            "title": self.title,
            "text": self.text,
            "attributes": self.all_attributes,
            "payload": self.payload,
        }
        if self.vector is not None:
            point["vector"] = list(self.vector)
        if self.vectors:
            point["vectors"] = {name: list(vector) for name, vector in self.vectors.items()}
        return point if self.sparse is None else point | {"sparse_vector": self.sparse}

    def to_record(self) -> dict[str, Any]:
        """Return the record of a build, JSON-ready."""
        values = dict(self.attributes)
        if "published" in values:
            values["published"] = values["published"].isoformat()
        record: dict[str, Any] = {
            "id": self.id,
            "document": self.document_id,
            "vector": None if self.vector is None else list(self.vector),
            "title": self.title,
            "text": self.text,
            "payload": self.payload,
            **values,
            **self.dynamic,
        }
        record |= {f"{name}_vector": list(vector) for name, vector in self.vectors.items()}
        if self.sparse is not None:
            record["sparse"] = {"indices": list(self.sparse), "values": list(self.sparse.values())}
        return record


def random_vector(rng: random.Random, dimensions: int = DIMENSIONS) -> tuple[float, ...]:
    """Return one of few vectors, never all 0."""
    while True:
        vector = tuple(rng.choice((-1.0, -0.5, 0.0, 0.5, 1.0)) for _ in range(dimensions))
        if any(vector):
            return vector


def random_vectors(rng: random.Random) -> dict[str, tuple[float, ...]]:
    """Return some of the named vectors."""
    return {
        name: random_vector(rng, size)
        for name, (size, _) in NAMED.items()
        if rng.random() < NAMED_SHARES[name]
    }


def random_values(rng: random.Random) -> dict[str, Any]:
    """Return an attribute of each type, or None."""
    values: dict[str, Any] = {
        "show": rng.choice([None, "gotime", "jsparty", "Ünï"]),
        "tags": rng.choice([None, ["a"], ["a", "b"], ["c", "b"]]),
        "year": rng.choice([None, rng.randrange(2015, 2025)]),
        "rating": rng.choice([None, rng.randrange(10) / 2]),
        "live": rng.choice([None, True, False]),
        "published": rng.choice([None, EPOCH + dt.timedelta(hours=rng.randrange(20))]),
    }
    # Made of a value that is drawn already, so that the rows of recorded failures stay what they were.
    rating = values["rating"]
    return values | {"place": None if rating is None else PLACES[int(2 * rating) % len(PLACES)]}


def random_dynamic(rng: random.Random) -> dict[str, Any]:
    """Return some attributes that are not declared."""
    return {name: rng.choice(_ANYTHING) for name in DYNAMIC if rng.random() < 0.6}


def exact(values: dict[str, Any]) -> str:
    """Return values as text in which equal numbers of different types differ."""
    return json.dumps(values, sort_keys=True)


def random_row(rng: random.Random, identifier: str, shape: Shape = PLAIN, *, vectors: int = 40) -> Row:
    """Return a row; `vectors` is how many different vectors there are among all."""
    values = random_values(rng)
    row = Row(
        id=identifier,
        document_id=f"doc{rng.randrange(DOCUMENTS)}",
        vector=random_vector(random.Random(rng.randrange(vectors))),
        title=rng.choice([None, rng.choice(WORDS)]),
        text=rng.choice([None, " ".join(rng.choices(WORDS, k=rng.randrange(1, 7)))]),
        attributes={name: value for name, value in values.items() if value is not None},
        payload=rng.choice([None, {"n": rng.randrange(100)}, ["ü", None, 1.5]]),
        sparse=rng.choice([None, {n: rng.randrange(1, 5) / 2 for n in rng.sample(range(6), 2)}]),
    )
    # Drawn last, and only where wanted: recorded operations go on as they were.
    if shape.dynamic:
        row = replace(row, dynamic=random_dynamic(rng))
    if shape.vectorless and rng.random() < 0.4:
        row = replace(row, vector=None)
    if shape.named:
        row = replace(row, vectors=random_vectors(rng))
    return row
