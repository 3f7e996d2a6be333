"""`scannery plan`: what an index will take of memory and disk in a server, before anything is built."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from scannery.cli.lazy_commands import uncollected
from scannery.cli.options import ModelStoreOption
from scannery.cli.output import console, size_text

if TYPE_CHECKING:
    from scannery.pipelines import CompactVectors, MemoryPlan

__all__ = ["plan"]


def plan(
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC.yaml", help="What to build (see `scannery index schema`).")
    ],
    rows: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Datapoints of the index; default: as many as the input becomes."
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="URI...",
            help="File, folder or pattern, of which a sample is read; without it, typical texts are assumed.",
        ),
    ] = None,
    dimensions: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Components of the vectors of the source, where there is no input."
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Ceiling of the server (`scannery serve --memory`), such as 2GiB."),
    ] = None,
    workers: Annotated[int, typer.Option(metavar="N", min=1, help="Workers of the server.")] = 1,
    cold: Annotated[
        bool, typer.Option("--cold", help="Leave vectors and codes in the store (`serve --cold`).")
    ] = False,
    compact: Annotated[
        bool,
        typer.Option(
            "--compact",
            help="Search by vectors in 8 bits a number, and tell what they lose (`serve --compact`).",
        ),
    ] = False,
    store: ModelStoreOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Tell what an index will take of memory and disk, before it is built.

    Sizes come from a sample of the input, built and measured, or from typical texts. Nothing is written.
    """
    with uncollected():
        from scannery.indexer.local.needless_imports import leave_needless_imports_out

        leave_needless_imports_out()
        from scannery.indexer import load_spec
        from scannery.pipelines import plan_memory
        from scannery.runtime.memory import parse_memory

    needs = plan_memory(
        load_spec(spec),
        rows,
        inputs=inputs or [],
        dimensions=dimensions,
        workers=workers,
        memory_bytes=None if memory is None else parse_memory(memory),
        cold=cold,
        compact=compact,
        store=store,
    )
    if as_json:
        typer.echo(json.dumps(needs.to_dict(), indent=2))
    else:
        _print(needs)


def _print(plan: MemoryPlan) -> None:
    out = console()
    sizes = ", ".join(f"{name or 'vectors'} {size:,}" for name, size in plan.dimensions.items() if size)
    for label, text in (
        ("datapoints", f"{plan.rows:,} in {plan.shards:,} shard(s); dimensions: {sizes or 'none'}"),
        ("basis", plan.basis),
    ):
        out.print(f"[bold]{label:<12}[/bold]{text}", soft_wrap=True)
    table = Table("component", "bytes a row", "needed", "mapped", box=None, header_style="bold")
    for name, size in plan.components.items():
        row_bytes = f"{size.total / max(plan.rows, 1):,.1f}"
        table.add_row(name, row_bytes, size_text(size.needed), size_text(size.mapped))
    for name, needed in plan.processes.items():
        table.add_row(name, "", size_text(needed), "")
    table.add_row("in all", "", size_text(plan.needed_bytes), size_text(plan.mapped_bytes), style="bold")
    out.print(table)
    out.print(
        f"[bold]{'disk':<12}[/bold]{size_text(plan.cache_bytes)} for the local cache of a server, "
        f"{size_text(plan.store_bytes)} in the store",
        soft_wrap=True,
    )
    for name, vectors in plan.compact.items():
        _print_compact(name or "vectors", vectors)
    if plan.memory_bytes is not None:
        _print_fit(plan, plan.memory_bytes)
    out.print(
        "Needed memory has to be there; the kernel takes mapped memory back where it is short, and searches are then "
        "slower. Estimates; nothing was built.",
        soft_wrap=True,
    )


def _print_compact(name: str, vectors: CompactVectors) -> None:
    out = console()
    text = "stay in full" if not vectors.is_compact else "in 8 bits a number"
    if vectors.is_compact and vectors.kept is not None:
        least, largest = vectors.time_ratios
        text += (
            f" keep {vectors.kept.planned:.3f} of the true hits ({vectors.kept.sampled:.3f} in the sample); recall "
            f"{vectors.recall:.3f}, for which settings aim at {vectors.aim:.3f}; {least} to {largest} times the "
            "time of full vectors"
        )
    out.print(f"[bold]{'compact':<12}[/bold]{name} {text}", soft_wrap=True)
    if vectors.problem:
        out.print(f"[yellow]![/yellow] {name}: {vectors.problem}", soft_wrap=True)


def _print_fit(plan: MemoryPlan, memory_bytes: int) -> None:
    out, workers = console(), f"{plan.workers} worker{'s' if plan.workers > 1 else ''}"
    if plan.fits:
        out.print(f"[green]✓[/green] fits in {size_text(memory_bytes)} with {workers}")
        return
    out.print(f"[yellow]![/yellow] does not fit in {size_text(memory_bytes)} with {workers}; it would with:")
    for remedy in plan.remedies:
        out.print(
            f"    {remedy.change}: {size_text(remedy.needed_bytes)} of {size_text(remedy.ceiling_bytes)}",
            soft_wrap=True,
            markup=False,
        )
