"""`scannery maintain`: seal, merge and collect garbage, for servers that do not."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, NoReturn

import typer

from scannery.cli import options
from scannery.cli.lazy_commands import uncollected
from scannery.cli.options import LogOption
from scannery.live.log.location import LOG_VARIABLE

__all__ = ["maintain"]


def maintain(
    store: Annotated[
        str,
        typer.Option(
            "--store", "-s", envvar="SCANNERY_STORE", metavar="URI", help="Folder or bucket with the indexes."
        ),
    ],
    index: Annotated[
        list[str] | None, typer.Option(help="Maintain only this index; may be given several times.")
    ] = None,
    log: LogOption = "",
    once: Annotated[
        bool,
        typer.Option("--once", help="Seal all mutations, merge what is due, collect garbage, and end."),
    ] = False,
    fill_cache: Annotated[
        bool | None,
        typer.Option(
            help="Unpack new segments into the cache of this machine, for servers on it; by default if the store is a "
            "folder.",
            show_default=False,
        ),
    ] = None,
    metrics_listen: options.MetricsOption = "",
    log_json: options.LogJsonOption = False,
) -> None:
    """Seal, merge and collect garbage as it becomes due, until SIGTERM or Ctrl-C; several processes may run."""
    with uncollected():
        from scannery.indexer.local.needless_imports import leave_needless_imports_out

        leave_needless_imports_out()
        from scannery.serving import MaintainConfig
        from scannery.serving import maintain as run
        from scannery.serving.process.maintain import maintain_once

    options.become_server(log_json)
    config = MaintainConfig(
        store=store,
        indexes=tuple(index or ()),
        log=log or os.environ.get(LOG_VARIABLE, ""),
        fill_cache=fill_cache,
        metrics_listen=metrics_listen,
    )
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
