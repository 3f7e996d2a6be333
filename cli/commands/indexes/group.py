"""All commands of `scannery index`, from the modules that hold them."""

from __future__ import annotations

from scannery.cli.commands.export import export
from scannery.cli.commands.indexes.calibrate import index_app

__all__ = ["index_app"]

index_app.command("export", no_args_is_help=True)(export)
