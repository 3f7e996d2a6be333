"""`scannery scan`: print the datapoints of an index as JSON lines."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from scannery.cli.options import StoreOption, TargetOption, TimeoutOption, connected, parsed_json
from scannery.cli.output import json_text, point_json
from scannery.client import Scan

__all__ = ["scan"]

PAGE = 1000


def scan(
    name: Annotated[str | None, typer.Argument(metavar="[INDEX]", help="Name of the index.")] = None,
    index: Annotated[
        str | None, typer.Option("--index", "-i", help="Name of the index, as other commands take it.")
    ] = None,
    target: TargetOption = None,
    store: StoreOption = None,
    where: Annotated[str | None, typer.Option("--where", metavar="JSON", help="Filter.")] = None,
    fields: Annotated[
        str | None,
        typer.Option(
            "--fields", metavar="A,B", help="Print only these fields and attributes, besides the ids."
        ),
    ] = None,
    order_by: Annotated[
        str | None,
        typer.Option(
            "--order-by",
            metavar="NAME",
            help="An attribute, id or document_id; -NAME: the greatest first. Default: the order of the index.",
        ),
    ] = None,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, help="Number of datapoints to choose at random; default: all."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the choice.")] = 0,
    limit: Annotated[
        int | None,
        typer.Option("--limit", min=1, help="End after this number of datapoints, and print a token."),
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", help="Continue where a scan with the same options ended that printed this."),
    ] = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="Also print the vectors.")] = False,
    timeout: TimeoutOption = 60.0,
) -> None:
    """Print the datapoints of one snapshot of an index as JSON lines, which `upsert` reads.

    Writes while it runs change nothing of what is printed. A scan that ends early prints a token to standard error,
    with which another one continues.
    """
    if (name is None) == (index is None):
        raise typer.BadParameter("give the name of the index: INDEX, or --index INDEX")
    with connected(target, store, timeout_s=timeout) as client:
        running = client.index(str(name or index)).scan(
            where=parsed_json(where, "--where"),
            fields=None if fields is None else [name.strip() for name in fields.split(",") if name.strip()],
            order_by=order_by,
            vectors=vectors,
            sample=sample,
            seed=seed,
            page_size=None if limit is None else min(limit, PAGE),
            token=token,
        )
        try:
            _print(running, limit)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader (`| head`) has enough. Typer would end the command with an error.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print(running: Scan, limit: int | None) -> None:
    """Print datapoints, at most `limit`; and a token, if there are more."""
    token = running.token
    count = 0
    with _interrupts() as interrupts:
        try:
            while limit is None or count < limit:
                with interrupts.allowed():
                    point = next(running, None)
                if point is None:
                    return
                sys.stdout.write(json_text(point_json(point)) + "\n")
                count, token = count + 1, running.token
        except KeyboardInterrupt:
            _print_token(token)
            raise
    if next(running, None) is not None:
        _print_token(token)


def _print_token(token: str | None) -> None:
    sys.stdout.flush()
    if token is not None:
        typer.echo(f"continue with --token {token}", err=True)


class _Interrupts:
    """Holds Ctrl-C back while a datapoint is printed, so that the token is that of the last one printed."""

    def __init__(self) -> None:
        self._allowed = False
        self._pending = False

    def __call__(self, *_: object) -> None:
        self._pending = True
        self._check()

    @contextmanager
    def allowed(self) -> Iterator[None]:
        """Allow Ctrl-C to interrupt what runs inside."""
        self._allowed = True
        try:
            self._check()
            yield
        finally:
            self._allowed = False

    def _check(self) -> None:
        if self._pending and self._allowed:
            raise KeyboardInterrupt


@contextmanager
def _interrupts() -> Iterator[_Interrupts]:
    interrupts = _Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield interrupts
        return
    before = signal.signal(signal.SIGINT, interrupts)
    try:
        yield interrupts
    finally:
        signal.signal(signal.SIGINT, before)
