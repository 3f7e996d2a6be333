"""`scannery log`: figures, judgements and exports of the log of queries, and what is to be forgotten of it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import date, datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from scannery.cli.errors import NO
from scannery.cli.options import IndexOption, JsonOption, ServedStoreOption, connected
from scannery.cli.output import console, json_text, print_json
from scannery.evaluation.traffic.pairs import MIN_ASKERS

if TYPE_CHECKING:
    from scannery.evaluation.traffic.shadow import ShadowReport
    from scannery.evaluation.traffic.statistics import DayStatistics
    from scannery.indexer import Store

__all__ = ["log_app"]

log_app = typer.Typer(
    no_args_is_help=True,
    help="Look at the log of queries and feedback, make judgements of it, hand it on, forget what is in it.",
)

DaysOption = Annotated[int, typer.Option("--days", min=1, help="Only the last days, today included.")]
TIMEOUT_S = 60.0


@log_app.command(no_args_is_help=True)
def stats(
    index: IndexOption, store: ServedStoreOption, days: DaysOption = 30, as_json: JsonOption = False
) -> None:
    """Show queries, empty answers, clicks, scores and latencies, day by day."""
    from scannery.evaluation.traffic.statistics import statistics
    from scannery.indexer.traffic.day_files import read_rows
    from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery

    opened, name = _opened(store, index)
    since = _since(days)
    by_day = statistics(
        read_rows(opened, name, LoggedQuery, since=since), read_rows(opened, name, LoggedEvent, since=since)
    )
    if as_json:
        print_json([asdict(day) | {"day": day.day.isoformat()} for day in by_day])
    elif by_day:
        console().print(_table(by_day))
    else:
        typer.echo(
            f"The log of {name} has no queries of the last {days} days; scannery serve --traffic-share keeps one."
        )


@log_app.command(no_args_is_help=True)
def shadow(
    index: IndexOption,
    shadow_name: Annotated[
        str, typer.Option("--shadow", metavar="NAME", help="Name of the index that was asked the same.")
    ],
    store: ServedStoreOption,
    days: DaysOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Show how an index and its shadow differ, which one people prefer, and whether that is enough to decide."""
    from scannery.evaluation.traffic.shadow import shadow_report
    from scannery.indexer.traffic.day_files import read_rows
    from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery, ShadowAnswer

    opened, name = _opened(store, index)
    since = _since(days)
    report = shadow_report(
        shadow_name,
        read_rows(opened, name, LoggedQuery, since=since),
        read_rows(opened, name, ShadowAnswer, since=since),
        read_rows(opened, name, LoggedEvent, since=since),
    )
    if as_json:
        print_json(asdict(report))
        return
    for line in _shadow_lines(name, shadow_name, report):
        typer.echo(line)


def _shadow_lines(index: str, shadow_name: str, report: ShadowReport) -> Iterator[str]:
    preference = report.preference
    if not report.answers and not report.errors and not preference.answers:
        yield f"No query of {index} was asked of {shadow_name}: start scannery serve --shadow {index}={shadow_name}"
        return
    if report.errors:
        problems = ", ".join(f"{count:,} {code}" for code, count in sorted(report.errors.items()))
        yield f"{shadow_name} could not answer: {problems}"
    if (overlap := report.overlap) is not None:
        yield (
            f"{report.answers:,} queries were answered by both. Of the first ten hits {overlap.mean:.1%} are in both "
            f"({overlap.low:.1%} to {overlap.high:.1%}), {report.moves:.1f} places apart; the first one is the same in "
            f"{report.same_first:.1%}."
        )
        yield from (
            f"{each}: no hit {empty:.1%}, best score {_range(scores, 3)}, median and p99 {_range(latency_ms, 1)} ms"
            for each, empty, scores, latency_ms in (
                (index, report.empty_share, report.scores, report.latency_ms),
                (shadow_name, report.shadow_empty_share, report.shadow_scores, report.shadow_latency_ms),
            )
        )
    if preference.answers:
        yield (
            f"{preference.answers:,} answers had hits of both, {preference.clicked:,} were clicked: "
            f"{preference.index_wins:,} more for {index}, {preference.shadow_wins:,} more for {shadow_name} "
            f"({preference.share:.1%}; {preference.low:.1%} to {preference.high:.1%} at any time)."
        )
        yield {
            "index": f"Enough: people prefer {index}.",
            "shadow": f"Enough: people prefer {shadow_name}.",
            "equal": "Enough: of a hundred clicked answers, neither wins five more than the other.",
            "undecided": "Not enough yet: go on.",
        }[preference.verdict]


@log_app.command(no_args_is_help=True)
def drift(
    index: IndexOption,
    store: ServedStoreOption,
    new_days: Annotated[
        int, typer.Option(min=1, help="Days, today included, that are compared with those before.")
    ] = 7,
    days: DaysOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Tell whether users ask for other things than before; exit code 1 if they do."""
    from scannery.evaluation.traffic.drift import LEAST_QUERIES, drift_of, sampled_texts
    from scannery.indexer.traffic.day_files import read_rows
    from scannery.indexer.traffic.rows import LoggedQuery
    from scannery.indexer.vectors.exact_search import unit_length
    from scannery.pipelines.errors import CollectionError

    opened, name = _opened(store, index)
    texts = sampled_texts(read_rows(opened, name, LoggedQuery, since=_since(days)), _since(new_days))
    if min(len(texts.former), len(texts.new)) < LEAST_QUERIES:
        raise CollectionError(
            f"the log of {name} has {len(texts.new)} texts of the last {new_days} days and {len(texts.former)} of the "
            f"days before; {LEAST_QUERIES} of each are needed (scannery serve --traffic-text)",
            field="index",
        )
    with connected(None, store, timeout_s=TIMEOUT_S) as client:
        vectors = [client.index(name).embed(each) for each in texts]
    result = drift_of(*map(unit_length, vectors))
    farthest = [texts.new[number] for number in result.farthest]
    if as_json:
        print_json({**asdict(result), "farthest": farthest, "drifted": result.has_drifted})
    else:
        verdict = (
            "ask for other things than before" if result.has_drifted else "ask for the same things as before"
        )
        typer.echo(
            f"Users of {name} {verdict}: the chance of such a difference is {max(result.chances):.4f} "
            f"({result.new:,} queries beside {result.former:,})."
        )
        if result.has_drifted:
            typer.echo("Least like before:")
            for text in dict.fromkeys(farthest):
                typer.echo(f"  {text}")
    if result.has_drifted:
        raise typer.Exit(NO)


@log_app.command(no_args_is_help=True)
def pairs(
    index: IndexOption,
    store: ServedStoreOption,
    output: Annotated[
        Path,
        typer.Option(
            "--output", metavar="FOLDER", help="Folder for corpus.jsonl, queries.jsonl and qrels.tsv."
        ),
    ],
    min_askers: Annotated[
        int, typer.Option(min=1, help="Leave out texts that fewer distinct users have asked.")
    ] = MIN_ASKERS,
    passages: Annotated[bool, typer.Option("--passages", help="Judge datapoints, not documents.")] = False,
    days: DaysOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Write what users clicked and passed over as judgements, which `scannery evaluate` reads."""
    from scannery.evaluation.traffic.collection import write_collection
    from scannery.evaluation.traffic.pairs import judged_texts
    from scannery.indexer.traffic.day_files import read_rows
    from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery

    opened, name = _opened(store, index)
    since = _since(days)
    judged = judged_texts(
        read_rows(opened, name, LoggedQuery, since=since),
        read_rows(opened, name, LoggedEvent, since=since),
        min_askers=min_askers,
    )
    with connected(None, store, timeout_s=TIMEOUT_S) as client:
        datapoints = client.index(name)

        def lookup(ids: Sequence[str]) -> Sequence[Any]:
            return datapoints.get(ids, fields=["title", "text"])

        report = write_collection(judged, output, lookup, passages=passages)
    if as_json:
        print_json(asdict(report))
        return
    gone = f"; {report.gone:,} judged hits are not in the index any more" if report.gone else ""
    typer.echo(
        f"{report.queries:,} queries; {report.right:,} pairs are right, {report.reformulated:,} of them by what was "
        f"asked next, and {report.wrong:,} wrong, {report.rejected:,} of them rejected; {report.documents:,} documents "
        f"in {output}{gone}"
    )
    if not report.queries:
        typer.echo(
            f"A text becomes a query from {min_askers} distinct users on (--min-askers), with a click or a rejection; "
            "the log has texts with scannery serve --traffic-text.",
            err=True,
        )
    else:
        typer.echo(
            f"Next: scannery evaluate --index {name} --store {shlex.quote(store)} "
            f"--queries {shlex.quote(f'{output}/queries.jsonl')} --qrels {shlex.quote(f'{output}/qrels.tsv')}"
            f"{' --passages' if passages else ''}"
        )


@log_app.command(no_args_is_help=True)
def export(
    index: IndexOption,
    store: ServedStoreOption,
    output: Annotated[
        Path,
        typer.Option("--output", metavar="FOLDER", help="Folder for ubi_queries.jsonl and ubi_events.jsonl."),
    ],
    days: DaysOption = 30,
    as_json: JsonOption = False,
) -> None:
    """Write the log as JSON lines of User Behavior Insights 1.3, for other tools."""
    from scannery.indexer.traffic.day_files import read_rows
    from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery
    from scannery.indexer.traffic.user_behavior import event_document, query_document

    opened, name = _opened(store, index)
    since, counts = _since(days), {"queries": 0, "events": 0}
    output.mkdir(parents=True, exist_ok=True)
    with (output / "ubi_queries.jsonl").open("w") as lines:
        for query in read_rows(opened, name, LoggedQuery, since=since):
            lines.write(json_text(query_document(query, name)) + "\n")
            counts["queries"] += 1
    with (output / "ubi_events.jsonl").open("w") as lines:
        for event in read_rows(opened, name, LoggedEvent, since=since):
            lines.write(json_text(event_document(event, name)) + "\n")
            counts["events"] += 1
    if as_json:
        print_json(counts)
    else:
        typer.echo(f"{counts['queries']:,} queries and {counts['events']:,} events in {output}")


@log_app.command(no_args_is_help=True)
def forget(
    index: IndexOption,
    store: ServedStoreOption,
    client: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Who asked: NAME/ID of a key (scannery keys list), sub/SUBJECT of a token, or an address.",
        ),
    ] = None,
    client_id: Annotated[
        str | None, typer.Option("--client-id", help="With --client: for whom it asked (`client_id`).")
    ] = None,
    text: Annotated[str | None, typer.Option(help="A text that was asked, by anybody.")] = None,
    document: Annotated[
        str | None, typer.Option(metavar="ID", help="A document, or a datapoint, as a hit.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Remove all queries and events of a client or a text, or what is about a document. Servers go on meanwhile.

    A server writes within a minute: for a client that is still active, call it again after that.
    """
    from scannery.indexer.traffic.forgetting import forget_client, forget_documents, forget_text
    from scannery.serving.traffic.masking import logged_text

    if [client, text, document].count(None) != 2 or (client_id is not None and client is None):
        raise typer.BadParameter(
            "give one of --client, --text and --document; --client-id goes with --client"
        )
    opened, name = _opened(store, index)
    if client is not None:
        report = forget_client(opened, name, client if client_id is None else f"{client}\0{client_id}")
    elif text is not None:
        report = forget_text(opened, name, logged_text(text))
    else:
        report = forget_documents(opened, name, [str(document)])
    if as_json:
        print_json(asdict(report))
    else:
        typer.echo(
            f"removed or changed {report.queries:,} queries and {report.events:,} events in {report.files:,} files"
        )


@log_app.command("new-key", no_args_is_help=True)
def new_key(store: ServedStoreOption) -> None:
    """Make another key that signs the ids of answers; those of the former keys stay valid."""
    from scannery.indexer import Store
    from scannery.indexer.traffic.keys import add_key

    number = add_key(Store.open(store))
    typer.echo(f"key {number} signs from now on; servers use it within a minute")


def _opened(store: str, index: str) -> tuple[Store, str]:
    """Return the store, and the name of the index in place of its alias; raises NotFoundError."""
    from scannery.indexer import Store, read_aliases, read_manifest

    opened = Store.open(store)
    name = read_aliases(opened).get(index, index)
    read_manifest(opened, name)  # which says what indexes there are
    return opened, name


def _since(days: int) -> date:
    return datetime.now(timezone.utc).date() - timedelta(days=days - 1)


def _table(by_day: Sequence[DayStatistics]) -> Table:
    table = Table(
        "day", "queries", "clients", "empty", "clicked", "rejected", "best score", "ms", caption=_CAPTION
    )
    for day in by_day:
        scores = "; ".join(f"{mode} {_range(quantiles, 3)}" for mode, quantiles in day.scores.items())
        table.add_row(
            day.day.isoformat(), f"{day.queries:,}", f"{day.askers:,}", f"{day.empty_share:.1%}",
            f"{day.click_share:.1%}", f"{day.reject_share:.1%}", scores, _range(day.latency_ms, 1),
        )  # fmt: skip
    return table


_CAPTION = "best score and ms: lowest tenth, median, highest tenth"


def _range(quantiles: Sequence[float], digits: int) -> str:
    return " ".join(f"{each:.{digits}f}" for each in quantiles)
