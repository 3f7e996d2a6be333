"""Searches as documented, over a dictionary of rows: filters, scores by vector and by words, fusion, crowding, pages.

Slow and plain on purpose, and without a line of the product's.

Shapes: N rows, D dimensions.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from tests.model.rows import Row

__all__ = ["RANKINGS", "UNFILTERED", "Oracle", "Ranked", "Scale", "matches"]

Ranked = list[tuple[str, float]]
"""Ids with scores, best first, equal scores by id."""
K1, B = 1.2, 0.75
RANK_CONSTANT = 60
LEAST_DEPTH = 200
DEEPER = 4
LEAST_WEIGHT = 5e-8


RANKINGS: dict[str, Callable[[float, Mapping[str, Any]], float]] = {
    "score + 0.25 * default(rating, 2)": lambda score, row: score + 0.25 * row.get("rating", 2),
    "score * (2 if live else 1) - (show == 'a')": lambda score, row: (
        score * (2 if row.get("live") else 1) - (row.get("show") == "a")
    ),
    "-score + min(year, 10)": lambda score, row: -score + min(row.get("year", 0), 10),
}
"""Ranking expressions, and the same as functions of a score and attributes."""


class Scale(NamedTuple):
    """What the scales of a query with a filter take from the same query without it."""

    dense_range: float
    """Least difference of the dense scores that count 1 and 0."""
    lexical_best: float
    """Least lexical score that counts 1."""


UNFILTERED = Scale(0.0, -math.inf)


def matches(row: Row, where: Mapping[str, Any]) -> bool:
    """Return whether a row passes a filter (docs/searching.md)."""
    return all(_holds(row, name, wanted) for name, wanted in where.items())


def _holds(row: Row, name: str, wanted: Any) -> bool:
    if name == "$and":
        return all(matches(row, part) for part in wanted)
    if name == "$or":
        return any(matches(row, part) for part in wanted)
    if name == "$not":
        return not matches(row, wanted)
    own = {"id": row.id, "document_id": row.document_id}
    value = own[name] if name in own else row.all_attributes.get(name)
    conditions = wanted if isinstance(wanted, Mapping) else {"$eq": wanted}
    return all(_condition(value, operator, given) for operator, given in conditions.items())


def _condition(value: Any, operator: str, given: Any) -> bool:
    match operator:
        case "$exists" | "$empty":
            is_set = value is not None and (operator == "$exists" or value != [])
            return is_set == (given == (operator == "$exists"))
        case "$ne" | "$nin":
            return not _condition(value, "$eq" if operator == "$ne" else "$in", given)
        case "$not":
            return not all(_condition(value, inner, wanted) for inner, wanted in given.items())
        case "$in":
            return any(_condition(value, "$eq", one) for one in given)
        case "$contains" | "$all":
            wanted = given if operator == "$all" else [given]
            return isinstance(value, list) and all(_condition(value, "$eq", one) for one in wanted)
    return _compared(value, operator, given)


def _compared(value: Any, operator: str, given: Any) -> bool:
    if value is None or given is None:
        return value is given
    nested = isinstance(value, list) and any(isinstance(item, (list, dict)) for item in value)
    items = value if isinstance(value, list) and not nested else [value]
    return any(_kind(item) == _kind(given) and _TESTS[operator](item, given) for item in items)


def _kind(value: Any) -> str:
    """Return the kind of a value: those of different kinds are never equal, and have no order."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return "number"
    return type(value).__name__


_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": lambda value, given: value == given,
    "$gt": lambda value, given: value > given,
    "$gte": lambda value, given: value >= given,
    "$lt": lambda value, given: value < given,
    "$lte": lambda value, given: value <= given,
    "$prefix": lambda value, given: value.startswith(given),
    "$ieq": lambda value, given: value.casefold() == given.casefold(),
    "$iprefix": lambda value, given: value.casefold().startswith(given.casefold()),
    "$substring": lambda value, given: given in value,
    "$isubstring": lambda value, given: given.casefold() in value.casefold(),
    "$geo_radius": lambda value, given: _distance_m(value, given) <= given["radius_m"],
    "$geo_box": lambda value, given: _is_in_box(value, given),  # noqa: PLW0108  defined below
}


def _distance_m(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the distance of two places on the sphere of the mean radius of the Earth (haversine)."""
    (lat, lon), (other_lat, other_lon) = (
        (math.radians(place["lat"]), math.radians(place["lon"])) for place in (one, other)
    )
    half = math.sin((lat - other_lat) / 2) ** 2
    half += math.cos(lat) * math.cos(other_lat) * math.sin((lon - other_lon) / 2) ** 2
    return 2 * 6_371_008.8 * math.asin(math.sqrt(min(half, 1.0)))


def _is_in_box(place: Mapping[str, float], box: Mapping[str, float]) -> bool:
    """Return whether a place, not at a pole or on the antimeridian, is in a box."""
    east_of, west_of = place["lon"] >= box["west"], place["lon"] <= box["east"]
    meets = (east_of and west_of) if box["west"] <= box["east"] else (east_of or west_of)
    return box["south"] <= place["lat"] <= box["north"] and meets


@dataclass
class Oracle:
    """Some rows, to be searched."""

    rows: Mapping[str, Row]
    distance: str
    whole_documents: bool = False
    """Whether rows are also scored by the words of their documents."""

    def __post_init__(self) -> None:
        self.ids = sorted(name for name, row in self.rows.items() if row.vector is not None)
        vectors = [self.rows[name].vector for name in self.ids]
        self.vectors_ND = np.array(vectors, np.float64).reshape(len(vectors), -1)
        self.has_words = [row for row in self.rows.values() if row.length]
        self.words = sum(row.length for row in self.has_words)
        self.frequencies: Counter[str] = Counter()
        for row in self.has_words:
            self.frequencies.update(row.words.keys())
        self.documents: dict[str, Counter[str]] = {}
        for row in self.has_words:
            self.documents.setdefault(row.document_id, Counter()).update(row.words)

    def dense(self, query: Sequence[float]) -> Ranked:
        """Return all rows by vector."""
        if not self.ids:
            return []
        query_D = np.array(query, np.float64)
        vectors_ND = self.vectors_ND
        if self.distance == "squared_l2":
            scores_N = -np.square(vectors_ND - query_D).sum(axis=1)
        elif self.distance == "dot":
            scores_N = vectors_ND @ query_D
        else:
            lengths_N = np.linalg.norm(vectors_ND, axis=1) * np.linalg.norm(query_D)
            # Rounded, so that equal vectors are equal whatever the order of the sum.
            scores_N = np.round((vectors_ND @ query_D) / lengths_N, 9)
        return self._ordered(dict(zip(self.ids, scores_N.tolist(), strict=True)))

    def lexical(self, text: str) -> Ranked:
        """Return the rows that have any of the words, by BM25."""
        if not self.has_words:
            return []
        scores = self._by_words(text, {row.id: row.words for row in self.has_words})
        if self.whole_documents:
            of_documents = self._by_words(text, self.documents)
            scores = {
                name: (score + of_documents[self.rows[name].document_id]) / 2
                for name, score in scores.items()
            }
        return self._ordered({name: float(np.float32(score)) for name, score in scores.items()})

    def _by_words(self, text: str, bags: Mapping[str, Counter[str]]) -> dict[str, float]:
        """Return the scores of the texts that have any of the words, by their counts."""
        average, scores = self.words / len(bags), dict[str, float]()
        for word, count in Counter(text.split()).items():
            frequency = self.frequencies[word]
            idf = math.log(1 + (len(self.has_words) - frequency + 0.5) / (frequency + 0.5))
            for name, bag in bags.items():
                if found := bag[word]:
                    norm = K1 * (1 - B + B * bag.total() / average)
                    scores[name] = scores.get(name, 0.0) + count * idf * found / (found + norm)
        return scores

    def sparse(self, weights: Mapping[int, float]) -> Ranked:
        """Return the rows that share a dimension, by inner product."""
        return self._ordered(
            {
                name: sum(weight * row.sparse.get(at, 0.0) for at, weight in weights.items())
                for name, row in self.rows.items()
                if row.sparse is not None and row.sparse.keys() & weights.keys()
            }
        )

    def kept(self, ranked: Ranked, options: Mapping[str, Any]) -> Ranked:
        """Return what a filter and a least score leave."""
        where, least = options.get("where"), options.get("min_score")
        return [
            (name, score)
            for name, score in ranked
            if (where is None or matches(self.rows[name], where)) and (least is None or score >= least)
        ]

    def fused(
        self,
        dense: Ranked,
        lexical: Ranked,
        wanted: int,
        alpha: float,
        method: str,
        scale: Scale = UNFILTERED,
    ) -> Ranked:
        """Return both rankings as one: the fused first rows, and below them those of the next depths."""
        depths = [LEAST_DEPTH]
        while depths[-1] < wanted:
            depths.append(depths[-1] * DEEPER)
        blocks = [self._fused(dense, lexical, depth, alpha, method, scale) for depth in depths]
        if alpha in (0, 1):  # all rows of the ranking with all the weight come first
            own = dense if alpha else lexical
            names = [{name for name, _ in own[:depth]} for depth in depths]
            first = [
                [pair for pair in block if pair[0] in known]
                for block, known in zip(blocks, names, strict=True)
            ]
            blocks = [*first, *blocks]
        return functools.reduce(self._followed, blocks)

    def _followed(self, first: Ranked, deeper: Ranked) -> Ranked:
        known = {name for name, _ in first}
        rest = [pair for pair in deeper if pair[0] not in known]
        if not rest or not first:
            return first or rest
        below = float(np.nextafter(np.float32(first[-1][1]), np.float32(-np.inf)))
        moved = max(0.0, rest[0][1] - below)
        return first + self._ordered(
            {name: float(np.float32(min(score - moved, below))) for name, score in rest}
        )

    def scale(self, dense: Ranked, lexical: Ranked, allowed: int) -> Scale:
        """Return what a query with a filter takes from its rankings without the filter.

        Args:
            dense: all rows by vector.
            lexical: all rows with a word of the query.
            allowed: rows that the filter leaves.

        """
        top = dense[:LEAST_DEPTH]
        width = top[0][1] - top[-1][1] if top and allowed < LEAST_DEPTH else 0.0
        return Scale(width, lexical[0][1] if lexical else -math.inf)

    def _fused(
        self, dense: Ranked, lexical: Ranked, depth: int, alpha: float, method: str, scale: Scale
    ) -> Ranked:
        dense, lexical = dense[:depth], lexical[:depth]
        alpha = min(max(alpha, LEAST_WEIGHT), 1 - LEAST_WEIGHT)
        if method == "reciprocal_rank":
            sides = [
                {name: 1 / (RANK_CONSTANT + 1 + i) for i, (name, _) in enumerate(x)} for x in (dense, lexical)
            ]
        else:
            low = min(dense[:LEAST_DEPTH][-1][1], dense[0][1] - scale.dense_range) if dense else 0.0
            lowest = min([0.0, *(score for _, score in lexical)])
            sides = [_scaled(dense, low), _scaled(lexical, lowest, scale.lexical_best)]
        least = min([0.0, *sides[0].values()])
        scores = {
            name: alpha * sides[0].get(name, least) + (1 - alpha) * sides[1].get(name, 0.0)
            for name in sides[0].keys() | sides[1].keys()
        }
        return self._ordered({name: float(np.float32(score)) for name, score in scores.items()})

    def steered(self, ranked: Ranked, options: Mapping[str, Any]) -> Ranked:
        """Return rows in the order of a ranking expression, with its values."""
        if "ranking" not in options:
            return ranked
        function = RANKINGS[options["ranking"]]
        return self._ordered({name: function(score, self.rows[name].attributes) for name, score in ranked})

    def crowded(self, ranked: Ranked, options: Mapping[str, Any]) -> Ranked:
        """Return what is left where groups are bounded."""
        most = options.get("max_per_group")
        if most is None:
            return ranked
        column, seen, kept = options.get("group_by"), Counter[Any](), list[tuple[str, float]]()
        for name, score in ranked:
            row = self.rows[name]
            group = row.document_id if column is None else row.attributes.get(column, ("alone", name))
            seen[group] += 1
            if seen[group] <= most:
                kept.append((name, score))
        return kept

    def _ordered(self, scores: Mapping[str, float]) -> Ranked:
        return sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))


def _scaled(ranked: Ranked, zero: float, least_best: float = -math.inf) -> dict[str, float]:
    """Return the scores where the best one, or a better one that a filter left out, is 1 and another one is 0."""
    best = max(ranked[0][1], least_best) if ranked else 0.0
    if best <= zero:
        return {name: float(score >= zero) for name, score in ranked}
    return {name: (score - zero) / (best - zero) for name, score in ranked}
