"""Options that several commands have."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from scannery.client import Client, connect

__all__ = [
    "FieldsOption",
    "IndexOption",
    "JsonOption",
    "StoreOption",
    "TargetOption",
    "TimeoutOption",
    "connected",
    "parsed_json",
]

IndexOption = Annotated[str, typer.Option("--index", "-i", help="Name of the index.")]
TargetOption = Annotated[
    str | None, typer.Option("--target", "-t", metavar="HOST:PORT", help="Ask this server.")
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", metavar="URI", help="Ask a store in this process: a folder, gs://, s3://, az://."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")]
FieldsOption = Annotated[
    list[str] | None,
    typer.Option("--field", help="Return only this field or attribute; may be given several times."),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Give up after so long.")]


def connected(target: str | None, store: str | None, *, timeout_s: float) -> Client:
    """Return the client that --target or --store names; exactly one of them must be given."""
    if (target is None) == (store is None):
        raise typer.BadParameter("give either --target HOST:PORT or --store URI")
    if target is not None:
        if "://" not in target and ":" not in target:
            raise typer.BadParameter(
                f"--target must be HOST:PORT, got {target!r}; a folder goes with --store"
            )
        return connect(target, timeout_s=timeout_s)
    # Paths that look like host:port are folders here: the option says what is meant.
    uri = store if store is None or "://" in store else f"./{store}" if ":" in store else store
    return connect(str(uri), timeout_s=timeout_s)


def parsed_json(text: str | None, option: str) -> Any:
    """Return the JSON in an option; None if it was not given."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} is not valid JSON: {error}") from error
