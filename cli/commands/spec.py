"""`scannery spec`: draft a spec for data, check one against data, and print the schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape
from rich.table import Table

from scannery.cli.errors import NO
from scannery.cli.options import ModelStoreOption
from scannery.cli.output import console, print_json

if TYPE_CHECKING:
    from scannery.pipelines.profiling.checking import CheckReport

__all__ = ["spec_app"]

spec_app = typer.Typer(no_args_is_help=True, help="Draft and check specs.")

_Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="URI...", help="File, folder or pattern, as `scannery build` takes it."),
]
_Extra = Annotated[list[str] | None, typer.Argument(metavar="[URI...]", hidden=True)]
_Records = Annotated[int, typer.Option("--records", min=1, max=100_000, help="Most records to look at.")]


@spec_app.command("init", no_args_is_help=True)
def init(
    data: Annotated[
        list[str],
        typer.Argument(metavar="DATA...", help="File, folder or pattern, here or in gs://, s3://, az://."),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the spec; - prints it.")
    ] = Path("spec.yaml"),
    id: Annotated[str | None, typer.Option("--id", metavar="FIELD", help="The field of ids.")] = None,
    text: Annotated[str | None, typer.Option("--text", metavar="FIELD", help="The field of texts.")] = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="FIELD", help="The field of titles.")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", metavar="MODEL", help="A sentence-transformers model: name or folder."),
    ] = None,
    records: _Records = 1000,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE if it exists.")] = False,
) -> None:
    """Look at data, and write a commented spec that builds it."""
    if str(output) != "-" and output.exists() and not force:
        raise typer.BadParameter(f"{output} exists; --force overwrites it, -o names another file")
    from scannery.pipelines.profiling.drafting import draft_spec
    from scannery.pipelines.profiling.sample import init_sample

    sample, source = init_sample(data, records)
    mapping = {"id": id, "text": text, "title": title}
    draft = draft_spec(
        sample,
        data,
        overrides={role: path for role, path in mapping.items() if path is not None},
        encoder=encoder,
        source=source,
        path=output.name if str(output) != "-" else "spec.yaml",
    )
    if str(output) == "-":
        typer.echo(draft.text, nl=False)
        return
    _print(draft.report, str(output))
    # Last: a command that fails leaves no draft.
    is_new = not output.exists()
    try:
        output.write_text(draft.text, encoding="utf-8")
    except OSError:
        if is_new:
            output.unlink(missing_ok=True)
        raise
    shown = " ".join(data)
    console().print(
        f"Next: scannery build {output} --input {shown} --store ./store", soft_wrap=True, markup=False
    )


@spec_app.command("check", no_args_is_help=True)
def check(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.yaml", help="The spec to check.")],
    inputs: _Inputs = None,
    extra: _Extra = None,
    records: _Records = 1000,
    store: ModelStoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Tell what a spec makes of a sample of the input: fields, passages, what would be refused, and why.

    Ends with 1 if the spec is not valid, a record would be refused, or no record has a field that the spec names.
    Without --input only the spec is checked.
    """
    from scannery.indexer.errors import InvalidSpecError
    from scannery.indexer.spec.spec_files import load_spec

    try:
        parsed = load_spec(spec)
    except InvalidSpecError as error:
        if as_json:
            print_json({"valid": False, "good": False, "field": error.field, "message": error.message})
        else:
            console().print(f"[red]✗[/red] {escape(error.message)}", soft_wrap=True)
        raise typer.Exit(NO) from None
    files = [*(inputs or []), *(extra or [])]
    if not files:
        if as_json:
            print_json({"valid": True, "good": True})
        else:
            console().print(f"[green]✓[/green] {spec} is valid; --input shows what it makes of data")
        return
    from scannery.pipelines.profiling.checking import check_sample, counter_of
    from scannery.pipelines.profiling.sample import read_sample

    report = check_sample(parsed, read_sample(files, parsed.source, records), counter_of(parsed, store))
    if as_json:
        print_json(report.to_dict())
    else:
        _print(report, str(spec))
    if not report.is_good:
        raise typer.Exit(NO)


@spec_app.command("schema")
def schema() -> None:
    """Print the JSON Schema of SPEC.yaml, for editors and validators."""
    from scannery.indexer.spec.spec_files import spec_json_schema

    print_json(spec_json_schema())


def _print(report: CheckReport, spec: str) -> None:
    out = console()
    mark = "[green]✓[/green]" if report.is_good else "[yellow]![/yellow]"
    whole = "all" if report.is_whole else "a sample of"
    out.print(
        f"{mark} {escape(spec)} is valid; looked at {whole} {report.records:,} records of {report.files:,} file(s)",
        soft_wrap=True,
    )
    out.print(_fields(report))
    for line in (*_faults(report), *_notes(report)):
        out.print(line, soft_wrap=True)
    if report.passages:
        out.print("[bold]first passages[/bold]")
    for passage in report.passages:
        tokens = "" if passage.tokens is None else f" ({passage.tokens} tokens)"
        title = f"{passage.title}: " if passage.title else ""
        shown = " ".join(f"{title}{passage.text}".split())
        out.print(f"    {passage.id}{tokens}  {shown}", soft_wrap=True, markup=False)


def _fields(report: CheckReport) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in ("field", "from", "type", "present", "examples"):
        table.add_column(name, overflow="fold")
    for field in report.fields:
        filled = "by passage" if field.is_of_passages else "constant"
        present = filled if field.is_filled else f"{field.present:.0%}"
        cells = (field.name, field.source, field.type, present, " · ".join(field.examples))
        table.add_row(*map(escape, cells))
    return table


def _faults(report: CheckReport) -> list[str]:
    lines = []
    if report.refused:
        lines.append(f"[yellow]![/yellow] {report.refused:,} of {report.records:,} records would be refused:")
    for fault in report.faults:
        lines.append(
            f"    {fault.records:>6,}  {fault.reason}: {escape(fault.message)} ({escape(fault.place)})"
        )
    for field in report.fields:
        if not field.present and not field.is_filled:
            near = f"; did you mean {field.nearest}?" if field.nearest else ""
            lines.append(escape(f"! {field.name}: no record has the field {field.source}{near}"))
    return lines


def _notes(report: CheckReport) -> list[str]:
    lines = [f"converted   {field}: {count:,} × {what}" for (field, what), count in report.converted.items()]
    if report.generated_id is not None:
        from scannery.pipelines.profiling.checking import ID_WARNINGS

        lines.append(f"! {ID_WARNINGS[report.generated_id]}")
    if report.unused:
        more = f" and {len(report.unused) - 12} more" if len(report.unused) > 12 else ""
        lines.append(f"not used    {', '.join(report.unused[:12])}{more}")
    if report.languages:
        lines.append(
            "languages   " + ", ".join(f"{name} {share:.0%}" for name, share in report.languages[:4])
        )
    if report.html_share:
        lines.append(
            f"! {report.html_share:.0%} of the texts have tags of HTML, which are embedded and shown as they are; "
            "`source: {text_format: html}` reads them, `plain` leaves them"
        )
    lengths = report.lengths
    if lengths is not None:
        about = "" if lengths.counted else "about "
        limit = "" if lengths.limit is None else f"; the encoder reads {lengths.limit}"
        lines.append(f"texts       the longest has {about}{lengths.longest:,} tokens{limit}")
        if lengths.cut_share:
            lines.append(
                f"! {lengths.over_limit:,} texts are too long for the encoder: {lengths.cut_share:.0%} of all tokens "
                "would be cut off; `source.chunk` prevents it"
            )
        if lengths.passages is not None:
            lines.append(f"datapoints  {lengths.passages:,} from these records")
    return [escape(line) for line in lines]
