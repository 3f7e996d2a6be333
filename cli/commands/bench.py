"""`scannery bench serve`: measure a server's throughput and latencies under load.

Open loop: requests are due at fixed times, even if earlier ones are unanswered, and a latency counts from the time at
which its request was due. A closed loop would send fewer requests while the server is slow, and so leave out the long
waits ("coordinated omission").
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from scannery.cli.load_generator import Latencies, Step, run_step
from scannery.cli.options import IndexOption, JsonOption, remote_options
from scannery.cli.output import console, print_json

__all__ = ["Latencies", "Step", "bench_app", "run_step"]

bench_app = typer.Typer(no_args_is_help=True, help="Measure.")

KNEE_KEPT = 0.95
"""The server keeps up with a rate if it answers at least this share of the requests."""


@bench_app.command("serve", no_args_is_help=True)
def bench_serve(
    target: Annotated[str, typer.Argument(metavar="HOST:PORT", help="The server.")],
    index: IndexOption,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="Requests per second; several rates are tried in order. Default: a ramp."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Duration of each rate.", min=0.5)] = 10.0,
    k: Annotated[int, typer.Option("-k", help="Hits wanted.")] = 10,
    processes: Annotated[int, typer.Option(help="Number of sending processes.", min=1, max=64)] = 2,
    queries: Annotated[
        Path | None, typer.Option(help="File with a text query per line. Default: random vectors.")
    ] = None,
    timeout: Annotated[float, typer.Option(help="Deadline of a request in seconds.")] = 10.0,
    as_json: JsonOption = False,
) -> None:
    """Send requests at fixed rates and report latencies. Without --rate, double it until the server falls behind."""
    source: list[str] | int
    if queries is not None:
        source = [line for line in queries.read_text().splitlines() if line.strip()]
        if not source:
            raise typer.BadParameter(f"--queries: {queries} has no query")
    else:
        source = _dimensions(target, index, timeout)
        if not source:
            raise typer.BadParameter(f"index {index!r} has no unnamed vector; give texts with --queries")
    steps = []
    for each in rate or _ramp():
        steps.append(
            run_step(target, index, source, each, seconds, k=k, processes=processes, timeout_s=timeout)
        )
        if not as_json:
            typer.echo(_line(steps[-1]), err=True)
        if not rate and steps[-1].answered_per_s < KNEE_KEPT * each:
            break
    if as_json:
        print_json([step.to_json() for step in steps])
    else:
        _print(steps)


def _dimensions(target: str, index: str, timeout_s: float) -> int:
    from scannery.client import connect

    with connect(target, timeout_s=timeout_s, **remote_options()) as client:
        return client.index(index).stats().dimensions


def _ramp() -> list[float]:
    return [50.0 * 2**step for step in range(16)]


def _line(step: Step) -> str:
    return f"{step.rate:g} per s: {step.answered_per_s:.0f} answered, p99 {1000 * step.latencies.quantile(0.99):.1f} ms"


def _print(steps: Sequence[Step]) -> None:
    table = Table("due per s", "answered per s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "failed")
    for step in steps:
        row = step.to_json()
        table.add_row(
            f"{step.rate:g}",
            f"{row['answered_per_s']:g}",
            *(f"{row[name]:g}" for name in ("p50_ms", "p90_ms", "p99_ms", "p99.9_ms")),
            ", ".join(f"{count} {name}" for name, count in step.failed.items()) or "0",
        )
    console().print(table)
