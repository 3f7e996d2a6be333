"""Searches with a ranking expression against the exact order of all rows, and beside searches by score alone.

    python -m benchmarks.ranking [--folder FOLDER] [--seconds 1] [--rounds 5] [--queries 200]

39,133 real passages × 384 with questions about other shows (`benchmarks.data`); each has a number of `plays`,
log-normal, and a `published` time, 75 passages a week. Values are `(1 - w) * score + w * signal`, where the signal is
the mean of two: the logarithm of the plays as a share of the greatest, and a decay by 90 days. Filters allow shares of
the rows.

*Recall@10*: of the best ten by value of all allowed rows, by brute force; *of 100*: if the best hundred by score are
ordered by value, as engines that rescore do; *of Qdrant's*: if Qdrant's engine does that, by a formula over as many
candidates of its own index, where `qdrant-edge-py` is installed. Then searches/s of one caller over gRPC, and the ratio
to those by score alone with the same filter, in turns, medians.

Shapes: N rows, Q queries, D dimensions.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import scannery
from benchmarks.data import real_questions
from benchmarks.harness import environment, folder_of, in_turns, options, publish, served, table, throughput
from scannery.indexer import Store, parse_spec

__all__ = ["main"]

Peer = Callable[[np.ndarray, float, int], set[int]]
"""Returns the first K rows of a query, float32 (D,), by value with a weight, of those whose `at` is below a number."""

PASSAGES, K, RESCORED = 39_133, 10, 100
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.5, 0.9)
SHARES = (1.0, 0.1, 0.01, 0.001)
ORIGIN = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
SPEC = parse_spec(
    {
        "index": "ranked",
        "source": {"vector": "v"},
        "attributes": {"plays": "int", "published": "timestamp", "at": "int"},
    }
)


def attributes(rows: int) -> dict[str, np.ndarray]:
    """Return the attributes of all rows: `at` is independent of the others."""
    generator = np.random.default_rng(5)
    days_N = np.arange(rows) // 75 * 7.0
    return {
        "plays": np.exp(generator.normal(6, 2, rows)).astype(np.int64),
        "published": np.datetime64(ORIGIN.replace(tzinfo=None), "us")
        - (days_N * 86400e6).astype("timedelta64[us]"),
        "at": generator.permutation(rows),
    }


def expression(weight: float, greatest: float) -> str:
    """Return the expression of a weight."""
    signal = f"(log(1 + plays) / {greatest:.6f} + decay(published, '90d', {ORIGIN.timestamp():.0f})) / 2"
    return f"{1 - weight:g} * score + {weight:g} * {signal}"


def signals(columns: dict[str, np.ndarray]) -> tuple[np.ndarray, float]:
    """Return the signal of each row, float64 (N,), and the greatest logarithm."""
    logs_N = np.log1p(columns["plays"])
    ages_N = np.datetime64(ORIGIN.replace(tzinfo=None), "us") - columns["published"]
    days_N = ages_N.astype(np.int64) / 86400e6
    return (logs_N / logs_N.max() + 0.5 ** (days_N / 90)) / 2, float(logs_N.max())


def main() -> None:
    given = options(__doc__, folder=Path, seconds=1.0, rounds=5, queries=200)
    with folder_of(given.folder) as folder:
        real = real_questions(folder / "real")
        vectors_ND = np.ascontiguousarray(real.vectors_ND[:PASSAGES])
        columns = attributes(len(vectors_ND))
        store = folder / "ranked" / "store"
        if not store.exists():
            times = [value.replace(tzinfo=dt.UTC) for value in columns["published"].tolist()]
            values = {"plays": columns["plays"].tolist(), "published": times, "at": columns["at"].tolist()}
            publish(
                Store.open(store, create=True),
                SPEC,
                vectors_ND,
                folder,
                columns=values,
                queries_QD=real.asked_QD,
            )
        queries_QD = real.held_QD[: given.queries]
        peer = qdrant(folder / "qdrant", vectors_ND, columns) if find_spec("qdrant_edge") else None
        _report(store, vectors_ND, queries_QD, columns, given.seconds, given.rounds, peer)


def qdrant(folder: Path, vectors_ND: np.ndarray, columns: dict[str, np.ndarray]) -> Peer:
    """Return Qdrant's engine in this process with all rows, which it has in `folder`."""
    import qdrant_edge as edge

    if folder.exists():
        shard = edge.EdgeShard.load(str(folder))
    else:
        folder.mkdir(parents=True)
        config = edge.EdgeConfig(
            vectors={"": edge.EdgeVectorParams(vectors_ND.shape[1], edge.Distance.Dot)},
            hnsw_config=edge.HnswIndexConfig(16, 128, 10_000),
        )
        shard = edge.EdgeShard.create(str(folder), config)
        times = np.datetime_as_string(columns["published"], timezone="UTC").tolist()
        points = [
            edge.Point(row, vector, {"plays": plays, "published": time, "at": at})
            for row, (vector, plays, time, at) in enumerate(
                zip(
                    vectors_ND.tolist(), columns["plays"].tolist(), times, columns["at"].tolist(), strict=True
                )
            )
        ]
        for first in range(0, len(points), 1000):
            shard.update(edge.UpdateOperation.upsert_points(points[first : first + 1000]))
        shard.update(edge.UpdateOperation.create_field_index("at", edge.PayloadSchemaType.Integer))
        shard.optimize()
    of, greatest = edge.Expression, signals(columns)[1]
    origin = of.Datetime(ORIGIN.isoformat())
    age = of.Decay(edge.DecayKind.Exp, of.DatetimeKey("published"), origin, 0.5, 90 * 86400.0)
    plays = of.Ln(of.Sum([of.Constant(1.0), of.Variable("plays")]))

    def ask(query_D: np.ndarray, weight: float, allowed: int) -> set[int]:
        signal = of.Sum([of.Mult([of.Constant(1 / greatest), plays]), age])
        value = [
            of.Mult([of.Constant(1 - weight), of.Variable("$score")]),
            of.Mult([of.Constant(weight / 2), signal]),
        ]
        is_allowed: Any = None
        if allowed < len(vectors_ND):
            condition = edge.FieldCondition("at", range=edge.RangeFloat(lt=float(allowed)))
            is_allowed = edge.Filter(must=[condition])
        candidates = edge.Prefetch(
            limit=RESCORED,
            query=edge.Query.Nearest(query_D.tolist()),
            params=edge.SearchParams(hnsw_ef=RESCORED),
            filter=is_allowed,
        )
        formula = edge.Formula(of.Sum(value))
        hits = shard.query(edge.QueryRequest(limit=K, query=formula, prefetches=[candidates]))
        return {hit.id for hit in hits}

    return ask


def _report(
    store: Path,
    vectors_ND: np.ndarray,
    queries_QD: np.ndarray,
    columns: dict[str, np.ndarray],
    seconds: float,
    rounds: int,
    peer: Peer | None,
) -> None:
    signal_N, greatest = signals(columns)
    scores_QN = queries_QD @ vectors_ND.T
    rows = []
    print(environment())
    with served(store) as (_, address, _), scannery.connect(address) as client:
        index = client.index("ranked")
        for share in SHARES:
            allowed = int(share * len(vectors_ND))
            where = None if share == 1 else {"at": {"$lt": allowed}}
            is_allowed_N = columns["at"] < allowed
            by_score_QN = np.where(is_allowed_N, scores_QN, -np.inf)
            for weight in WEIGHTS:
                ranking = expression(weight, greatest)
                values_QN = np.where(is_allowed_N, (1 - weight) * scores_QN + weight * signal_N, -np.inf)
                recalls = _recalls(index, queries_QD, ranking, where, by_score_QN, values_QN)
                if peer is not None:
                    hits = [peer(query_D, weight, allowed) for query_D in queries_QD]
                    recalls.append(_recall(hits, values_QN))

                def plain(number: int, where: object = where) -> object:
                    return index.search(queries_QD[number % len(queries_QD)], K, where=where, fields=["id"])  # type: ignore[arg-type]  # a filter

                def ranked(number: int, where: object = where, ranking: str = ranking) -> object:
                    query_D = queries_QD[number % len(queries_QD)]
                    return index.search(query_D, K, where=where, ranking=ranking, fields=["id"])  # type: ignore[arg-type]  # a filter

                ways = {
                    "plain": lambda ask=plain: throughput(ask, 1, seconds)[0],
                    "ranked": lambda ask=ranked: throughput(ask, 1, seconds)[0],
                }
                turns = in_turns(ways, rounds)
                pairs = zip(turns["plain"], turns["ranked"], strict=True)
                ratio = median(after / before for before, after in pairs)
                rate = median(turns["ranked"])
                shown = [f"{recall:.3f}" for recall in recalls]
                rows.append([share, weight, *shown, f"{rate:,.0f}", f"{ratio:.2f}"])
    peers = [] if peer is None else ["of Qdrant's"]
    print(table(["allowed", "w", "recall@10", "of 100", *peers, "searches/s", "beside score alone"], rows))


def _recalls(
    index: scannery.Index,
    queries_QD: np.ndarray,
    ranking: str,
    where: object,
    by_score_QN: np.ndarray,
    values_QN: np.ndarray,
) -> list[float]:
    """Return the recall of searches with a ranking, and that of the best hundred by score in the same order."""
    answers = index.search_many(queries_QD, K, where=where, ranking=ranking, fields=["id"])  # type: ignore[arg-type]  # a filter
    assert all(hits.unseen_bound is None for hits in answers)
    rescored = []
    for scores_N, values_N in zip(by_score_QN, values_QN, strict=True):
        first = _best(scores_N, RESCORED)
        rescored.append(_best(np.where(np.isin(np.arange(len(values_N)), list(first)), values_N, -np.inf), K))
    found = [{int(hit.id[1:]) for hit in hits} for hits in answers]
    return [_recall(found, values_QN), _recall(rescored, values_QN)]


def _recall(hits: Sequence[set[int]], values_QN: np.ndarray) -> float:
    """Return the mean recall of the hits of each query."""
    best = [_best(values_N, K) for values_N in values_QN]
    pairs = zip(hits, best, strict=True)
    return float(np.mean([len(rows & wanted) / max(1, len(wanted)) for rows, wanted in pairs]))


def _best(values_N: np.ndarray, count: int) -> set[int]:
    order = np.argsort(-values_N, kind="stable")[:count]
    return set(order[np.isfinite(values_N[order])].tolist())


if __name__ == "__main__":
    main()
