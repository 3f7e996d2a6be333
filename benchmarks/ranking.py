"""Searches with a ranking expression against the exact order of all rows, and beside searches by score alone.

    python -m benchmarks.ranking [--folder FOLDER] [--seconds 1] [--rounds 5] [--queries 200]

39,133 real passages × 384 with questions about other shows (`benchmarks.data`); each has a number of `plays`,
log-normal, and a `published` time, 75 passages a week. Values are `(1 - w) * score + w * signal`, where the signal is
the mean of two: the logarithm of the plays as a share of the greatest, and a decay by 90 days. Filters allow shares of
the rows.

*Recall@10*: of the best ten by value of all allowed rows, by brute force; *of 100*: if the best hundred by score are
ordered by value, as engines that rescore do. Then searches/s of one caller over gRPC, and the ratio to those by score
alone with the same filter, in turns, medians.

Shapes: N rows, Q queries, D dimensions.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from statistics import median

import numpy as np

import scannery
from benchmarks.data import real_questions
from benchmarks.harness import environment, folder_of, in_turns, options, publish, served, table, throughput
from scannery.indexer import Store, parse_spec

__all__ = ["main"]

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
        _report(store, vectors_ND, real.held_QD[: given.queries], columns, given.seconds, given.rounds)


def _report(
    store: Path,
    vectors_ND: np.ndarray,
    queries_QD: np.ndarray,
    columns: dict[str, np.ndarray],
    seconds: float,
    rounds: int,
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
                recall, rescored = _recalls(index, queries_QD, ranking, where, by_score_QN, values_QN)

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
                rows.append([share, weight, recall, rescored, f"{rate:,.0f}", f"{ratio:.2f}"])
    print(table(["allowed", "w", "recall@10", "of 100", "searches/s", "beside score alone"], rows))


def _recalls(
    index: scannery.Index,
    queries_QD: np.ndarray,
    ranking: str,
    where: object,
    by_score_QN: np.ndarray,
    values_QN: np.ndarray,
) -> tuple[str, str]:
    """Return the recall of searches with a ranking, and that of the best hundred by score in the same order."""
    answers = index.search_many(queries_QD, K, where=where, ranking=ranking, fields=["id"])  # type: ignore[arg-type]  # a filter
    recalls, rescored = [], []
    for hits, scores_N, values_N in zip(answers, by_score_QN, values_QN, strict=True):
        assert hits.unseen_bound is None
        best = _best(values_N, K)
        first = _best(scores_N, RESCORED)
        recalls.append(len(best & {int(hit.id[1:]) for hit in hits}) / max(1, len(best)))
        among_first_N = np.where(np.isin(np.arange(len(values_N)), list(first)), values_N, -np.inf)
        rescored.append(len(best & _best(among_first_N, K)) / max(1, len(best)))
    return f"{np.mean(recalls):.3f}", f"{np.mean(rescored):.3f}"


def _best(values_N: np.ndarray, count: int) -> set[int]:
    order = np.argsort(-values_N, kind="stable")[:count]
    return set(order[np.isfinite(values_N[order])].tolist())


if __name__ == "__main__":
    main()
