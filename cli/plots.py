"""Plots; matplotlib is the extra `plot`."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Number
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from scannery.indexer import Manifest

if TYPE_CHECKING:
    from scannery.cli.evaluation_report import EvaluationReport
    from scannery.pipelines.evaluation.evaluate import Evaluation
    from scannery.pipelines.evaluation.significance import Interval
    from scannery.pipelines.evaluation.sweeps import Configuration

__all__ = ["check_plot", "plot_curves", "plot_evaluation"]


def plot_curves(manifest: Manifest, path: Path) -> None:
    """Draw the recall curve of each ScaNN segment, those of named vectors too, with the target, to an image file.

    Raises:
        typer.BadParameter: matplotlib is not installed, every segment is searched exactly, or matplotlib does not know
            the file's ending.
        OSError: the file cannot be written.

    """
    each = [("", manifest), *((f"{name}, ", manifest.of_vectors(name)) for name in manifest.named_vectors)]
    curves = [
        (f"{front}shard {entry.shard}", entry.curve)
        for front, vectors in each
        for entry in vectors.segments
        if entry.curve
    ]
    if not curves:
        raise typer.BadParameter(
            "nothing to plot: every segment is small and searched exactly, so recall is 1",
            param_hint="--plot",
        )
    figure = _figure()
    axes = figure.add_subplot()
    for label, curve in curves:
        axes.plot([p.query_us for p in curve], [p.recall for p in curve], marker="o", label=label)
    axes.axhline(manifest.spec.target_recall, color="gray", linestyle="--", label="target")
    axes.set(
        xscale="log",
        xlabel="time of one query on one core, in a batch (µs)",
        ylabel="recall@10",
        title=f"{manifest.index}, version {manifest.version}",
    )
    axes.legend(loc="lower right")
    _save(figure, path)


def check_plot(path: Path) -> None:
    """Refuse what cannot be drawn, before long work.

    Raises:
        typer.BadParameter: matplotlib is not installed, or does not know the file's ending.

    """
    known = _figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in known:
        raise typer.BadParameter(f"must end with one of {', '.join(known)}, got {path}", param_hint="--plot")


def plot_evaluation(report: EvaluationReport, path: Path) -> None:
    """Draw the main measure with its intervals: over a swept number if there is one, else side by side.

    Raises:
        typer.BadParameter: matplotlib is not installed.
        OSError: the file cannot be written.

    """
    figure = _figure()
    axes = figure.add_subplot()
    option = _swept_number(report.configurations)
    pairs = list(zip(report.configurations, report.results, strict=True))
    if option is None:
        _draw_side_by_side(axes, report)
    else:
        _draw_lines(axes, option, pairs, report.main_measure)
        axes.set(xlabel=option, ylabel=report.main_measure)
        axes.legend(loc="best", fontsize="small")
    count = len(report.results[0].query_ids)
    what = "derived queries" if report.derived else "queries"
    axes.set_title(f"{report.index}: {count:,} {what}, 95 % intervals", fontsize="medium")
    axes.grid(alpha=0.3)
    _save(figure, path)


def _swept_number(configurations: Sequence[Configuration]) -> str | None:
    """Return the option whose numbers differ most often between configurations."""
    values: dict[str, set[Any]] = {}
    for one in configurations:
        for option, value in one.options.items():
            if isinstance(value, Number):
                values.setdefault(option, set()).add(value)
    swept = {option: len(found) for option, found in values.items() if len(found) > 1}
    return max(swept, key=lambda option: swept[option]) if swept else None


def _draw_lines(
    axes: Any, option: str, pairs: Sequence[tuple[Configuration, Evaluation]], measure: str
) -> None:
    lines: dict[str, list[tuple[float, Interval]]] = {}
    for number, (configuration, result) in enumerate(pairs):
        interval = result.means[measure]
        if option in configuration.options:
            point = (configuration.options[option], interval)
            lines.setdefault(configuration.without(option), []).append(point)
        else:  # the mode has no such option: its value is the same everywhere
            axes.axhline(interval.mean, linestyle="--", color=f"C{number}", label=configuration.name)
    for number, (name, points) in enumerate(lines.items(), len(pairs)):
        points.sort(key=lambda point: point[0])
        x = [value for value, _ in points]
        axes.plot(x, [i.mean for _, i in points], marker="o", color=f"C{number}", label=name)
        axes.fill_between(
            x, [i.low for _, i in points], [i.high for _, i in points], alpha=0.15, color=f"C{number}"
        )


def _draw_side_by_side(axes: Any, report: EvaluationReport) -> None:
    intervals = [result.means[report.main_measure] for result in report.results]
    means = [interval.mean for interval in intervals]
    bounds = [[i.mean - i.low for i in intervals], [i.high - i.mean for i in intervals]]
    places = range(len(means))
    axes.errorbar(means, places, xerr=bounds, fmt="o", capsize=4)
    axes.set_yticks(places, [result.name for result in report.results])
    axes.set(xlabel=report.main_measure, ylim=(len(means) - 0.5, -0.5))


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise typer.BadParameter(
            "needs matplotlib: pip install 'scannery[plot]'", param_hint="--plot"
        ) from error
    return Figure(figsize=(7, 4.5), layout="constrained")


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path, dpi=130)
    except ValueError as error:  # a file ending that matplotlib does not know
        raise typer.BadParameter(str(error), param_hint="--plot") from error
