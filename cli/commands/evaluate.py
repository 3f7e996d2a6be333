"""`scannery evaluate` and `scannery recall`: measure retrieval quality and recall of an index."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, get_args

import numpy as np
import typer
from rich.table import Table

from scannery.cli.client_options import (
    IndexOption,
    JsonOption,
    StoreOption,
    TargetOption,
    TimeoutOption,
    connected,
    parsed_json,
)
from scannery.cli.output import console, print_json
from scannery.client import Fusion, Hit, Index, Mode

if TYPE_CHECKING:
    from scannery.pipelines.evaluation.evaluate import Evaluation
    from scannery.pipelines.evaluation.recall import RecallReport, Truth

__all__ = ["evaluate", "recall"]

BATCH = 100
SAMPLED = 200

WhereOption = Annotated[str | None, typer.Option(metavar="JSON", help="Filter, as in search.")]


def evaluate(
    index: IndexOption,
    queries: Annotated[str, typer.Option(metavar="FILE", help="JSON lines with _id and text (BEIR).")],
    qrels: Annotated[str, typer.Option(metavar="FILE", help="Judgements in BEIR's or TREC's format.")],
    target: TargetOption = None,
    store: StoreOption = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode", "-m", help="Comma-separated: dense, lexical, hybrid. Default: all that the index has."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Hits per query, and the k of recall@k.")] = 100,
    alpha: Annotated[float | None, typer.Option(help="Hybrid: weight of dense search.")] = None,
    fusion: Annotated[Fusion | None, typer.Option(help="Hybrid: method of combining two rankings.")] = None,
    where: WhereOption = None,
    passages: Annotated[
        bool, typer.Option("--passages", help="Judgements name datapoints, not documents.")
    ] = False,
    differences: Annotated[
        int, typer.Option(help="Number of queries to show whose results differ most between modes.")
    ] = 5,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Measure nDCG@10, MRR@10 and recall@k of an index against relevance judgements."""
    from scannery.pipelines.evaluation.evaluate import evaluate as measured
    from scannery.pipelines.evaluation.judgements import read_judgements, read_queries

    texts, judgements = read_queries(queries), read_judgements(qrels)
    options = {"where": parsed_json(where, "--where"), "fields": []}
    if not passages:
        options["max_per_group"] = 1
    with connected(target, store, timeout_s=timeout) as client:
        asked = client.index(index)
        searches: dict[str, Callable[[Sequence[str]], Sequence[Sequence[str]]]] = {}
        for name in _modes(mode, asked):
            fused = {"alpha": alpha, "fusion": fusion} if name == "hybrid" else {}
            searches[name] = _ids_of(asked, k, name, passages=passages, **options, **fused)
        results = measured(searches, texts, judgements, k=k)
    if as_json:
        print_json(_evaluation_json(index, results, texts, differences))
    else:
        _print_evaluation(results, texts, differences)


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
    where: WhereOption = None,
    target_recall: Annotated[float | None, typer.Option(help="Search with this target recall.")] = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Measure the share of an exact search's hits that a search finds."""
    from scannery.pipelines.evaluation.judgements import read_recall_queries
    from scannery.pipelines.evaluation.recall import measure_served_recall

    options = {"where": parsed_json(where, "--where"), "fields": [], "mode": "dense"}
    with connected(target, store, timeout_s=timeout) as client:
        asked = client.index(index)
        wanted: Sequence[str | np.ndarray] = (
            read_recall_queries(queries) if queries is not None else _sampled(asked)
        )
        report = measure_served_recall(
            _scores_of(asked, k, target_recall=target_recall, **options),
            _truth_of(asked, k, **options),
            wanted,
            k,
        )
    if as_json:
        print_json({"index": index, "sampled": queries is None, **asdict(report)})
    else:
        _print_recall(report, sampled=queries is None)


def _modes(given: str | None, index: Index) -> list[Mode]:
    known = get_args(Mode)
    if given is None:
        info = index.stats()
        possible = {"dense": info.encoder is not None, "lexical": info.lexical}
        possible["hybrid"] = all(possible.values())
        return [name for name in known if possible[name]] or ["dense"]
    names = list(dict.fromkeys(name.strip() for name in given.split(",")))
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"--mode must be one or more of {', '.join(known)}, got {name!r}")
    return [name for name in known if name in names]


def _ids_of(
    index: Index, k: int, mode: Mode, *, passages: bool, **options: Any
) -> Callable[[Sequence[str]], list[list[str]]]:
    def search(texts: Sequence[str]) -> list[list[str]]:
        hits = _batched(index, texts, k, mode=mode, **options)
        return [[hit.id if passages else hit.document_id for hit in found] for found in hits]

    return search


def _scores_of(
    index: Index, k: int, **options: Any
) -> Callable[[Sequence[str | np.ndarray]], list[list[float]]]:
    def search(queries: Sequence[str | np.ndarray]) -> list[list[float]]:
        return [[hit.score for hit in found] for found in _batched(index, queries, k, **options)]

    return search


def _truth_of(index: Index, k: int, **options: Any) -> Callable[[Sequence[str | np.ndarray]], list[Truth]]:
    from scannery.indexer.tuning.settings_choice import magnitude_of
    from scannery.pipelines.evaluation.recall import Truth

    distance = index.stats().distance

    def magnitude(query: str | np.ndarray, hits: Sequence[Hit]) -> float:
        row_D = hits[-1].vector if hits else None
        return (
            0.0 if row_D is None else magnitude_of(distance, row_D, None if isinstance(query, str) else query)
        )

    def search(queries: Sequence[str | np.ndarray]) -> list[Truth]:
        # Rounding errors grow with the length of the vectors.
        found = _batched(index, queries, k, exact=True, vectors=True, **options)
        return [
            Truth([hit.score for hit in hits], magnitude(query, hits))
            for query, hits in zip(queries, found, strict=True)
        ]

    return search


def _batched(index: Index, queries: Sequence[Any], k: int, **options: Any) -> list[Any]:
    # A server limits the hits of one call to 100,000.
    size = max(1, min(BATCH, 100_000 // max(k, 1)))
    parts = (queries[start : start + size] for start in range(0, len(queries), size))
    return [hits for part in parts for hits in index.search_many(list(part), k, **options)]


def _sampled(index: Index) -> list[np.ndarray]:
    """Return vectors near stored ones: those that random directions find, moved a little."""
    from scannery.pipelines.evaluation.recall import near_vectors

    dimensions = index.stats().dimensions
    directions = np.random.default_rng(0).standard_normal((BATCH, dimensions)).astype(np.float32)
    hits = [hit for found in index.search_many(directions, 10, fields=[], vectors=True) for hit in found]
    distinct = list({hit.id: hit.vector for hit in hits if hit.vector is not None}.values())
    if not distinct:
        raise typer.BadParameter("the index is empty")
    return list(near_vectors(np.stack(distinct[:SAMPLED])))


def _evaluation_json(
    index: str, results: Sequence[Evaluation], texts: dict[str, str], differences: int
) -> dict[str, Any]:
    from scannery.pipelines.evaluation.evaluate import largest_differences

    modes = {
        result.name: {
            "metrics": {metric: asdict(interval) for metric, interval in result.means.items()},
            "seconds": round(result.seconds, 3),
        }
        for result in results
    }
    pairs = [
        {
            "modes": [one.name, other.name],
            "queries": [
                {
                    "id": item.query_id,
                    "text": texts[item.query_id],
                    one.name: item.one,
                    other.name: item.other,
                }
                for item in largest_differences(one, other, differences)
            ],
        }
        for one, other in _pairs(results)
    ]
    return {
        "index": index, "queries": len(results[0].query_ids), "left_out": len(texts) - len(results[0].query_ids),
        "modes": modes, "differences": pairs,
    }  # fmt: skip


def _pairs(results: Sequence[Evaluation]) -> list[tuple[Evaluation, Evaluation]]:
    return [(one, other) for number, one in enumerate(results) for other in results[number + 1 :]]


def _print_evaluation(results: Sequence[Evaluation], texts: dict[str, str], differences: int) -> None:
    from scannery.pipelines.evaluation.evaluate import MAIN_METRIC, largest_differences

    count = len(results[0].query_ids)
    table = Table(title=f"{count} queries; 95 % intervals", title_justify="left")
    table.add_column("mode")
    for metric in results[0].values:
        table.add_column(metric, justify="right", no_wrap=True)
    table.add_column("seconds", justify="right")
    for result in results:
        cells = [f"{i.mean:.4f} ({i.low:.3f}–{i.high:.3f})" for i in result.means.values()]
        table.add_row(result.name, *cells, f"{result.seconds:.1f}")
    out = console()
    out.print(table)
    if left_out := len(texts) - count:
        out.print(f"Left out, without a relevant document: {left_out}")
    for one, other in _pairs(results):
        items = largest_differences(one, other, differences)
        if items:
            out.print(f"\nMost different {MAIN_METRIC}, {one.name} against {other.name}:")
        for item in items:
            text = "".join(char if char.isprintable() else " " for char in texts[item.query_id])
            out.print(f"  {item.one:.3f}  {item.other:.3f}  {item.query_id}: {text:.100}", markup=False)


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
