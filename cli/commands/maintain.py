"""`scannery maintain`: seal, merge and collect garbage, for servers that do not."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from scannery.cli import options
from scannery.cli.declared_options import configured, with_options
from scannery.cli.lazy_commands import uncollected
from scannery.cli.options import LogOption
from scannery.live.log.location import LOG_VARIABLE
from scannery.serving.config import MaintainConfig

__all__ = ["maintain"]


@with_options("store index log once fill_cache metrics_listen log_json", MaintainConfig)
def maintain(
    store: options.ServedStoreOption,
    log: LogOption = "",
    once: Annotated[
        bool,
        typer.Option("--once", help="Seal all mutations, merge what is due, collect garbage, and end."),
    ] = False,
    log_json: options.LogJsonOption = False,
    **settings: Any,
) -> None:
    """Seal, merge and collect garbage as it becomes due, until SIGTERM or Ctrl-C; several processes may run."""
    with uncollected():
        from scannery.indexer.local.needless_imports import leave_needless_imports_out

        leave_needless_imports_out()
        from scannery.serving import maintain as run
        from scannery.serving.process.maintain import maintain_once

    options.become_server(log_json)
    config = configured(MaintainConfig, settings, store=store, log=log or os.environ.get(LOG_VARIABLE, ""))
    if once:
        before = signal.signal(signal.SIGTERM, _exit)
        try:
            maintain_once(config)
        finally:
            signal.signal(signal.SIGTERM, before)
    else:
        run(config, ready=_announce)


def _announce(metrics: str) -> None:
    typer.echo(f"Maintaining{f', metrics on {metrics}' if metrics else ''}; Ctrl-C stops.")


def _exit(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)  # an exception, which removes temporary folders
