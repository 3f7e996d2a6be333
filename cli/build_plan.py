"""`scannery build --plan` as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from scannery.cli.output import console, size_text

if TYPE_CHECKING:
    from scannery.pipelines import BuildPlan, CostEstimate

__all__ = ["print_plan"]


def print_plan(plan: BuildPlan) -> None:
    """Print the work, the needs of every stage, and hours and price by kind of machine."""
    out = console()
    tokens = f", about {plan.tokens_per_passage:.0f} tokens each" if plan.tokens_per_passage else ""
    facts = (
        ("input", f"{plan.records:,} records in {plan.files:,} file(s), {size_text(plan.input_bytes)}"),
        ("datapoints", f"{plan.passages:,} with {plan.dimensions:,} dimensions{tokens}"),
        ("units", f"{plan.units:,} of at most {size_text(plan.unit_bytes)}"),
        (
            "shards",
            f"{plan.shards:,} of {plan.rows_per_shard:,} datapoints; index {size_text(plan.index_bytes)}",
        ),
    )
    for label, text in facts:
        out.print(f"[bold]{label:<12}[/bold]{text}", soft_wrap=True)
    out.print(_stages(plan))
    out.print(_costs(plan))
    out.print(
        "Estimates: M measured, E estimated, G given by you. Finished work of earlier runs is not subtracted. Nothing "
        "was started or written.",
        soft_wrap=True,
    )


def _stages(plan: BuildPlan) -> Table:
    table = Table(
        "stage", "tasks", "memory", "disk", "reads", "writes", "files", box=None, header_style="bold"
    )
    for stage in plan.stages:
        sizes = (stage.memory_bytes, stage.disk_bytes, stage.read_bytes, stage.written_bytes)
        table.add_row(stage.stage, f"{stage.tasks:,}", *map(size_text, sizes), f"{stage.files:,}")
    return table


def _costs(plan: BuildPlan) -> Table:
    table = Table(
        "machine",
        "workers",
        "passages/s each",
        "embed h",
        "segment h",
        "$",
        "basis",
        box=None,
        header_style="bold",
    )
    for cost in plan.costs:
        table.add_row(*_cells(cost))
    return table


def _cells(cost: CostEstimate) -> tuple[str, ...]:
    return (
        f"{cost.machine}: {cost.what}",
        f"{cost.workers:,}",
        f"{cost.passages_per_s:,.0f}",
        f"{cost.embed_hours:,.2f}",
        f"{cost.segment_hours:,.2f}",
        f"{cost.price:,.2f}",
        cost.basis,
    )
