"""`scannery build`: build a version of an index from input files."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from scannery.cli.errors import PARTIAL
from scannery.cli.lazy_commands import uncollected
from scannery.cli.options import LogOption, given_log_root
from scannery.cli.output import console, size_text
from scannery.cli.progress import stage_bar

if TYPE_CHECKING:
    from scannery.indexer import Store
    from scannery.live.log.location import LogRoot
    from scannery.pipelines import BuildPlan, BuildReport

__all__ = ["build", "quiet_beam"]

_LOG = logging.getLogger(__name__)

_PLAN = "Plan"


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
    extra: Annotated[
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
        typer.Option(
            help="Default: this process, without Beam. local: Beam in this process. Others: "
            "portable, dask, dataflow, flink, spark.",
            show_default=False,
        ),
    ] = None,
    allow_errors: Annotated[
        str | None,
        typer.Option(
            "--allow-errors",
            "--max-dead-letters",
            metavar="N|N%",
            help="Refused records that count as success; with more, no version is made. Default: `source.max_errors` "
            "of the spec; without both, a version is made, and the exit code is 7 if any record was refused.",
        ),
    ] = None,
    queries: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Queries to tune for, also in later builds: .npy, .parquet, .jsonl, .csv, .tsv, .json, or a text per "
            "line.",
        ),
    ] = None,
    log: LogOption = "",
    until: Annotated[
        str | None,
        typer.Option(
            metavar="embed",
            help="embed: stop after the texts are embedded, and make no version; the same command without it goes on, "
            "on other machines if you like.",
        ),
    ] = None,
    accelerator: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Dataflow: accelerator of the machines that embed, such as `type:nvidia-l4;count:1;"
            "install-nvidia-driver`.",
        ),
    ] = None,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan",
            help="Print what the build needs (work, memory, disk, hours, price), and neither start nor write anything.",
            rich_help_panel=_PLAN,
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Machines side by side; default: 1.", rich_help_panel=_PLAN),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="cpu-bf16, cpu-f32, l4, h100 or v5e; default: all, or cpu-bf16 with figures of yours.",
            rich_help_panel=_PLAN,
        ),
    ] = None,
    passages_per_s: Annotated[
        float | None,
        typer.Option(metavar="X", help="Passages that one machine embeds per second.", rich_help_panel=_PLAN),
    ] = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(metavar="$", help="Price of one machine per hour.", rich_help_panel=_PLAN),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Build an index from files, or update it from them.

    In an existing index, documents are added or replaced; only --full and --delete remove any. Work that an earlier
    run finished is reused. Records that cannot be indexed go to a dead-letter file.
    """
    limit, last = _limit(allow_errors), _until(until)
    figures = {
        "--workers": workers,
        "--machine": machine,
        "--passages-per-s": passages_per_s,
        "--price-per-hour": price_per_hour,
    }
    _check_figures(figures, plan=plan, deletes=bool(deletes))
    more_inputs, runner_options = _split(extra or [])
    # Imported late: Beam and the encoder take seconds, which `scannery --help` should not wait for.
    with uncollected():
        from scannery.indexer.local.needless_imports import leave_needless_imports_out

        leave_needless_imports_out()
        from scannery.indexer import load_spec
        from scannery.pipelines import build as run_build

    parsed = load_spec(spec)
    if plan:
        from scannery.pipelines import chosen_machines, estimate

        needs = estimate(
            parsed,
            [*(inputs or []), *more_inputs],
            store,
            mode="full" if full else mode,
            runner=runner,
            runner_options=runner_options,
            accelerator=accelerator,
            workers=workers or 1,
            machines=chosen_machines(machine, passages_per_s=passages_per_s, price_per_h=price_per_hour),
        )
        _print_plan(needs, as_json=as_json)
        return
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
            before=lambda store, index: _seal(
                store, index, given_log_root(log), repairs=full or mode == "full"
            ),
            until=last,
            accelerator=accelerator,
        )
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        by_words = (
            parsed.lexical is not None or bool(parsed.named_encoders)
        ) and parsed.source.vector is None
        by_text = parsed.encoder is not None or by_words
        query = '"…"' if by_text else "--vector '[…]'"
        _print(report, store, query=query, records="records" if parsed.source.document_id else "documents")
    if report.dead and not report.errors_allowed:
        raise typer.Exit(PARTIAL)


def _print_plan(plan: BuildPlan, *, as_json: bool) -> None:
    from scannery.cli.progress import print_plan

    if as_json:
        typer.echo(json.dumps(plan.to_dict(), indent=2))
    else:
        print_plan(plan)


def _seal(store: Store, index: str, log: LogRoot | None, *, repairs: bool) -> None:
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


def _until(name: str | None) -> Literal["embed"] | None:
    if name not in (None, "embed"):
        raise typer.BadParameter(f"--until must be embed, got {name!r}")
    return "embed" if name else None


def _check_figures(figures: Mapping[str, object], *, plan: bool, deletes: bool) -> None:
    """Refuse options of a plan without one, figures that are not positive, and deletions, which no plan estimates."""
    names = [option for option, value in figures.items() if value is not None]
    if names and not plan:
        raise typer.BadParameter(
            f"{', '.join(names)}: only with --plan; a build takes machines from --runner"
        )
    if plan and deletes:
        raise typer.BadParameter("--delete: not with --plan, which estimates the work for the input")
    for option, value in figures.items():
        if isinstance(value, float) and not 0 < value < math.inf:
            raise typer.BadParameter(f"{option} must be a positive number, got {value:g}")


def _split(extra: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return further values of --input (the shell expands `--input *.jsonl`), and the runner's options."""
    first = next((i for i, word in enumerate(extra) if word.startswith("-")), len(extra))
    return list(extra[:first]), list(extra[first:])


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
    from scannery.indexer.spec.source_spec import error_limit

    try:
        return None if text is None else error_limit(text)
    except ValueError as error:
        raise typer.BadParameter(f"--allow-errors {error}") from error


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


def _print(report: BuildReport, store: str, *, query: str, records: str) -> None:
    out = console()
    out.print(f"[green]✓[/green] {report.index}{_outcome(report)}")
    for label, text in _facts(report, records):
        out.print(f"[bold]{label:<12}[/bold]{text}", soft_wrap=True)
    if report.dead:
        out.print(f"[yellow]![/yellow] {report.dead:,} records were refused:")
        for reason, count in sorted(report.dead_letters.items(), key=lambda item: -item[1]):
            first = report.dead_letter_examples.get(reason, "")
            example = f"; first {first}" if count > 1 and first else f": {first}" if first else ""
            out.print(f"    {count:>8,}  {reason}{escape(example)}", soft_wrap=True)
        out.print(f"    see {escape(report.store)}/{report.dead_letters_key}", soft_wrap=True)
        for category, count in sorted(report.record_errors.items(), key=lambda item: -item[1]):
            out.print(f"    {count:>8,}  {category} for the managed service")
    if report.ignored:
        names = ", ".join(f"{name} ({count:,})" for name, count in report.ignored.items())
        out.print(
            f"[yellow]![/yellow] left out, as the spec does not name it or it cannot be read: {escape(names)}",
            soft_wrap=True,
        )
    if report.not_in_input and report.files:
        out.print(
            f"[yellow]![/yellow] {report.not_in_input:,} documents of the index are not in this input and were kept; "
            "--full removes them",
            soft_wrap=True,
        )
    for warning in _warnings(report):
        out.print(f"[yellow]![/yellow] {escape(warning)}", soft_wrap=True)
    if not report.recall_reached:
        out.print(
            f"[yellow]![/yellow] no setting of ScaNN reaches the recall target {report.target_recall} in some "
            "segment, so it is searched exactly, which is slower (`scann` in the spec has parameters to try)",
            soft_wrap=True,
        )
    if report.until:
        out.print(
            "Next: the same command without --until builds the segments and the version", soft_wrap=True
        )
    elif not report.up_to_date:
        out.print(
            f"Next: scannery search {query} --index {report.index} --store {shlex.quote(store)}",
            soft_wrap=True,
            markup=False,
        )


def _outcome(report: BuildReport) -> str:
    if report.until:
        return ": embedded; no version was made"
    return f"{' is already up to date' if report.up_to_date else ''}: version {report.version}"


def _warnings(report: BuildReport) -> Iterator[str]:
    """Yield what may be wrong with the result, each with the remedy."""
    if len(report.dtypes) > 1 or len(report.hardware_dtypes) > 1:
        units = ", ".join(f"{count:,} of {name}" for name, count in report.hardware_dtypes.items())
        yield (
            f"workers of different kinds embedded ({units} units by their fastest number type), all in "
            f"{' and '.join(report.dtypes)}; machines of one kind, or `encoder: {{dtype: …}}`, are faster"
        )
    if report.removed_datapoints:
        yield f"{report.removed_datapoints:,} datapoints are not in the input, and this full build removed them"
    if report.dropped_live:
        yield (
            f"{report.dropped_live:,} datapoints of live updates were removed, or replaced by the input; "
            f"`scannery index rollback {report.index} --to …` brings the version before back"
        )
    if report.cut_texts:
        yield (
            f"{report.cut_texts:,} texts were cut off at the encoder's limit: about {report.cut_tokens:,} tokens are "
            "not in their vectors. `source: {chunk: {max_tokens: 128}}` cuts texts into passages instead"
        )
    for name, near in report.missing_fields.items():
        hint_of_fields = (
            f"; the records have {', '.join(report.unused_fields)}" if report.unused_fields else ""
        )
        hint = f"; did you mean {' or '.join(f'`{field}`' for field in near)}?" if near else hint_of_fields
        yield f"no record has a value in the field `{name}`, which the spec names{hint}"
    if report.converted:
        names = "; ".join(f"{name} ({count:,})" for name, count in report.converted.items())
        yield f"values were converted in a way that could be wrong: {names}"
    if report.foreign_texts:
        from scannery.embed.models.recommended_models import MULTILINGUAL

        shares = ", ".join(
            f"{language.capitalize()} ({count / report.sampled_texts:.0%})"
            for language, count in report.foreign_texts.items()
        )
        yield (
            f"the encoder is not made for the languages of some texts: {shares} of {report.sampled_texts:,} sampled. "
            f"A multilingual encoder is, such as {MULTILINGUAL.name}"
        )


def _facts(report: BuildReport, records: str) -> Iterator[tuple[str, str]]:
    yield records, f"{report.documents:,} from {report.files:,} file(s), {size_text(report.input_bytes)}"
    if report.mode == "upsert" and not report.until:
        yield "changes", _changes(report)
    of = (
        ""
        if report.indexed_documents in (None, report.passages)
        else f" of {report.indexed_documents:,} documents"
    )
    where = f"for {report.shards} shard(s)" if report.until else f"in {report.shards} shard(s)"
    size = report.embeddings_bytes if report.until else report.index_bytes
    yield "datapoints", f"{report.passages:,}{of} {where}, {size_text(size)}"
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
    for name, vectors in report.named_vectors.items():
        embedded = f", {vectors.embedded:,} texts embedded" if vectors.embedded else ""
        yield "vectors", f"{name}: {vectors.vectors:,}{embedded}, recall@10 {vectors.recall:.3f}"
    if report.alpha is not None:
        measured = f", measured with {report.alpha_questions} questions made from passages"
        yield "hybrid", f"alpha {report.alpha:g}{measured if report.alpha_questions else ''}"
    stages = [
        f"{name} {value:.1f} s" for name, value in report.seconds.items() if name != "wall" and value >= 0.05
    ]
    yield "time", f"{report.seconds['wall']:.1f} s" + (f" ({', '.join(stages)})" if stages else "")


def _changes(report: BuildReport) -> str:
    counts = (("added", report.added), ("replaced", report.replaced), ("removed", report.removed),
              ("unchanged", report.unchanged), ("to delete not found", report.unknown_deletes))  # fmt: skip
    return ", ".join(f"{count:,} {name}" for name, count in counts if count) or "none"
