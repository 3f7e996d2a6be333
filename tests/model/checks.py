"""Answers compared with the model: searches of all kinds, get, stats, and whole states."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np

import scannery
from scannery.client.request.queries import Mode
from scannery.client.response.results import Datapoint, Hits
from tests.model.actors import Actor
from tests.model.errors import check
from tests.model.oracle import RANKINGS, UNFILTERED, Oracle, Ranked, Scale
from tests.model.rows import (
    ATTRIBUTES,
    DIMENSIONS,
    DOCUMENTS,
    DYNAMIC,
    EPOCH,
    NAMED,
    PLACES,
    PLAIN,
    WORDS,
    Row,
    Shape,
    exact,
)
from tests.model.world import Rows, World

__all__ = ["Checker", "by_name", "close", "compare_point", "random_filter", "twice"]

GROUPS = [None, "show", "year", "live"]
CLOSE = 1e-5
WIDENING = 4
"""As many times more candidates are looked at where too few of them are hits."""
NEAR = 1e-6
SHORT_S = 0.2
MANY = 1000
VECTORLESS = (scannery.FailedPreconditionError, scannery.InvalidArgumentError)
"""Errors of a search by the vector of a datapoint that has none."""


class Typed(str):
    """A text of which one word may have a typing error, and what is meant by it."""

    __slots__ = ("meant",)
    meant: str

    @classmethod
    def wrong(cls, text: str, rng: random.Random) -> Typed:
        """Replace a letter of a word of four or more; no other word of the model is one letter away."""
        words = text.split()
        number = rng.randrange(len(words))
        at = rng.randrange(1, len(words[number]))
        if len(words[number]) > 3:
            words[number] = words[number][:at] + "q" + words[number][at + 1 :]
        typed = cls(" ".join(words))
        typed.meant = text
        return typed


def random_filter(rng: random.Random, depth: int = 2, *, shape: Shape = PLAIN) -> dict[str, Any]:
    """Return a filter over all kinds of attributes that rows of a shape have, up to some levels deep."""
    if depth and rng.random() < 0.4:
        kind = rng.choice(["$and", "$or", "$not"])
        if kind == "$not":
            return {kind: random_filter(rng, depth - 1, shape=shape)}
        return {kind: [random_filter(rng, depth - 1, shape=shape) for _ in range(rng.randrange(1, 4))]}
    if shape.dynamic and rng.random() < 0.5:
        return _dynamic_filter(rng)
    return _special_filter(rng) if shape.operators and rng.random() < 0.3 else _plain_filter(rng)


def _plain_filter(rng: random.Random) -> dict[str, Any]:
    name = rng.choice(sorted(_VALUES))
    value = _VALUES[name]
    orders = [] if name == "live" else ["$gt", "$gte", "$lt", "$lte"]
    operator = rng.choice(["bare", "$ne", "$in", "$nin", "$exists", *orders])
    if operator == "bare":
        return {name: value(rng)}
    if operator == "$exists":
        return {name: {"$exists": rng.random() < 0.5}}
    given = [value(rng) for _ in range(rng.randrange(1, 5))] if operator in ("$in", "$nin") else value(rng)
    test = {operator: given}
    return {name: {"$not": test} if rng.random() < 0.2 else test}


def _dynamic_filter(rng: random.Random) -> dict[str, Any]:
    name, value = rng.choice([*DYNAMIC, "never"]), rng.choice(_COMPARED)
    orders = [] if isinstance(value, bool) else ["$gt", "$gte", "$lt", "$lte"]
    operator = rng.choice(["bare", "$ne", "$in", "$nin", "$exists", "null", *orders])
    if operator == "bare":
        return {name: value}
    if operator == "null":
        return {name: rng.choice([None, {"$ne": None}, {"$empty": rng.random() < 0.5}])}
    if operator == "$exists":
        return {name: {"$exists": rng.random() < 0.5}}
    return {name: {operator: rng.choices(_COMPARED, k=3) if operator in ("$in", "$nin") else value}}


_COMPARED: list[Any] = [1, 1.0, "1", True, False, 0, 2.5, "b", "ü", "", 2]


def _special_filter(rng: random.Random) -> dict[str, Any]:
    """Return a condition on strings, lists or places, or with null."""
    name = rng.choice(["show", "tags", "id", "place", "null"])
    if name == "place":
        centre, radius_m = rng.choice(PLACES), rng.choice([0, 4e4, 2e6, 1.2e7, 2.01e7])
        box = {"south": -50, "west": rng.choice([-30, 170]), "north": 60, "east": rng.choice([-150, 20])}
        return {name: rng.choice([{"$geo_radius": {**centre, "radius_m": radius_m}}, {"$geo_box": box}])}
    if name == "null":
        name = rng.choice([*sorted(_VALUES), "place"])
        return {name: rng.choice([None, {"$ne": None}])}
    if name == "tags" and rng.random() < 0.5:
        return {name: rng.choice([{"$contains": "b"}, {"$all": rng.sample("abc", rng.randrange(1, 3))}])}
    text = str(_VALUES[name](rng))
    text = rng.choice([text, text.upper(), text[: rng.randrange(len(text) + 1)]])
    return {name: {rng.choice(["$prefix", "$ieq", "$iprefix", "$substring", "$isubstring"]): text}}


_VALUES: dict[str, Any] = {
    "id": lambda rng: f"id{rng.randrange(300)}",
    "document_id": lambda rng: f"doc{rng.randrange(DOCUMENTS)}",
    "show": lambda rng: rng.choice(["gotime", "jsparty", "Ünï", "none"]),
    "tags": lambda rng: rng.choice("abcd"),
    "year": lambda rng: rng.randrange(2014, 2026),
    "rating": lambda rng: rng.randrange(11) / 2,
    "live": lambda rng: rng.random() < 0.5,
    "published": lambda rng: EPOCH.replace(hour=rng.randrange(20)),
}


@dataclass
class Checker:
    """Compares what actors say with a world."""

    world: World
    distance: str
    ids: int
    scann: bool = False
    """Whether segments may be searched by ScaNN, whose answers are not exact unless that is asked for."""
    shape: Shape = PLAIN
    """What rows may have besides."""
    sync: Callable[[], None] = lambda: None
    """Takes note of versions that others have made meanwhile."""
    _oracles: dict[tuple[int, str], tuple[Rows, Oracle]] = field(default_factory=dict)

    def expected(
        self, actor: Actor, version: int, sequence: int, least: int, *, own_writes: bool = True
    ) -> Rows:
        """Return the rows that an answer is about; check that the actor may be there."""
        world = self.world
        if version not in world.versions:
            self.sync()
        check(version in world.versions, f"{actor.name} answers of version {version}, which nobody committed")
        check(
            version >= actor.seen_version or actor.many,
            f"{actor.name} went back from {actor.seen_version} to {version}",
        )
        check(sequence <= world.position, f"{actor.name} is at sequence {sequence} of {world.position}")
        least = max(least, actor.acknowledged) if own_writes else least
        check(sequence >= least, f"{actor.name} is at sequence {sequence}, {least} was asked for")
        if version == actor.seen_version and not actor.many:
            check(
                sequence >= actor.seen_sequence,
                f"{actor.name} went back from sequence {actor.seen_sequence} to {sequence}",
            )
        actor.seen_version, actor.seen_sequence = version, sequence
        return world.state(version, sequence)

    def oracle(self, rows: Rows, name: str = "") -> Oracle:
        """Return the oracle of a state and of the vectors of a name; kept, as many questions are about the same one."""
        key = id(rows), name
        known = self._oracles.get(key)
        if known is None or known[0] is not rows:
            if len(self._oracles) > 8:
                self._oracles.clear()
            own = (
                {id_: replace(row, vector=row.vectors.get(name)) for id_, row in rows.items()}
                if name
                else rows
            )
            known = self._oracles[key] = rows, Oracle(own, self._distance(name), self.shape.whole_documents)
        return known[1]

    def _distance(self, name: str) -> str:
        return NAMED[name][1] if name else self.distance

    def search(self, actor: Actor, rng: random.Random) -> None:
        """Ask a random search, and compare the whole answer."""
        query, mode = self._query(rng)
        options, k = self._options(rng, mode), rng.choice([1, 3, 10, 10, 50, 1000])
        least = self.world.position if rng.random() < 0.5 else 0
        asked = {**options, "k": k, "mode": mode}
        if self.shape.named and mode != "lexical" and rng.random() < 0.5:
            query, asked = by_name(query, asked, rng.choice(sorted(NAMED)))
        # Without a mode each query has the same one: this index has words, and no encoder.
        sent = asked | ({"mode": None} if rng.random() < 0.3 else {})
        try:
            hits = self._ask(actor, query, least, sent)
        except (scannery.NotFoundError, *VECTORLESS):
            check(isinstance(query, scannery.Like), "a search found no such datapoint, and named none")
            return
        rows = self.expected(actor, hits.version, hits.sequence, least)
        check(hits.mode == mode, f"the mode is {hits.mode}, not {mode}, of {query!r} with {sent!r}")
        self._compare(hits, rows, query, asked)

    def search_many(self, actor: Actor, rng: random.Random) -> None:
        """Ask several vectors in one call."""
        queries = [[float(rng.randrange(-2, 3)) or 1.0 for _ in range(DIMENSIONS)] for _ in range(9)]
        options: dict[str, Any] = {"k": rng.choice([1, 10, 100]), "mode": "dense"}
        if rng.random() < 0.5:
            options["where"] = self._filter(rng)
        for query, hits in zip(queries, actor.index.search_many(queries, **options), strict=True):
            rows = self.expected(actor, hits.version, hits.sequence, 0)
            self._compare(hits, rows, query, options)

    def pages(self, actor: Actor, rng: random.Random) -> None:
        """Page through an answer: nothing twice, nothing left out."""
        query, mode = self._query(rng)
        if isinstance(query, scannery.Like):
            return
        options: dict[str, Any] = {"where": self._filter(rng)} if rng.random() < 0.5 else {}
        options |= {"exact": True} if self.scann else {}
        self.readable(actor)  # all pages of one state
        size, seen = rng.choice([7, 20, 90]), list[str]()
        while True:
            hits = actor.index.search(query, k=size, mode=mode, offset=len(seen), **options)
            seen += [hit.id for hit in hits]
            if len(hits) < size or len(seen) >= 5 * size:
                break
        whole = actor.index.search(query, k=max(1, len(seen)), mode=mode, **options)
        check(seen == [hit.id for hit in whole] or not seen, f"pages of {mode} differ from the whole")
        check(len(set(seen)) == len(seen), f"pages of {mode} repeat")

    def _filter(self, rng: random.Random) -> dict[str, Any]:
        return random_filter(rng, shape=self.shape)

    def get(self, actor: Actor, rng: random.Random) -> None:
        """Compare some datapoints."""
        names = [f"id{rng.randrange(self.ids)}" for _ in range(rng.choice([1, 5, 40]))]
        names = list(dict.fromkeys(names))
        rows = self.readable(actor)
        self._compare_points(rows, names, actor.index.get(names, vectors=True))

    def stats(self, actor: Actor) -> None:
        """Compare the counts."""
        info = actor.index.stats()
        # They do not wait: another worker may not have seen the last write yet.
        rows = self.expected(actor, info.version, info.sequence, 0, own_writes=not actor.many)
        check(info.rows == len(rows), f"{actor.name} counts {info.rows} rows of {len(rows)}")

    def everything(self, actor: Actor) -> None:
        """Compare all datapoints, and that there are no others."""
        self.whole(actor, self.readable(actor))

    def readable(self, actor: Actor) -> Rows:
        """Return what `get` must answer, which does not say what it is of."""
        if actor.many:
            # Any worker may answer: it must have everything.
            actor.client._sequences.wrote(actor.index_name, self.world.position)
            return self.world.now
        # A look that finds the log cut answers once more of what there was, and the next one moves.
        before, info = None, actor.index.stats()
        while (info.version, info.sequence) != before:
            before, info = (info.version, info.sequence), actor.index.stats()
        return self.expected(actor, info.version, info.sequence, 0)

    def whole(self, actor: Actor, rows: Rows) -> None:
        """Compare all datapoints of an actor with some rows."""
        names = sorted({*rows, *(f"id{number}" for number in range(self.ids))})
        for start in range(0, len(names), MANY):
            part = names[start : start + MANY]
            self._compare_points(rows, part, actor.index.get(part, vectors=True))
        if not actor.many:
            found = actor.index.stats().rows
            check(found == len(rows), f"{actor.name} counts {found} rows of {len(rows)}")
        hits = actor.index.search([1.0] * DIMENSIONS, k=10_000, fields=[], exact=self.scann)
        names = [hit.id for hit in hits]
        check(len(names) == len(set(names)), f"an id stands twice: {twice(names)}")
        wanted = {name: row for name, row in rows.items() if row.vector is not None}
        check(set(names) == set(wanted), f"a search of everything differs: {_difference(names, wanted)}")
        for name, (size, _) in NAMED.items() if self.shape.named else ():
            query = [1.0] * size
            hits = actor.index.search(
                query, k=10_000, fields=[], exact=self.scann, vectors=name, mode="dense"
            )
            wanted = {id_: row for id_, row in rows.items() if name in row.vectors}
            found_ids = sorted(hit.id for hit in hits)
            check(
                found_ids == sorted(wanted), f"a search by {name} differs: {_difference(found_ids, wanted)}"
            )

    def _query(self, rng: random.Random) -> tuple[Any, Mode]:
        modes: list[Mode] = ["dense", "lexical", "hybrid"]
        mode = rng.choices(modes, [5, 3, 2])[0]
        vector = [rng.choice([-1.0, -0.5, 0.0, 0.5, 1.0]) for _ in range(DIMENSIONS)]
        vector = vector if any(vector) else [1.0] * DIMENSIONS
        words = " ".join(rng.choices(WORDS, k=rng.randrange(1, 4)))
        sparse = {dimension: rng.randrange(1, 5) / 2 for dimension in rng.sample(range(6), 2)}
        if mode == "hybrid":
            return scannery.Sparse(sparse, vector), mode
        if mode == "lexical":
            typed = Typed.wrong(words, rng) if rng.random() < 0.3 else words
            return (typed if rng.random() < 0.8 else scannery.Sparse(sparse)), mode
        return (vector if rng.random() < 0.9 else scannery.Like(f"id{rng.randrange(self.ids)}")), mode

    def _options(self, rng: random.Random, mode: Mode) -> dict[str, Any]:
        options: dict[str, Any] = {}
        if rng.random() < 0.5:
            options["where"] = self._filter(rng)
        if rng.random() < 0.25:
            options |= {"max_per_group": rng.randrange(1, 4), "group_by": rng.choice(GROUPS)}
        if rng.random() < 0.25:
            options["offset"] = rng.choice([1, 10, 200])
        if rng.random() < 0.15 and mode == "dense":
            # Not where a score can lie: rounding would decide.
            options["min_score"] = rng.randrange(-4, 4) / 2 - 0.003
        if rng.random() < 0.2 and "min_score" not in options:
            options["ranking"] = rng.choice(sorted(RANKINGS))
        if mode == "hybrid":
            options["alpha"] = rng.choice([0.25, 0.5, 1.0])
            options["fusion"] = rng.choice(["weighted_score", "reciprocal_rank"])
        if self.scann and rng.random() < 0.5:
            options["exact"] = True
        return options

    def _ask(self, actor: Actor, query: Any, least: int, asked: Mapping[str, Any]) -> Hits:
        if not least:
            return actor.index.search(query, **asked)
        if not getattr(actor, "server", True):  # looks by itself while it waits
            return actor.index.search(query, min_sequence=least, **asked)
        try:
            return actor.index.search(query, min_sequence=least, timeout_s=SHORT_S, **asked)
        except scannery.DeadlineExceededError:
            # The log has been cut beyond the version that it has open; it must look for the next one.
            actor.look()
            return actor.index.search(query, min_sequence=least, **asked)

    def _compare(self, hits: Hits, rows: Rows, query: Any, options: Mapping[str, Any]) -> None:
        oracle = self.oracle(rows, options.get("vectors", ""))
        ranked = self._ranked(oracle, query, options)
        where = f"{query!r} with {dict(options)!r}"
        for hit in hits:
            check(hit.id in rows, f"{hit.id} is found, and is not there; {where}")
        offset = options.get("offset", 0)
        wanted = ranked[offset : offset + options["k"]]
        found = [(hit.id, hit.score) for hit in hits]
        # Among proposals alone, a least score or a bound of groups may leave fewer than there are.
        fewer = self._approximate(options) and ("min_score" in options or "max_per_group" in options)
        check(
            len(found) == len(wanted) or (fewer and len(found) < len(wanted)),
            f"{len(found)} hits instead of {len(wanted)}; {where}",
        )
        exact = self._is_exact(ranked, options)
        if exact and [name for name, _ in found] != [name for name, _ in wanted]:
            check(False, f"other hits, or another order: {_first_difference(found, wanted)}; {where}")
        self._compare_loosely(found, wanted, dict(ranked), where, options)
        for hit in hits[:3]:
            compare_point(rows[hit.id], hit)

    def _ranked(self, oracle: Oracle, query: Any, options: Mapping[str, Any]) -> Ranked:
        mode, own = options["mode"], ""
        dense_query, words = query, query
        if isinstance(query, scannery.Like):
            own = str(query.id)
            dense_query = oracle.rows[own].vector
        if isinstance(query, scannery.Sparse):
            dense_query = query.query

        def lexical() -> Ranked:
            if isinstance(words, scannery.Sparse):
                return oracle.sparse(words.weights)
            return oracle.lexical(words.meant if isinstance(words, Typed) else words)

        if mode == "lexical":
            ranked = oracle.steered(oracle.kept(lexical(), options), options)
        elif mode == "dense":
            ranked = oracle.steered(oracle.kept(oracle.dense(dense_query), options), options)
        else:
            all_dense, all_lexical = oracle.dense(dense_query), lexical()
            dense, words_side = oracle.kept(all_dense, options), oracle.kept(all_lexical, options)
            scale = UNFILTERED if "where" not in options else oracle.scale(all_dense, all_lexical, len(dense))
            return self._fused(oracle, dense, words_side, own, options, scale)
        return oracle.crowded([pair for pair in ranked if pair[0] != own], options)

    def _fused(
        self,
        oracle: Oracle,
        dense: Ranked,
        lexical: Ranked,
        own: str,
        options: Mapping[str, Any],
        scale: Scale,
    ) -> Ranked:
        """Return the hits of hybrid search: more rows are fused while groups leave fewer hits than asked for."""
        asked = options.get("offset", 0) + options["k"]
        # The last row by score may be the first by a ranking expression.
        wanted = len(oracle.rows) if "ranking" in options else asked + bool(own)
        while True:
            ranked = oracle.fused(dense, lexical, wanted, options["alpha"], options["fusion"], scale)
            ranked = oracle.steered(ranked, options)
            hits = oracle.crowded([pair for pair in ranked if pair[0] != own], options)
            if len(hits) >= asked or len(ranked) < wanted or wanted >= len(oracle.rows):
                return hits
            wanted *= WIDENING

    def _is_exact(self, ranked: Ranked, options: Mapping[str, Any]) -> bool:
        """Return whether the order is certain: not where float32 decides."""
        mode = options["mode"]
        dense = mode != "lexical"
        if dense and (self._distance(options.get("vectors", "")) == "cosine" or self._approximate(options)):
            return False
        scores = [score for _, score in ranked]
        return all(a == b or abs(a - b) > NEAR * max(abs(a), abs(b)) for a, b in pairwise(scores))

    def _approximate(self, options: Mapping[str, Any]) -> bool:
        return self.scann and options["mode"] != "lexical" and not options.get("exact")

    def _compare_loosely(
        self,
        found: Ranked,
        wanted: Ranked,
        scores: Mapping[str, float],
        where: str,
        options: Mapping[str, Any],
    ) -> None:
        names = [name for name, _ in found]
        check(len(set(names)) == len(names), f"{twice(names)} twice; {where}")
        for (name, score), (after, next_score) in pairwise(found):
            check((-score, name) < (-next_score, after), f"{name} stands before {after}; {where}")
        hybrid = options["mode"] == "hybrid"
        if hybrid and not self._is_exact([], options):
            return
        if "max_per_group" in options and not self._is_exact([], options):
            return
        for name, score in found:
            check(name in scores, f"{name} is a hit and must not be; {where}")
            check(close(score, scores[name]), f"{name} has {score}, not {scores[name]}; {where}")
        if not self._approximate(options):
            for (name, score), (_, best) in zip(found, wanted, strict=True):
                check(close(score, best), f"{name} stands where one with {best} should; {where}")

    def _compare_points(self, rows: Rows, names: Sequence[str], points: Sequence[Datapoint | None]) -> None:
        for name, point in zip(names, points, strict=True):
            row = rows.get(name)
            check((point is None) == (row is None), f"{name} is {'gone' if point is None else 'there'}")
            if row is None or point is None:
                continue
            compare_point(row, point)
            check(
                (point.vector is None) == (row.vector is None), f"{name} comes with the vector {point.vector}"
            )
            check(
                point.vectors.keys() == row.vectors.keys(), f"{name} comes with the vectors {point.vectors}"
            )
            for own, vector in row.vectors.items():
                np.testing.assert_array_equal(point.vectors[own], np.array(vector, np.float32), err_msg=name)
            if row.vector is None:
                continue
            np.testing.assert_array_equal(point.vector, np.array(row.vector, np.float32), err_msg=name)


def compare_point(row: Row, point: Datapoint) -> None:
    """Compare a datapoint with what it should be."""
    wanted_attributes = row.all_attributes
    same = point.attributes == wanted_attributes and _dynamic(point.attributes) == exact(row.dynamic)
    check(same, f"{row.id}.attributes is {point.attributes!r}, not {wanted_attributes!r}")
    for field_name in ("document_id", "title", "text", "payload", "revision"):
        wanted, found = getattr(row, field_name), getattr(point, field_name)
        check(wanted == found, f"{row.id}.{field_name} is {found!r}, not {wanted!r}")


def _dynamic(attributes: Mapping[str, Any]) -> str:
    return exact({name: value for name, value in attributes.items() if name not in ATTRIBUTES})


def by_name(query: Any, asked: dict[str, Any], name: str) -> tuple[Any, dict[str, Any]]:
    """Return a search as one of the vectors of a name."""
    size = NAMED[name][0]
    if isinstance(query, scannery.Sparse):
        vector: Any = query.query
        query = scannery.Sparse(query.weights, vector[:size])
    elif not isinstance(query, scannery.Like):
        query = query[:size]
    return query, asked | {"vectors": name}


def close(one: float, other: float) -> bool:
    """Return whether scores are equal but for rounding."""
    return abs(one - other) <= CLOSE * max(1.0, abs(one), abs(other))


def twice(names: Sequence[str]) -> list[str]:
    """Return the names that stand more than once."""
    return sorted({name for name in names if names.count(name) > 1})


def _difference(names: Sequence[str], rows: Rows) -> str:
    return f"missing {sorted(rows.keys() - set(names))[:5]}, too many {sorted(set(names) - rows.keys())[:5]}"


def _first_difference(found: Ranked, wanted: Ranked) -> str:
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if one[0] != other[0]:
            return f"at {place} {one} instead of {other}"
    return "none"
