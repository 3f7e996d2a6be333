"""`scannery count`, `facets` and `attribute-stats`: what is in an index."""

from __future__ import annotations

import datetime as dt
from typing import Annotated

import typer

from scannery.cli.options import (
    IndexOption,
    JsonOption,
    StoreOption,
    TargetOption,
    TimeoutOption,
    WhereOption,
    connected,
    parsed_json,
)
from scannery.cli.output import console, print_json
from scannery.client import AttributeStats, Facets

__all__ = ["attribute_stats", "count", "facets"]

AttributeArgument = Annotated[
    str, typer.Argument(metavar="ATTRIBUTE", help="Name of an attribute, or document_id.")
]


def count(
    index: IndexOption,
    where: WhereOption = None,
    target: TargetOption = None,
    store: StoreOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Print the number of datapoints, or of those that a filter allows."""
    with connected(target, store, timeout_s=timeout) as client:
        total = client.index(index).count(parsed_json(where, "--where"))
    if as_json:
        print_json({"count": total})
    else:
        typer.echo(total)


def facets(
    attribute: AttributeArgument,
    index: IndexOption,
    where: WhereOption = None,
    limit: Annotated[int, typer.Option(help="Values to print, 1 to 10,000.")] = 100,
    target: TargetOption = None,
    store: StoreOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Print the values of an attribute with their numbers of datapoints, the most frequent first."""
    with connected(target, store, timeout_s=timeout) as client:
        counts = client.index(index).facets(attribute, parsed_json(where, "--where"), limit=limit)
    if as_json:
        values = [{"value": _plain(facet.value), "count": facet.count} for facet in counts]
        print_json({"facets": values, "distinct": counts.distinct, "missing": counts.missing})
    else:
        _print_facets(counts)


def attribute_stats(
    attribute: AttributeArgument,
    index: IndexOption,
    where: WhereOption = None,
    quantile: Annotated[
        list[float] | None,
        typer.Option(
            help="Share of the values, 0 to 1; may be given several times. Default: 0.5, the median."
        ),
    ] = None,
    target: TargetOption = None,
    store: StoreOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Print the number of distinct values of an attribute, the least, the greatest, and quantiles."""
    with connected(target, store, timeout_s=timeout) as client:
        handle = client.index(index)
        stats = handle.attribute_stats(attribute, parsed_json(where, "--where"), quantiles=quantile or [0.5])
    if as_json:
        print_json(_stats_json(stats))
    else:
        _print_stats(stats)


def _print_facets(facets: Facets) -> None:
    width = max((len(f"{facet.count:,}") for facet in facets), default=0)
    for facet in facets:
        typer.echo(f"{facet.count:>{width},}  {_shown(facet.value)}")
    more = f" ({len(facets):,} printed)" if len(facets) < facets.distinct else ""
    typer.echo(f"{facets.distinct:,} values{more}; {facets.missing:,} datapoints without one.")


def _print_stats(stats: AttributeStats) -> None:
    from rich.markup import escape
    from rich.table import Table

    shares = list(stats.types[0].quantiles) if stats.types else []
    table = Table("type", "values", "distinct", "min", *(f"{share:g}" for share in shares), "max")
    for values_of_type in stats.types:
        values = (values_of_type.min, *values_of_type.quantiles.values(), values_of_type.max)
        cells = ("" if value is None else escape(_shown(value)) for value in values)
        table.add_row(
            values_of_type.type, f"{values_of_type.values:,}", f"{values_of_type.distinct:,}", *cells
        )
    if stats.types:
        console().print(table)
    typer.echo(f"{stats.rows:,} datapoints with a value, {stats.missing:,} without one.")


def _stats_json(stats: AttributeStats) -> dict[str, object]:
    types = [
        {
            "type": values_of_type.type,
            "values": values_of_type.values,
            "distinct": values_of_type.distinct,
            "min": _plain(values_of_type.min),
            "max": _plain(values_of_type.max),
            "quantiles": {f"{share:g}": _plain(value) for share, value in values_of_type.quantiles.items()},
        }
        for values_of_type in stats.types
    ]
    return {"rows": stats.rows, "missing": stats.missing, "distinct": stats.distinct, "types": types}


def _shown(value: object) -> str:
    # Control characters of values must not reach the terminal.
    return "".join(char if char.isprintable() else " " for char in str(_plain(value)))


def _plain(value: object) -> object:
    return value.isoformat() if isinstance(value, dt.datetime) else value
