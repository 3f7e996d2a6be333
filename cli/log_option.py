"""The option `--log`, which all commands have that read or write live updates."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from scannery.live.log.location import LOG_VARIABLE, LogRoot, log_root_of

__all__ = ["LogOption", "given_log_root"]

LogOption = Annotated[
    str,
    typer.Option(
        "--log",
        metavar="PLACE",
        help="Logs of live updates: a folder, or the URL of a PostgreSQL database; default: $SCANNERY_LOG, or in the "
        "store, if it is a folder.",
        show_default=False,
    ),
]


def given_log_root(log: str) -> LogRoot | None:
    """Return the place that `--log` names, or the environment; None: neither does."""
    return log_root_of(log or os.environ.get(LOG_VARIABLE, ""))
