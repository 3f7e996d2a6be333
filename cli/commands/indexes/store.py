"""`scannery store upgrade`: let indexes of a store use what former releases cannot read."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from scannery.cli.options import JsonOption
from scannery.cli.output import print_json
from scannery.indexer import Store, list_indexes, read_manifest
from scannery.indexer.versions.levels import (
    LAST_RELEASES,
    LEVEL,
    keys_in_use,
    keys_of,
    level_of,
    raise_level,
)

__all__ = ["store_app"]

store_app = typer.Typer(
    no_args_is_help=True, help="Say which releases can open a store, and raise its level."
)


@store_app.callback()
def _group() -> None:
    """Say which releases can open a store, and raise its level."""


@store_app.command("upgrade", no_args_is_help=True)
def upgrade(
    uri: Annotated[str, typer.Argument(metavar="STORE", help="Folder or bucket with the indexes.")],
    to: Annotated[
        int | None,
        typer.Option(
            "--to",
            min=1,
            max=LEVEL,
            help="Level to raise it to, or to begin a new store with. Default: the newest.",
        ),
    ] = None,
    status: Annotated[bool, typer.Option("--status", help="Only print the level and what it means.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Raise the level of a store, after saying what former releases cannot open then.

    Indexes may use the keys of a level from then on. A release that does not know a key refuses an index that uses it,
    or loses what it says with the next version. Nothing is converted, and there is no way back.
    """
    store, target = Store.open(uri, create=to is not None and not status), to or LEVEL
    level = level_of(store)
    added = {number: keys_of(number) for number in range(level + 1, target + 1)}
    used = {name: _used_above(store, name, level) for name in list_indexes(store)}
    if not as_json:
        _print(level, added, used)
    if not status and (added or not used):
        if added and used and not yes:
            if not sys.stdin.isatty():
                raise typer.BadParameter(f"the store has level {level}; --yes raises it to {target}")
            typer.confirm(f"Raise the level from {level} to {target}? This cannot be undone", abort=True)
        level = raise_level(store, target)
        if not as_json:
            typer.echo(f"The store has level {level} now.")
    if as_json:
        print_json({"level": level, "newest": LEVEL, "added": added, "in_use_above": used})


def _used_above(store: Store, index: str, level: int) -> list[str]:
    return [key for key, needed in keys_in_use(read_manifest(store, index)).items() if needed > level]


def _print(level: int, added: dict[int, list[str]], used: dict[str, list[str]]) -> None:
    typer.echo(f"level {level} of {LEVEL}")
    for number, keys in added.items():
        typer.echo(f"level {number} adds {', '.join(keys)}")
        former = f"The release of {LAST_RELEASES[number - 1]} and earlier ones"
        typer.echo(
            f"    {former} cannot open an index that uses one of these, or lose it when they write to it."
        )
    for name, keys in used.items():
        if keys:
            typer.echo(f"{name} uses already: {', '.join(keys)}")
