"""Options of commands that call the leaves of a cluster: what they present, and whom they trust."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["LeavesCaOption", "LeavesCertKeyOption", "LeavesCertOption", "LeavesKeyOption"]

_PANEL = "Cluster"

LeavesKeyOption = Annotated[
    str,
    typer.Option(
        "--leaves-key", metavar="FILE", help="File with the API key for the leaves.", rich_help_panel=_PANEL
    ),
]
LeavesCaOption = Annotated[
    str,
    typer.Option(
        "--leaves-ca",
        metavar="FILE",
        help="Connect to them with TLS; file with the authority of their certificates.",
        rich_help_panel=_PANEL,
    ),
]
LeavesCertOption = Annotated[
    str,
    typer.Option(
        "--leaves-cert",
        metavar="FILE",
        help="Certificate for leaves that ask for one.",
        rich_help_panel=_PANEL,
    ),
]
LeavesCertKeyOption = Annotated[
    str,
    typer.Option(
        "--leaves-cert-key",
        metavar="FILE",
        help="Private key of this certificate.",
        rich_help_panel=_PANEL,
    ),
]
