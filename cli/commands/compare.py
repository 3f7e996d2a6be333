"""`scannery compare`: compare answers that another system gave with those of an index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scannery.cli.index_samples import batched, existing_ids
from scannery.cli.options import (
    IndexOption,
    JsonOption,
    StoreOption,
    TargetOption,
    TimeoutOption,
    connected,
)
from scannery.cli.output import print_json
from scannery.client import Index

if TYPE_CHECKING:
    from scannery.evaluation.comparison import AnsweredQuery, Comparison, OtherAnswer
    from scannery.evaluation.measures import Interval

__all__ = ["compare"]

SHOWN_IDS = 5


def compare(
    index: IndexOption,
    answers: Annotated[
        str,
        typer.Option(
            "--with",
            metavar="FILE",
            help="Answers of the other system: JSON lines with text or vector, hits (ids, best first), and "
            "optionally id and where.",
        ),
    ],
    target: TargetOption = None,
    store: StoreOption = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits per query that are compared.")] = 10,
    target_recall: Annotated[float | None, typer.Option(help="Search with this target recall.")] = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Compare answers that another system gave with those of an index, and both with an exact search."""
    from scannery.evaluation import comparison

    theirs = comparison.read_answers(answers)
    with connected(target, store, timeout_s=timeout) as client:
        handle = client.index(index)
        ids = sorted({hit for answer in theirs for hit in answer.hits})
        missing = sorted(set(ids) - existing_ids(handle, ids))
        report = comparison.compare(_answered(handle, theirs, k, target_recall), k)
    if as_json:
        print_json({"index": index, **asdict(report), "ids": len(ids), "missing": missing})
    else:
        _print_comparison(report, len(ids), missing)


def _answered(
    index: Index, theirs: Sequence[OtherAnswer], k: int, target_recall: float | None
) -> list[AnsweredQuery]:
    from scannery.evaluation.comparison import AnsweredQuery

    ours = _ids_of(index, theirs, k, target_recall=target_recall)
    exact = _ids_of(index, theirs, k, exact=True)
    return [
        AnsweredQuery(answer.id, answer.hits, *hits)
        for answer, hits in zip(theirs, zip(ours, exact, strict=True), strict=True)
    ]


def _ids_of(index: Index, theirs: Sequence[OtherAnswer], k: int, **options: Any) -> list[list[str]]:
    """Return the ids of the hits of each query; queries with equal filters are asked together."""
    ids: list[list[str]] = [[] for _ in theirs]
    groups: dict[str, list[int]] = {}
    for number, answer in enumerate(theirs):
        groups.setdefault(json.dumps(answer.where, sort_keys=True), []).append(number)
    for numbers in groups.values():
        queries = [_query(theirs[number]) for number in numbers]
        where = theirs[numbers[0]].where
        answers = batched(index, queries, k, where=where, fields=[], mode="dense", **options)
        for number, hits in zip(numbers, answers, strict=True):
            ids[number] = [hit.id for hit in hits]
    return ids


def _query(answer: OtherAnswer) -> Any:
    return answer.query.text if answer.query.vector is None else answer.query.vector


def _print_comparison(report: Comparison, ids: int, missing: Sequence[str]) -> None:
    typer.echo(f"{report.queries:,} queries, {report.k} hits each")
    typer.echo(f"same hits       {_shown(report.same)}")
    typer.echo(f"same first hit  {report.same_first:.4f}")
    typer.echo(
        f"of the hits of an exact search: they {_shown(report.their_recall)}, we {_shown(report.our_recall)}"
    )
    if report.different:
        typer.echo(
            "most different  " + ", ".join(f"query {name} ({share:.2f})" for name, share in report.different)
        )
    if missing:
        more = ", …" if len(missing) > SHOWN_IDS else ""
        typer.echo(
            f"warning: the index lacks {len(missing):,} of the {ids:,} ids in their answers: "
            f"{', '.join(missing[:SHOWN_IDS])}{more}",
            err=True,
        )


def _shown(interval: Interval) -> str:
    return f"{interval.mean:.4f} ({interval.low:.3f}–{interval.high:.3f})"
