"""A group of commands whose modules are imported when they run: `scannery --help` imports none of them."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

__all__ = ["LazyCommand", "LazyCommands", "LazyGroup", "uncollected"]


class LazyCommand(NamedTuple):
    """Where a command is, and its line in the list of commands."""

    target: str
    """`module:name` of a function with typer's annotations, or of a `typer.Typer`."""
    help: str
    """The first line of the command's docstring; a test compares them."""
    no_args_is_help: bool = True
    """Whether the command prints its help when it is called without arguments."""
    brief: bool = False
    """Whether the command ends soon after its imports: garbage, which takes a tenth of its time, is not collected."""


class LazyCommands(MutableMapping[str, Any]):
    """Commands by name, imported when they are looked up; the names alone import nothing.

    Args:
        lazy: the commands that are not imported.
        eager: further commands, which typer has made already.

    """

    def __init__(self, lazy: Mapping[str, LazyCommand], eager: Mapping[str, Any]) -> None:
        self._lazy = dict(lazy)
        self._loaded = dict(eager)

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = _loaded(name, self._lazy[name])
        return self._loaded[name]

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        self._lazy.pop(name, None)
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        yield from self._lazy
        yield from self._loaded.keys() - self._lazy.keys()

    def __len__(self) -> int:
        return len(self._lazy.keys() | self._loaded.keys())

    def listed(self, name: str) -> Any:
        """Return what stands for the command in a list: its name and its line; None if there is no such command."""
        if name in self._loaded or name not in self._lazy:
            return self._loaded.get(name)
        return TyperCommand(name, help=self._lazy[name].help)


class LazyGroup(TyperGroup):
    """A group that knows its commands by a table; a subclass sets `TABLE`."""

    TABLE: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, *, commands: Any = None, **attributes: Any) -> None:
        # typer gives a dict of the commands that were registered on the app.
        super().__init__(commands=LazyCommands(self.TABLE, commands or {}), **attributes)  # type: ignore[arg-type]

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return what the help and the shell's completion list, without importing the command."""
        assert isinstance(self.commands, LazyCommands)
        return self.commands.listed(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that is to run, imported."""
        name, command, arguments = super().resolve_command(ctx, args)
        if name is not None and (lazy := self.TABLE.get(name)) is not None and lazy.brief:
            ctx.with_resource(uncollected())
        return name, self.commands[name] if name is not None else command, arguments


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage: imports leave none, and looking for it takes a tenth of their time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _loaded(name: str, lazy: LazyCommand) -> Any:
    module, _, attribute = lazy.target.partition(":")
    target = getattr(import_module(module), attribute)
    if isinstance(target, typer.Typer):
        command: Any = typer.main.get_group(target)
        command.name = name
        return command
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(name, no_args_is_help=lazy.no_args_is_help)(target)
    return typer.main.get_command(app)
