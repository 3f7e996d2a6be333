"""The `scannery` command: its sub-commands, and how errors end it."""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

import scannery
from scannery.cli.commands.bench import bench_app
from scannery.cli.commands.build import build
from scannery.cli.commands.demo import demo
from scannery.cli.commands.encoder import encoder
from scannery.cli.commands.evaluate import evaluate
from scannery.cli.commands.export import export
from scannery.cli.commands.get import get
from scannery.cli.commands.index_live import index_app
from scannery.cli.commands.judge import judge
from scannery.cli.commands.keys import keys_app
from scannery.cli.commands.recall import recall
from scannery.cli.commands.search import search
from scannery.cli.commands.serve import serve
from scannery.cli.commands.spec import spec_app
from scannery.cli.commands.top import top
from scannery.cli.commands.write import delete, upsert
from scannery.cli.errors import INTERRUPTED, exit_code, is_expected, one_line

__all__ = ["app", "main", "run"]

app = typer.Typer(
    name="scannery",
    no_args_is_help=True,
    # This module prints errors: on one line, with a traceback only with --debug.
    pretty_exceptions_enable=False,
    help="Turn a corpus into a search service.",
)


def _version(wanted: bool) -> None:
    if wanted:
        import apsw

        # The mutation log depends on SQLite's version (scannery.live.log.database).
        typer.echo(f"scannery {scannery.__version__} (SQLite {apsw.sqlite_lib_version()})")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show tracebacks and debug logs.", envvar="SCANNERY_DEBUG")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Turn a corpus into a search service."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )


# One line per command; each module imports slow packages only when its command runs.
app.command(no_args_is_help=True)(build)
app.command(no_args_is_help=True)(search)
app.command(no_args_is_help=True)(get)
app.command(no_args_is_help=True)(upsert)
app.command(no_args_is_help=True)(delete)
app.command(no_args_is_help=True)(evaluate)
app.command(no_args_is_help=True)(judge)
app.command(no_args_is_help=True)(recall)
app.command(no_args_is_help=True)(serve)
app.command(no_args_is_help=True)(encoder)
app.command(no_args_is_help=True)(top)
app.add_typer(bench_app, name="bench")
index_app.command("export", no_args_is_help=True)(export)
app.add_typer(keys_app, name="keys")
app.add_typer(index_app, name="index")
app.add_typer(spec_app, name="spec")
app.command()(demo)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command, print its error, and return the exit code (table: `scannery.cli.errors`)."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader (`| head`) has closed the pipe; the interpreter must not report that at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001  every other error: no traceback without --debug
        return _failed(error, debug=_debug(arguments))
    if status == INTERRUPTED:  # typer's exit code for Ctrl-C
        typer.echo("interrupted", err=True)
    return status if isinstance(status, int) else 0


def run() -> NoReturn:
    """Entry point of the command: run `main`, then end the process."""
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if status == INTERRUPTED:
        # Torch's threads may still compute; a normal exit would destroy them while they run, and abort.
        os._exit(status)
    gc.freeze()  # without it a last collection over all modules takes half a second, with Beam
    sys.exit(status)


def _failed(error: Exception, *, debug: bool) -> int:
    usage = getattr(error, "format_message", None)
    if usage is not None:  # a usage error, whose class depends on typer's version
        if message := " ".join(usage().split()):  # empty without arguments, where typer has printed the help
            typer.echo(f"error: {message}{_help_hint(error)}", err=True)
        return 2
    if debug:
        traceback.print_exception(error)
    hint = "" if debug or is_expected(error) else " (--debug shows where)"
    typer.echo(f"error: {one_line(error)}{hint}", err=True)
    return exit_code(error)


def _help_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    return f" (see `{context.command_path} --help`)" if context is not None else ""


def _debug(arguments: Sequence[str]) -> bool:
    return "--debug" in arguments or os.environ.get("SCANNERY_DEBUG", "").lower() in (
        "1",
        "true",
        "yes",
        "on",
    )


if __name__ == "__main__":
    run()
