"""`scannery judge`: write relevance judgements by hand, from the pooled hits of several modes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scannery.cli.index_samples import asked_of, derived_queries, possible_modes
from scannery.cli.judging_terminal import JudgingSession, Task, keyboard
from scannery.cli.options import (
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
    from scannery.evaluation.judgements import JudgementFile, Query

__all__ = ["judge"]

FEW_QUERIES = 50
"""Queries, as many as the test collections of TREC have at least."""


def judge(
    queries: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="Queries: JSON lines with _id and text, .tsv, or a .txt with one per line."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            metavar="FILE",
            help="Judgements, which are added to: .jsonl, .trec (TREC), or another name (BEIR).",
        ),
    ],
    location: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[STORE] [INDEX]", help="In place of --store and --index.", show_default=False
        ),
    ] = None,
    index: Annotated[str | None, typer.Option("--index", "-i", help="Name of the index.")] = None,
    target: TargetOption = None,
    store: StoreOption = None,
    derive: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            max=10_000,
            help="If FILE does not exist: write N queries from the index's own texts.",
        ),
    ] = None,
    depth: Annotated[int, typer.Option(min=1, max=1000, help="Hits of each mode to judge.")] = 10,
    where: Annotated[str | None, typer.Option(metavar="JSON", help="Filter, as in search.")] = None,
    passages: Annotated[bool, typer.Option("--passages", help="Judge datapoints, not documents.")] = False,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Judge the hits of queries in a terminal: one key for each, saved at once, and continued where it stopped."""
    from scannery.evaluation.judgements import JudgementFile, read_queries

    index, target, store = _location(location or [], index, target, store)
    filtered = parsed_json(where, "--where")
    with connected(target, store, timeout_s=timeout) as client:
        handle = client.index(index)
        if derive is not None and not queries.exists():
            _write_derived(queries, handle, derive, filtered)
        query_texts = read_queries(queries)
        pools = Pools(index=handle, queries=query_texts, depth=depth, where=filtered, passages=passages)
        with JudgementFile(output) as file:
            if file.repaired:
                typer.echo(f"warning: {output} ended with an unfinished line, which was removed", err=True)
            summary = _judge(pools, file)
    if as_json:
        print_json({"output": str(output), **asdict(summary)})
    else:
        _print_summary(summary, output)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """What a session did."""

    judged: int
    skipped: int
    judgements: int
    """Judgements of the file, in all."""
    queries: int
    queries_with_judgements: int
    queries_with_relevant: int
    queries_without_hits: int


@dataclass(frozen=True, kw_only=True)
class Pools:
    """Finds what to judge for each query."""

    index: Index
    queries: Mapping[str, Query]
    depth: int
    where: Any
    passages: bool

    def tasks(self, number: int, query_id: str, modes: Sequence[str]) -> list[Task]:
        """Return the hits of a query in an order that does not tell their ranks."""
        from scannery.evaluation.comparison import pool

        query = self.queries[query_id]
        hits = pool([self._hits(query, mode) for mode in modes], self._name, seed=query_id)
        return [
            Task(query_number=number, query_id=query_id, query=str(query), name=self._name(hit), hit=hit)
            for hit in hits
        ]

    def _hits(self, query: Query, mode: str) -> list[Hit]:
        groups: dict[str, Any] = {} if self.passages else {"max_per_group": 1}
        options = {"mode": mode, "where": self.where, "fields": ["title", "text"], **groups}
        return list(self.index.search(asked_of(query, mode), self.depth, **options))

    def _name(self, hit: Hit) -> str:
        return hit.id if self.passages else hit.document_id


def _location(
    location: Sequence[str], index: str | None, target: str | None, store: str | None
) -> tuple[str, str | None, str | None]:
    """Return index, target and store, from options or from the arguments STORE INDEX."""
    words = list(location)
    if words and store is None and target is None:
        store = words.pop(0)
    if words and index is None:
        index = words.pop(0)
    if words:
        raise typer.BadParameter(f"give at most STORE and INDEX, and each once; got also {' '.join(words)!r}")
    if index is None:
        raise typer.BadParameter("give --index NAME, or the arguments STORE INDEX")
    return index, target, store


def _judge(pools: Pools, file: JudgementFile) -> Summary:
    with keyboard() as keys:
        session = JudgingSession(file=file, queries=len(pools.queries), keys=keys)
        empty = _judge_all(pools, file, session)
    levels = [file.judgements.get(query_id, {}) for query_id in pools.queries]
    return Summary(
        judged=session.judged,
        skipped=session.skipped,
        judgements=sum(map(len, file.judgements.values())),
        queries=len(pools.queries),
        queries_with_judgements=sum(map(bool, levels)),
        queries_with_relevant=sum(
            any(level > 0 for level in levels_of_query.values()) for levels_of_query in levels
        ),
        queries_without_hits=empty,
    )


def _judge_all(pools: Pools, file: JudgementFile, session: JudgingSession) -> int:
    """Judge query by query, and return the number of queries without hits."""
    modes = possible_modes(pools.index, pools.queries)
    names = list(pools.queries)
    empty: set[str] = set()
    position, start = 0, None
    while position < len(names):
        query_id = names[position]
        tasks = pools.tasks(position + 1, query_id, modes)
        if not tasks:
            empty.add(query_id)
        judged = file.judgements.get(query_id, {})
        after = session.judge([task for task in tasks if task.name not in judged], start)
        if after == "quit":
            break
        # An undone step is of an earlier query, which is shown again.
        back = None if after == "next" else after.task
        position, start = (position + 1, None) if back is None else (names.index(back.query_id), back.name)
    return len(empty)


def _write_derived(path: Path, index: Index, count: int, where: Any) -> None:
    if path.suffix in (".tsv", ".txt"):
        raise typer.BadParameter("derived queries are JSON lines: name it .jsonl", param_hint="--queries")
    lines = [
        json.dumps(
            {"_id": query.query_id, "text": query.text, "derived_from": query.document_id}, ensure_ascii=False
        )
        for query in derived_queries(index, count, where)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    typer.echo(f"wrote {len(lines):,} queries to {path}; replace them by your users' where you can", err=True)


def _print_summary(summary: Summary, output: Path) -> None:
    typer.echo(
        f"\n{summary.judged:,} judgements added, {summary.skipped:,} hits skipped; {output} has "
        f"{summary.judgements:,} judgements, of {summary.queries_with_judgements:,} of the {summary.queries:,} queries"
    )
    if summary.queries_without_hits:
        typer.echo(f"{summary.queries_without_hits:,} queries have no hits")
    if summary.queries_with_relevant < FEW_QUERIES:
        typer.echo(
            f"{summary.queries_with_relevant:,} queries have a relevant document; with fewer than {FEW_QUERIES}, "
            "differences between modes are mostly chance"
        )
