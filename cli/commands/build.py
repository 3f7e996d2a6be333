"""`scannery build`: build a version of an index from input files."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from scannery.cli.output import console, size_text
from scannery.cli.progress import stage_bar

if TYPE_CHECKING:
    from scannery.indexer import Store
    from scannery.pipelines import BuildReport

__all__ = ["build", "quiet_beam"]

_LOG = logging.getLogger(__name__)


def build(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC.yaml", help="What to build (see `scannery index schema`).")
    ],
    store: Annotated[
        str, typer.Option("--store", "-s", metavar="URI", help="Folder or bucket for the index.")
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", metavar="URI...", help="File, folder or pattern, here or in gs://, s3://, az://."
        ),
    ] = None,
    rest: Annotated[
        list[str] | None, typer.Argument(metavar="[-- RUNNER OPTIONS]", help="Options for the runner.")
    ] = None,
    mode: Annotated[
        str,
        typer.Option(
            metavar="upsert|full",
            help="upsert: documents that the input does not mention stay. full: they are removed.",
        ),
    ] = "upsert",
    full: Annotated[bool, typer.Option("--full", help="The input is the whole index: --mode full.")] = False,
    deletes: Annotated[
        list[str] | None,
        typer.Option(
            "--delete",
            metavar="ID|@FILE",
            help="Remove a document, or with @FILE those whose ids are its lines.",
        ),
    ] = None,
    runner: Annotated[
        str | None,
        typer.Option(help="local (default), portable, dask, dataflow, flink or spark.", show_default=False),
    ] = None,
    max_dead_letters: Annotated[
        str | None,
        typer.Option(metavar="N|SHARE", help="Fail if more records are refused: 100, 0.01 or 1%."),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Queries to tune for, also in later builds: .npy, .parquet, .jsonl, or a text per line.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Logs of live updates, as `scannery serve --log`; default: those in the store.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Build an index from files, or update it from them.

    In an existing index, documents are added or replaced; only --full and --delete remove any. Work that an earlier
    run finished is reused. Records that cannot be indexed go to a dead-letter file.
    """
    limit = _limit(max_dead_letters)
    more_inputs, runner_options = _split(rest or [])
    # Imported late: Beam and the encoder take seconds, which `scannery --help` should not wait for.
    from scannery.indexer.kernels.import_numba import import_numba_without_blas

    import_numba_without_blas()
    from scannery.indexer import load_spec
    from scannery.pipelines import build as run_build

    parsed = load_spec(spec)
    gone = _deletes(deletes or [])
    with quiet_beam(), stage_bar() as progress:
        report = run_build(
            parsed,
            [*(inputs or []), *more_inputs],
            store,
            mode="full" if full else mode,
            deletes=gone,
            runner=runner,
            runner_options=runner_options,
            progress=progress,
            max_dead_letters=limit,
            queries=queries,
            before=lambda store, index: _seal(store, index, log, repairs=full or mode == "full"),
        )
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _print(report, store, query='"…"' if parsed.encoder else "--vector '[…]'")


def _seal(store: Store, index: str, log: Path | None, *, repairs: bool) -> None:
    """Seal live updates into a version, so that the build can replace them; updates in the log are applied after it.

    A build that `repairs` rebuilds everything, so it continues if the version or its log is damaged.
    """
    from scannery.indexer import CorruptError, NotFoundError
    from scannery.live.maintenance.seal import seal

    try:
        seal(store, index, log_root=log)
    except (CorruptError, NotFoundError) as error:
        if not repairs:
            raise
        _LOG.warning("live updates are not sealed before the build: %s", error)


def _split(rest: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return further values of --input (the shell expands `--input *.jsonl`), and the runner's options."""
    first = next((i for i, word in enumerate(rest) if word.startswith("-")), len(rest))
    return list(rest[:first]), list(rest[first:])


def _deletes(values: Sequence[str]) -> list[str]:
    """Return the ids of --delete: a value is an id, or `@` and a file with one id per line."""
    ids: list[str] = []
    for value in values:
        if not value.startswith("@"):
            ids.append(value)
            continue
        try:
            text = Path(value[1:]).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise typer.BadParameter(f"--delete: cannot read {value[1:]}: {error}") from error
        ids += [line for line in text.split("\n") if line.strip()]
    return [value.rstrip("\r") for value in ids]


def _limit(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf") or (value > 1 and not value.is_integer()):
        raise typer.BadParameter(f"--max-dead-letters must be a number or a share such as 1%, got {text!r}")
    return value


@contextlib.contextmanager
def quiet_beam() -> Iterator[None]:
    """Keep Beam from logging the traceback of an error that the command prints on one line."""
    logger = logging.getLogger("apache_beam")
    before = logger.level
    if not logging.getLogger().isEnabledFor(logging.DEBUG):
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _print(report: BuildReport, store: str, *, query: str) -> None:
    out = console()
    if report.up_to_date:
        out.print(f"[green]✓[/green] {report.index} is already up to date: version {report.version}")
    else:
        out.print(f"[green]✓[/green] {report.index}: version {report.version}")
    for label, text in _facts(report):
        out.print(f"[bold]{label:<12}[/bold]{text}", soft_wrap=True)
    if report.dead:
        out.print(f"[yellow]![/yellow] {report.dead:,} records were refused:")
        for reason, count in sorted(report.dead_letters.items(), key=lambda item: -item[1]):
            out.print(f"    {count:>8,}  {reason}")
        out.print(f"    see {escape(report.store)}/{report.dead_letters_key}", soft_wrap=True)
        for category, count in sorted(report.record_errors.items(), key=lambda item: -item[1]):
            out.print(f"    {count:>8,}  {category} for the managed service")
    if report.ignored:
        names = ", ".join(f"{name} ({count:,})" for name, count in report.ignored.items())
        out.print(
            f"[yellow]![/yellow] left out, because the spec does not name them: {escape(names)}",
            soft_wrap=True,
        )
    if report.not_in_input and report.files:
        out.print(
            f"[yellow]![/yellow] {report.not_in_input:,} documents of the index are not in this input and were kept; "
            "--full removes them",
            soft_wrap=True,
        )
    if not report.recall_reached:
        out.print(
            f"[yellow]![/yellow] no setting of ScaNN reaches the recall target {report.target_recall} in some "
            "segment, so it is searched exactly, which is slower (`scann` in the spec has parameters to try)",
            soft_wrap=True,
        )
    if not report.up_to_date:
        out.print(
            f"Next: scannery search {query} --index {report.index} --store {store}",
            soft_wrap=True,
            markup=False,
        )


def _facts(report: BuildReport) -> Iterator[tuple[str, str]]:
    yield "documents", f"{report.documents:,} from {report.files:,} file(s), {size_text(report.input_bytes)}"
    if report.mode == "upsert":
        yield "changes", _changes(report)
    yield "datapoints", f"{report.passages:,} in {report.shards} shard(s), {size_text(report.index_bytes)}"
    if report.embedded:
        yield (
            "embedded",
            (
                f"{report.embedded:,} at {report.passages_per_s:,.0f}/s ({report.tokens_per_s:,.0f} tokens/s, "
                f"{report.padding_share:.1%} padding) on {report.device}, {report.dtype}"
            ),
        )
    if report.reused:
        yield "reused", f"{report.reused:,} that were embedded before"
    if report.recall is not None:
        whole = "" if report.whole_recall is None else f", of the whole index {report.whole_recall:.3f}"
        yield "recall@10", f"{report.recall:.3f}{whole}, target {report.target_recall}"
    stages = [
        f"{name} {value:.1f} s" for name, value in report.seconds.items() if name != "wall" and value >= 0.05
    ]
    yield "time", f"{report.seconds['wall']:.1f} s" + (f" ({', '.join(stages)})" if stages else "")


def _changes(report: BuildReport) -> str:
    counts = (("added", report.added), ("replaced", report.replaced), ("removed", report.removed),
              ("unchanged", report.unchanged), ("to delete not found", report.unknown_deletes))  # fmt: skip
    return ", ".join(f"{count:,} {name}" for name, count in counts if count) or "none"
