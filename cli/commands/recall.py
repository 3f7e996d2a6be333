"""`scannery recall`: measure the recall of an index as it is served."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from scannery.cli.index_samples import batched, sampled_vectors
from scannery.cli.options import (
    IndexOption,
    JsonOption,
    StoreOption,
    TargetOption,
    TimeoutOption,
    connected,
    parsed_json,
)
from scannery.cli.output import print_json
from scannery.client import Hit, Index

if TYPE_CHECKING:
    from scannery.evaluation.recall import RecallReport, Truth

__all__ = ["recall"]


def recall(
    index: IndexOption,
    target: TargetOption = None,
    store: StoreOption = None,
    queries: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with text or vector. Default: vectors near stored ones, which may be easier than real "
            "queries.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Hits per query.")] = 10,
    where: Annotated[str | None, typer.Option(metavar="JSON", help="Filter, as in search.")] = None,
    target_recall: Annotated[float | None, typer.Option(help="Search with this target recall.")] = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Measure the share of an exact search's hits that a search finds."""
    from scannery.evaluation.judgements import read_recall_queries
    from scannery.evaluation.recall import measure_served_recall

    options = {"where": parsed_json(where, "--where"), "fields": [], "mode": "dense"}
    with connected(target, store, timeout_s=timeout) as client:
        handle = client.index(index)
        query_list: Sequence[str | np.ndarray] = (
            read_recall_queries(queries) if queries is not None else sampled_vectors(handle)
        )
        report = measure_served_recall(
            _scores_of(handle, k, target_recall=target_recall, **options),
            _truth_of(handle, k, **options),
            query_list,
            k,
        )
    if as_json:
        print_json({"index": index, "sampled": queries is None, **asdict(report)})
    else:
        _print_recall(report, sampled=queries is None)


def _scores_of(
    index: Index, k: int, **options: Any
) -> Callable[[Sequence[str | np.ndarray]], list[list[float]]]:
    def search(queries: Sequence[str | np.ndarray]) -> list[list[float]]:
        return [[hit.score for hit in hits] for hits in batched(index, queries, k, **options)]

    return search


def _truth_of(index: Index, k: int, **options: Any) -> Callable[[Sequence[str | np.ndarray]], list[Truth]]:
    from scannery.evaluation.recall import Truth
    from scannery.indexer.tuning.settings_choice import magnitude_of

    distance = index.stats().distance

    def magnitude(query: str | np.ndarray, hits: Sequence[Hit]) -> float:
        row_D = hits[-1].vector if hits else None
        return (
            0.0 if row_D is None else magnitude_of(distance, row_D, None if isinstance(query, str) else query)
        )

    def search(queries: Sequence[str | np.ndarray]) -> list[Truth]:
        # Rounding errors grow with the length of the vectors.
        results = batched(index, queries, k, exact=True, vectors=True, **options)
        return [
            Truth([hit.score for hit in hits], magnitude(query, hits))
            for query, hits in zip(queries, results, strict=True)
        ]

    return search


def _print_recall(report: RecallReport, *, sampled: bool) -> None:
    interval = report.recall
    what = "vectors near stored ones" if sampled else "queries"
    typer.echo(
        f"recall@{report.k}  {interval.mean:.4f} ({interval.low:.3f}–{interval.high:.3f}), worst {report.worst:.2f}, "
        f"of {report.queries} {what}"
    )
    if report.short:
        typer.echo(f"{report.short} queries got fewer hits than exist")
    typer.echo(f"as served {report.seconds:.2f} s, exact {report.exact_seconds:.2f} s")
