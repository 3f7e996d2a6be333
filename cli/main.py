"""The `scannery` command: its sub-commands, and how errors end it."""

from __future__ import annotations

import gc
import logging
import os
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, NoReturn

import typer

import scannery
from scannery.cli.errors import INTERRUPTED, exit_code, is_expected, one_line
from scannery.cli.lazy_commands import LazyCommand, LazyGroup

__all__ = ["app", "main", "run"]

_COMMANDS = "scannery.cli.commands"


class _Commands(LazyGroup):
    """The commands; the module of one is imported when it runs."""

    TABLE: ClassVar[Mapping[str, LazyCommand]] = {
        "build": LazyCommand(
            f"{_COMMANDS}.build:build", "Build an index from files, or update it from them."
        ),
        "plan": LazyCommand(
            f"{_COMMANDS}.plan:plan", "Tell what an index will take of memory and disk, before it is built."
        ),
        "search": LazyCommand(
            f"{_COMMANDS}.search:search", "Search an index by text, vector, or datapoint.", brief=True
        ),
        "get": LazyCommand(
            f"{_COMMANDS}.get:get",
            "Print the datapoints that exist; ends with an error if some do not.",
            brief=True,
        ),
        "scan": LazyCommand(
            f"{_COMMANDS}.scan:scan",
            "Print the datapoints of one snapshot of an index as JSON lines, which `upsert` reads.",
        ),
        "upsert": LazyCommand(
            f"{_COMMANDS}.write:upsert",
            "Insert or replace datapoints, which are durable and visible when the command ends.",
        ),
        "delete": LazyCommand(
            f"{_COMMANDS}.write:delete", "Delete datapoints or documents; unknown ids are not an error."
        ),
        "update": LazyCommand(
            f"{_COMMANDS}.write:update", "Give all datapoints that a filter allows new values of attributes."
        ),
        "count": LazyCommand(
            f"{_COMMANDS}.aggregations:count",
            "Print the number of datapoints, or of those that a filter allows.",
            brief=True,
        ),
        "facets": LazyCommand(
            f"{_COMMANDS}.aggregations:facets",
            "Print the values of an attribute with their numbers of datapoints, the most frequent first.",
            brief=True,
        ),
        "attribute-stats": LazyCommand(
            f"{_COMMANDS}.aggregations:attribute_stats",
            "Print the number of distinct values of an attribute, the least, the greatest, and quantiles.",
            brief=True,
        ),
        "import": LazyCommand(
            "scannery.bridges.importers.command:import_",
            "Import a collection of Qdrant, Chroma, LanceDB, pgvector or FAISS into an index.",
        ),
        "mcp": LazyCommand(
            "scannery.bridges.mcp.command:mcp",
            "Let agents search and read indexes, over the Model Context Protocol; nothing can be changed by it.",
        ),
        "console": LazyCommand(
            f"{_COMMANDS}.servers.console:console",
            "Open a web page on the indexes: search as you type, see why a hit is there, judge, manage.",
        ),
        "evaluate": LazyCommand(
            f"{_COMMANDS}.evaluate:evaluate",
            "Measure nDCG, MRR, MAP, recall and success of an index against relevance judgements.",
        ),
        "log": LazyCommand(
            f"{_COMMANDS}.log:log_app",
            "Look at the log of queries and feedback, make judgements of it, hand it on, forget what is in it.",
        ),
        "judge": LazyCommand(
            f"{_COMMANDS}.judge:judge",
            "Judge the hits of queries in a terminal: one key for each, saved at once, and continued where it stopped.",
        ),
        "recall": LazyCommand(
            f"{_COMMANDS}.recall:recall",
            "Measure the share of an exact search's hits that a search finds.",
        ),
        "compare": LazyCommand(
            f"{_COMMANDS}.compare:compare",
            "Compare answers that another system gave with those of an index, and both with an exact search.",
        ),
        "train": LazyCommand(
            f"{_COMMANDS}.models.train:train",
            "Fit a model to judged queries, compare it with what an index returns today, and register it.",
        ),
        "model": LazyCommand(
            f"{_COMMANDS}.models.group:model_app", "List, evaluate, promote and roll back models."
        ),
        "serve": LazyCommand(
            f"{_COMMANDS}.serve:serve",
            "Serve the indexes of a store until SIGTERM or Ctrl-C; new versions are served without a restart.",
        ),
        "cluster": LazyCommand(
            f"{_COMMANDS}.servers.cluster:cluster_app",
            "Show the leaves of a cluster; start and end clusters on Ray.",
        ),
        "maintain": LazyCommand(
            f"{_COMMANDS}.serve:maintain",
            "Seal, merge and collect garbage as it becomes due, until SIGTERM or Ctrl-C; several processes may run.",
        ),
        "encoder": LazyCommand(
            f"{_COMMANDS}.serve:encoder",
            "Encode texts until SIGTERM or Ctrl-C, for `serve --encoder` and for callers of EmbeddingService.",
        ),
        "audit": LazyCommand(
            f"{_COMMANDS}.servers.audit:audit_app", "Prove that an audit log is whole, and show its records."
        ),
        "top": LazyCommand(
            f"{_COMMANDS}.servers.top:top",
            "Show requests per second, latencies, load, recall and memory of a server until Ctrl-C.",
        ),
        "demo": LazyCommand(
            f"{_COMMANDS}.demo:demo",
            "Build a bundled sample corpus of 300 podcast episodes, serve it, and ask it questions.",
            no_args_is_help=False,
        ),
        "bench": LazyCommand(f"{_COMMANDS}.bench:bench_app", "Measure."),
        "keys": LazyCommand(f"{_COMMANDS}.keys:keys_app", "Make, list and revoke the API keys of a server."),
        "spec": LazyCommand(f"{_COMMANDS}.spec:spec_app", "Draft and check specs."),
        "index": LazyCommand(
            f"{_COMMANDS}.indexes.group:index_app", "Show, check, roll back and clean up indexes."
        ),
        "store": LazyCommand(
            f"{_COMMANDS}.indexes.store:store_app",
            "Say which releases can open a store, and raise its level.",
        ),
    }


app = typer.Typer(
    name="scannery",
    cls=_Commands,
    no_args_is_help=True,
    # This module prints errors: on one line, with a traceback only with --debug.
    pretty_exceptions_enable=False,
    help="Turn a corpus into a search service.",
)


def _version(requested: bool) -> None:
    if requested:
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
