"""Options shared by the commands that query or change an index."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from scannery.client import Client, connect
from scannery.client.transport.credentials import ConnectOptions

__all__ = [
    "FieldsOption",
    "IndexOption",
    "JsonOption",
    "StoreOption",
    "TargetOption",
    "TimeoutOption",
    "WhereOption",
    "connected",
    "parsed_json",
    "remote_options",
]

IndexOption = Annotated[str, typer.Option("--index", "-i", help="Name of the index.")]
TargetOption = Annotated[
    str | None, typer.Option("--target", "-t", metavar="HOST:PORT", help="Address of a server.")
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", metavar="URI", help="A store, opened in this process: a folder, gs://, s3://, az://."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FieldsOption = Annotated[
    list[str] | None,
    typer.Option("--field", help="Return only this field or attribute; may be given several times."),
]
WhereOption = Annotated[
    str | None, typer.Option("--where", metavar="JSON", help='Filter, such as {"year": {"$gte": 2020}}.')
]
TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Deadline of a call.")]


def connected(target: str | None, store: str | None, *, timeout_s: float, create: bool = False) -> Client:
    """Return the client for --target or --store; exactly one of them must be given.

    Credentials for a server come from the environment (`remote_options`). `create`: whether a store's folder is created
    if it does not exist.
    """
    if (target is None) == (store is None):
        raise typer.BadParameter("give either --target HOST:PORT or --store URI")
    if target is not None:
        if "://" not in target and ":" not in target:
            raise typer.BadParameter(f"--target must be HOST:PORT, got {target!r}; for a folder, use --store")
        return connect(target, timeout_s=timeout_s, **remote_options())
    from scannery.indexer.local.needless_imports import leave_needless_imports_out

    leave_needless_imports_out()
    assert store is not None
    # A path that looks like a server is a folder here, because the option names a store.
    return connect(store if "://" in store else Path(store), timeout_s=timeout_s, create=create)


def remote_options() -> ConnectOptions:
    """Return the connection options from the environment variables.

    Secrets have no options: every process of the machine can read a command line.
    """
    value = {name: os.environ.get(variable) or None for name, variable in _ENVIRONMENT.items()}
    options = ConnectOptions(
        api_key=value["api_key"],
        token=value["token"],
        ca=value["ca"],
        cert=value["cert"],
        key=value["key"],
    )
    if (tls := value["tls"]) is not None:
        options["tls"] = tls.lower() in ("1", "true", "yes", "on")
    return options


_ENVIRONMENT = {
    "api_key": "SCANNERY_API_KEY",
    "token": "SCANNERY_TOKEN",
    "tls": "SCANNERY_TLS",
    "ca": "SCANNERY_CA",
    "cert": "SCANNERY_CERT",
    "key": "SCANNERY_KEY",
}
"""Variable by option of `connect`."""


def parsed_json(text: str | None, option: str) -> Any:
    """Return the parsed JSON of an option; None if the option was not given."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} is not valid JSON: {error}") from error
