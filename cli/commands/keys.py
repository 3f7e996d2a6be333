"""`scannery keys`: manage the API keys of a server."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.table import Column, Table

from scannery.cli.options import JsonOption, connected, parsed_json
from scannery.cli.output import console, print_json

if TYPE_CHECKING:
    from scannery.serving.security import ApiKey

__all__ = ["keys_app"]

keys_app = typer.Typer(no_args_is_help=True, help="Make, list and revoke the API keys of a server.")

FileOption = Annotated[
    str, typer.Option("--file", "-f", metavar="FILE", help="The server's file of keys (serve --keys).")
]


@keys_app.command(no_args_is_help=True)
def create(
    name: Annotated[str, typer.Argument(help="Purpose of the key.")],
    file: FileOption,
    scope: Annotated[
        list[str] | None,
        typer.Option(help="Permission: read, write or admin; may be given several times. Default: read."),
    ] = None,
    index: Annotated[
        list[str] | None, typer.Option(help="Restrict the key to this index; may be given several times.")
    ] = None,
    where: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help='Filter: the key opens these rows alone, as \'{"tenant": "acme"}\'.'
        ),
    ] = None,
    field: Annotated[
        list[str] | None,
        typer.Option(help="Restrict the fields that are read to this one; may be given several times."),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Restrict the key to this method, as Search; may be given several times."),
    ] = None,
    statistics: Annotated[
        Literal["own", "shared"] | None,
        typer.Option(
            help="With --where: weigh words by the statistics of all rows of the index (shared), or of those that the "
            "key opens. Default: own."
        ),
    ] = None,
    days: Annotated[float | None, typer.Option(help="Days until the key expires. Default: never.")] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="Limit of what the key may ask for, such as requests_per_s=50, max_k=100, refuse=scan, strict or none "
            "(docs/security.md#limits-of-callers); may be given several times. Default: what the server allows.",
        ),
    ] = None,
) -> None:
    """Make a key and print it; the file stores only its hash, so the key cannot be shown again."""
    from scannery.serving.security import KeyFile
    from scannery.serving.security.limits import parse_items

    parts = {
        "where": parsed_json(where, "--where"),
        "fields": field,
        "methods": method,
        "statistics": statistics,
    }
    parts = {name: part for name, part in parts.items() if part is not None}
    access = [{"index": name, **parts} for name in index or ["*"]] if parts else []
    key, text = KeyFile(file).create(
        name,
        scopes=scope or ["read"],
        indexes=index or None,
        access=access,
        days=days,
        limits=parse_items(limit) if limit else None,
    )
    typer.echo(text)
    typer.echo(f"key {key.id} ({', '.join(key.scopes)}); save it now, it is not shown again", err=True)


@keys_app.command("list", no_args_is_help=True)
def list_(file: FileOption, as_json: JsonOption = False) -> None:
    """List the keys of a file."""
    from scannery.serving.security import KeyFile

    keys = KeyFile(file).read()
    if as_json:
        print_json([_item(key) for key in keys])
        return
    table = Table(
        Column("id", no_wrap=True), "name", "scopes", "indexes", Column("opens", overflow="fold"),
        Column("limits", overflow="fold"), "created", "expires",
    )  # fmt: skip
    for key in keys:
        table.add_row(
            key.id, key.name, " ".join(key.scopes), _shown(key), _opened(key), str(key.limits or ""), key.created_at,
            key.expires_at or "never",
        )  # fmt: skip
    console().print(table)


def _opened(key: ApiKey) -> str:
    return "\n".join(json.dumps(entry.as_json()) for entry in key.access) or "all"


def _item(key: ApiKey) -> dict[str, object]:
    """Return a key without its secret's hash."""
    fields: dict[str, object] = {"access": [], "limits": None} | key.to_dict()
    del fields["sha256"]
    return fields


def _shown(key: ApiKey) -> str:
    return "all" if key.indexes is None else " ".join(key.indexes) or "none"


@keys_app.command(no_args_is_help=True)
def whoami(
    target: Annotated[str, typer.Option("--target", "-t", metavar="HOST:PORT", help="Server to call.")],
    as_json: JsonOption = False,
) -> None:
    """Show who the key or token of the environment is to a server, and what it may do."""
    with connected(target, None, timeout_s=30.0) as client:
        caller = client.whoami()
    end = caller.expires_at.isoformat() if caller.expires_at else None
    if as_json:
        indexes = "*" if caller.indexes is None else list(caller.indexes)
        print_json(asdict(caller) | {"indexes": indexes, "expires_at": end})
        return
    indexes = "all" if caller.indexes is None else " ".join(caller.indexes) or "none"
    from scannery.serving.security.limits import limits_text

    table = Table.grid(padding=(0, 2))
    for line in (
        ("caller", caller.name), ("scopes", " ".join(caller.scopes) or "none"), ("indexes", indexes),
        ("opens", "\n".join(map(json.dumps, caller.access)) or "all"), ("limits", limits_text(caller.limits)),
        ("expires", end or "never"), ("asks for credentials", "yes" if caller.asks_for_credentials else "no"),
        ("server", f"{caller.server_version} {caller.server_role} {caller.server_id}"),
    ):  # fmt: skip
        table.add_row(*line)
    console().print(table)


@keys_app.command(no_args_is_help=True)
def revoke(
    name: Annotated[
        str, typer.Argument(metavar="NAME|ID", help="Name or id of the key (scannery keys list).")
    ],
    file: FileOption,
) -> None:
    """Remove a key; servers refuse it after at most two seconds."""
    from scannery.serving.security import KeyFile

    key = KeyFile(file).revoke(name)
    typer.echo(f"revoked {key.id} ({key.name})")
