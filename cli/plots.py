"""Plots; matplotlib is the extra `plot`."""

from __future__ import annotations

from pathlib import Path

import typer

from scannery.indexer import Manifest

__all__ = ["plot_curves"]


def plot_curves(manifest: Manifest, path: Path) -> None:
    """Draw the recall curve of each ScaNN segment, with the target, to an image file.

    Raises:
        typer.BadParameter: matplotlib is not installed, every segment is searched exactly, or matplotlib does not know
            the file's ending.
        OSError: the file cannot be written.

    """
    curves = [(entry.shard, entry.curve) for entry in manifest.segments if entry.curve]
    if not curves:
        raise typer.BadParameter(
            "nothing to plot: every segment is small and searched exactly, so recall is 1",
            param_hint="--plot",
        )
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise typer.BadParameter(
            "needs matplotlib: pip install 'scannery[plot]'", param_hint="--plot"
        ) from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for shard, curve in curves:
        axes.plot([p.query_us for p in curve], [p.recall for p in curve], marker="o", label=f"shard {shard}")
    axes.axhline(manifest.spec.target_recall, color="gray", linestyle="--", label="target")
    axes.set(
        xscale="log",
        xlabel="time of one query on one core, in a batch (µs)",
        ylabel="recall@10",
        title=f"{manifest.index}, version {manifest.version}",
    )
    axes.legend(loc="lower right")
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:  # a file ending that matplotlib does not know
        raise typer.BadParameter(str(error), param_hint="--plot") from error
