"""`scannery index export`: export the datapoints of a version as Parquet or JSON lines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from scannery.cli.options import LogOption, given_log_root
from scannery.cli.output import console, size_text
from scannery.cli.progress import counting_bar

if TYPE_CHECKING:
    from scannery.pipelines import ExportReport

__all__ = ["export"]


def export(
    name: Annotated[str, typer.Argument(metavar="INDEX", help="Name of the index.")],
    store: Annotated[str, typer.Option("--store", help="Folder or bucket with the indexes.")],
    output: Annotated[
        str,
        typer.Option(
            "--output", metavar="PATH", help="File (.parquet, .jsonl, .jsonl.gz, …) or folder, or a URI."
        ),
    ],
    format: Annotated[
        str | None,
        typer.Option(
            help="parquet, jsonl, jsonl.gz or jsonl.zst; default: by the file's ending, else parquet.",
            show_default=False,
        ),
    ] = None,
    version: Annotated[int | None, typer.Option("--version", min=1, help="Default: the current one.")] = None,
    vectors: Annotated[
        bool, typer.Option("--vectors/--no-vectors", help="Whether to write the vectors.")
    ] = True,
    log: LogOption = "",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier export.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Write all datapoints of an index to files: ids, vectors, texts, attributes, payloads.

    Live updates that are not sealed yet are written too; with --version, only what that version contains.

    A folder gets one file per segment, and a spec (`_spec.yaml`) that builds an equal index from them.
    """
    # Imported late: PyArrow takes time, which `scannery --help` should not wait for.
    from scannery.indexer import Store, read_aliases
    from scannery.live.memtable import unsealed_change
    from scannery.pipelines.exports.exporting import export as run_export

    name, root = read_aliases(Store.open(store)).get(name, name), given_log_root(log)
    with counting_bar("exporting") as progress:
        report = run_export(name, store, output, format=format, version=version, vectors=vectors,
                            overwrite=overwrite, progress=progress,
                            live=lambda opened, manifest: unsealed_change(opened, manifest, log_root=root))  # fmt: skip
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        _print(report)


def _print(report: ExportReport) -> None:
    out = console()
    without = "" if report.vectors else " without vectors"
    live = f" with {report.live_mutations:,} batch(es) of live updates" if report.live_mutations else ""
    out.print(
        f"[green]✓[/green] {report.index}, version {report.version}{live}: {report.rows:,} datapoints{without} in "
        f"{len(report.files)} file(s), {size_text(report.size_bytes)}, {report.seconds:.1f} s",
        soft_wrap=True,
    )
    if report.spec is not None and report.files and report.files[0].name.startswith("part-"):
        folder = report.output.rstrip("/")
        out.print(
            f"Next: scannery build {folder}/_spec.yaml --input {folder} --store …",
            soft_wrap=True,
            markup=False,
        )
