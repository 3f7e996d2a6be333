"""All commands of `scannery index`, from the modules that hold them."""

from __future__ import annotations

from scannery.cli.commands.export import export
from scannery.cli.commands.indexes.calibrate import index_app
from scannery.cli.commands.indexes.forget import forget

__all__ = ["index_app"]

index_app.command("export", no_args_is_help=True)(export)
index_app.command("forget", no_args_is_help=True)(forget)
