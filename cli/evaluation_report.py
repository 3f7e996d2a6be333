"""Output of `scannery evaluate`: as JSON, or as tables.

Plots; matplotlib is the extra `plot`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from scannery.cli.output import console
from scannery.indexer import Manifest

if TYPE_CHECKING:
    from scannery.evaluation.collection_check import CollectionCheck
    from scannery.evaluation.evaluate import Comparison, Configuration, Evaluation
    from scannery.evaluation.judgements import Query, Source
    from scannery.evaluation.measures import Interval

__all__ = [
    "EvaluationReport",
    "check_plot",
    "evaluation_json",
    "plot_curves",
    "plot_evaluation",
    "print_evaluation",
]


MAX_WIDTH = 1000
"""Characters: more than any table needs."""

ALL_PAIRS = 3
"""Most configurations that are all compared with each other; of more, each is compared with one."""


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """What was measured."""

    index: str
    configurations: Sequence[Configuration]
    results: Sequence[Evaluation]
    """One for each configuration."""
    queries: Mapping[str, Query]
    """All of the file, also those that are left out."""
    derived: Source | None
    """What the queries are taken from, if they are derived from the index."""
    check: CollectionCheck
    snapshots: Sequence[tuple[str, int, int]]
    """Each index, version and sequence that answered."""
    baseline: str | None
    """Name of the configuration that others are compared with; None: the best one."""
    differences: int
    """Queries to show for each pair."""

    @property
    def main_measure(self) -> str:
        """The first measure: it orders the configurations."""
        return next(iter(self.results[0].values))

    @property
    def left_out(self) -> int:
        """Number of queries without a relevant document."""
        return len(self.queries) - len(self.results[0].query_ids)

    @property
    def best(self) -> Evaluation:
        """The configuration with the highest mean of the main measure; the first one of equals."""
        return max(self.results, key=lambda result: result.means[self.main_measure].mean)

    def pairs(self) -> list[tuple[Evaluation, Evaluation]]:
        """Return the pairs to compare: all of up to ALL_PAIRS, else the baseline or the best with each other one."""
        results = list(self.results)
        if self.baseline is None and len(results) <= ALL_PAIRS:
            return [
                (first, second) for number, first in enumerate(results) for second in results[number + 1 :]
            ]
        names = [result.name for result in results]
        first = self.best if self.baseline is None else results[names.index(self.baseline)]
        return [(first, second) for second in results if second is not first]

    def swept_options(self) -> list[str]:
        """Return the options that differ between configurations, and the mode."""
        from scannery.evaluation.evaluate import SWEPT

        names = [
            name
            for name in SWEPT
            if any(name in configuration.options for configuration in self.configurations)
        ]
        values = {
            name: {configuration.options.get(name) for configuration in self.configurations} for name in names
        }
        return [name for name in names if name == "mode" or len(values[name]) > 1]

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each thing that makes the figures less than they seem."""
        yield from self.check.warnings()
        for result in self.results:
            if result.empty:
                yield f"{result.name}: {result.empty:,} queries have no hit"
        if len(self.snapshots) > len({name for name, _, _ in self.snapshots}):
            yield "the index changed during the evaluation: configurations may have searched different contents"
        if self.derived is not None:
            yield (
                f"queries are {self.derived}s of the index, which lexical search finds by their words: they are easier "
                "than people's queries, and do not show which mode is better; `scannery judge` makes judgements that do"
            )
        if len(self.results) > ALL_PAIRS:
            yield (
                f"the best of {len(self.results)} configurations looks better than it is: confirm it with other queries"
            )


def evaluation_json(report: EvaluationReport) -> dict[str, Any]:
    """Return the report as JSON values; docs/evaluate.md describes them."""
    return {
        "index": report.index,
        "queries": len(report.results[0].query_ids),
        "left_out": report.left_out,
        "derived": report.derived,
        "snapshots": [
            {"index": name, "version": version, "sequence": sequence}
            for name, version, sequence in report.snapshots
        ],
        "collection": asdict(report.check),
        "warnings": list(report.warnings()),
        "main_measure": report.main_measure,
        "best": report.best.name,
        "modes": {
            result.name: _result_json(result, configuration)
            for result, configuration in zip(report.results, report.configurations, strict=True)
        },
        "comparisons": [_comparison_json(first, second) for first, second in report.pairs()],
        "differences": [_difference_json(report, first, second) for first, second in report.pairs()],
    }


def _result_json(result: Evaluation, configuration: Configuration) -> dict[str, Any]:
    return {
        "options": dict(configuration.options),
        "metrics": {measure: asdict(interval) for measure, interval in result.means.items()},
        "empty": result.empty,
        "seconds": round(result.seconds, 3),
    }


def _comparison_json(first: Evaluation, second: Evaluation) -> dict[str, Any]:
    from scannery.evaluation.evaluate import compare

    metrics = {
        comparison.measure: {
            **asdict(comparison.difference),
            "better": comparison.better,
            "worse": comparison.worse,
            "equal": comparison.equal,
        }
        for comparison in compare(first, second)
    }
    return {"modes": [first.name, second.name], "metrics": metrics}


def _difference_json(report: EvaluationReport, first: Evaluation, second: Evaluation) -> dict[str, Any]:
    from scannery.evaluation.evaluate import largest_differences

    items = largest_differences(first, second, report.differences, measure=report.main_measure)
    queries = [
        {
            "id": item.query_id,
            "text": str(report.queries[item.query_id]),
            first.name: item.first,
            second.name: item.second,
        }
        for item in items
    ]
    return {"modes": [first.name, second.name], "queries": queries}


def print_evaluation(report: EvaluationReport) -> None:
    """Print the measures, the comparisons, the queries with the largest differences, and warnings."""
    out = console()
    pairs = report.pairs()
    by_pairs = len(report.results) <= ALL_PAIRS and report.baseline is None
    _print_means(out, report, differences=not by_pairs)
    if report.left_out:
        out.print(f"Left out, without a relevant document: {report.left_out:,}")
    # Derived queries do not tell which mode is better, so a verdict would mislead.
    if pairs and by_pairs and report.derived is None:
        out.print()
        out.print(_comparisons(report))
    for first, second in pairs[:ALL_PAIRS]:
        _print_differences(out, report, first, second)
    warnings = list(report.warnings())
    if warnings:
        out.print()
    for warning in warnings:
        out.print(f"warning: {warning}", markup=False, soft_wrap=True)


def _print_means(out: Console, report: EvaluationReport, *, differences: bool) -> None:
    """Print the table of configurations; in a narrow terminal without the last measures."""
    measures = list(report.results[0].values)
    shown = len(measures)
    table = _means(report, measures, differences=differences)
    unbounded = out.options.update(width=MAX_WIDTH)
    while shown > 1 and out.measure(table, options=unbounded).maximum > out.width:
        shown -= 1
        table = _means(report, measures[:shown], differences=differences)
    out.print(table)
    if shown < len(measures):
        out.print(f"A wider terminal and --json also have {', '.join(measures[shown:])}", soft_wrap=True)


def _means(report: EvaluationReport, measures: Sequence[str], *, differences: bool) -> Table:
    """Return the table of configurations, with the difference from one of them or with intervals."""
    from scannery.evaluation.evaluate import value_text

    what = {None: "queries", "title": "titles as queries", "sentence": "sentences as queries"}[report.derived]
    note = "; ?: may be chance" if differences else ""
    title = f"{len(report.results[0].query_ids):,} {what}; 95 % intervals{note}"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    options = report.swept_options()
    for option in options:
        table.add_column(option, no_wrap=True)
    for measure in measures:
        table.add_column(measure, justify="right", no_wrap=True)
    first = report.pairs()[0][0] if differences else None
    if first is not None:
        base = "best" if report.baseline is None else "baseline"
        table.add_column(f"{report.main_measure} − {base}", justify="right", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    for configuration, result in zip(report.configurations, report.results, strict=True):
        cells = [value_text(configuration.options.get(option)) for option in options]
        cells += [_mean_text(result.means[measure], alone=first is not None) for measure in measures]
        if first is not None:
            cells.append("" if result is first else _difference_from(first, result, report.main_measure))
        table.add_row(*cells, f"{result.seconds:.1f}")
    return table


def _mean_text(interval: Interval, *, alone: bool) -> str:
    half = (interval.high - interval.low) / 2
    return f"{interval.mean:.4f}" if alone else f"{interval.mean:.4f} ±{half:.3f}"


def _difference_from(first: Evaluation, result: Evaluation, measure: str) -> str:
    from scannery.evaluation.measures import paired_bootstrap

    difference = paired_bootstrap(result.values[measure], first.values[measure])
    mark = "" if difference.excludes_zero else " ?"
    return f"{difference.mean:+.4f} ({difference.low:+.3f} to {difference.high:+.3f}){mark}"


def _comparisons(report: EvaluationReport) -> Table:
    from scannery.evaluation.evaluate import compare

    table = Table(title="Differences, query by query", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("first")
    table.add_column("second")
    for name in (f"{report.main_measure}, first − second", "better", "worse", "equal"):
        table.add_column(name, justify="right")
    table.add_column("")
    for first, second in report.pairs():
        comparison = next(item for item in compare(first, second) if item.measure == report.main_measure)
        counts = (f"{comparison.better:,}", f"{comparison.worse:,}", f"{comparison.equal:,}")
        table.add_row(
            first.name,
            second.name,
            _difference_text(comparison),
            *counts,
            _verdict(comparison, first, second),
        )
    return table


def _difference_text(comparison: Comparison) -> str:
    interval = comparison.difference
    return f"{interval.mean:+.4f} ({interval.low:+.3f} to {interval.high:+.3f})"


def _verdict(comparison: Comparison, first: Evaluation, second: Evaluation) -> str:
    if not comparison.difference.excludes_zero:
        return "chance?"
    return f"{(first if comparison.difference.mean > 0 else second).name} is better"


def _print_differences(out: Console, report: EvaluationReport, first: Evaluation, second: Evaluation) -> None:
    from scannery.evaluation.evaluate import largest_differences

    items = largest_differences(first, second, report.differences, measure=report.main_measure)
    if items:
        out.print(
            f"\nMost different {report.main_measure}, {first.name} against {second.name}:", markup=False
        )
    for item in items:
        text = "".join(char if char.isprintable() else " " for char in str(report.queries[item.query_id]))
        out.print(
            f"  {item.first:.3f}  {item.second:.3f}  {item.query_id}: {text:.100}",
            markup=False,
            soft_wrap=True,
        )


def plot_curves(manifest: Manifest, path: Path) -> None:
    """Draw the recall curve of each ScaNN segment, those of named vectors too, with the target, to an image file.

    Raises:
        typer.BadParameter: matplotlib is not installed, every segment is searched exactly, or matplotlib does not know
            the file's ending.
        OSError: the file cannot be written.

    """
    curves = [
        (f"{name}, shard {entry.shard}".removeprefix(", "), entry.curve)
        for name in manifest.vectors
        for entry in manifest.of_vectors(name).segments
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
    formats = _figure().canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in formats:
        raise typer.BadParameter(
            f"must end with one of {', '.join(formats)}, got {path}", param_hint="--plot"
        )


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
    for configuration in configurations:
        for option, value in configuration.options.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                values.setdefault(option, set()).add(value)
    swept = {option: len(options_seen) for option, options_seen in values.items() if len(options_seen) > 1}
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
    heights = range(len(means))
    axes.errorbar(means, heights, xerr=bounds, fmt="o", capsize=4)
    axes.set_yticks(heights, [result.name for result in report.results])
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
