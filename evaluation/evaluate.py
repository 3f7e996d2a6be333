"""Retrieval quality against relevance judgements: the measures of each configuration, and what differs between two.

Shapes: M measures, Q queries.

Write the results of an evaluation: TREC runs, and the values of each query as JSON lines or CSV.

Configurations of a search, from options and lists of values to try.

    mode=dense,hybrid                   values
    alpha=0.1..0.9:0.2                  a range with both ends and a step: 0.1, 0.3, 0.5, 0.7, 0.9
    vectors=title,body,title=2+body     named vectors, and two of them fused

Every combination is a configuration, without those that differ only in options that their mode ignores: dense search
has no alpha.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from scannery.evaluation.judgements import Judgements
from scannery.evaluation.measures import (
    MAIN_MEASURE,
    Interval,
    Measure,
    default_measures,
    intervals_of,
    measured_values,
    measuring_engine,
    paired_bootstrap,
)
from scannery.pipelines.errors import CollectionError

__all__ = [
    "SWEPT",
    "Comparison",
    "Configuration",
    "Evaluation",
    "combine",
    "compare",
    "evaluate",
    "largest_differences",
    "parse_sweep",
    "run_paths",
    "value_text",
    "write_per_query",
    "write_run",
]


QueryT = TypeVar("QueryT")
Search = Callable[[Sequence[QueryT]], Sequence[Sequence[str]]]
"""Function from Q queries to the ids found for each, best first."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Measures of one configuration of a search."""

    name: str
    """Name of the configuration, such as a mode."""

    query_ids: tuple[str, ...]
    """Queries with a relevant document, in the order of the queries file."""
    values: Mapping[str, np.ndarray]
    """Values by measure, the value of each query: float64 (Q,)."""
    hits: tuple[tuple[str, ...], ...]
    """The ids found for each query, best first."""
    seconds: float
    """Time of all searches together."""

    @cached_property
    def means(self) -> dict[str, Interval]:
        """The mean of each measure, with its interval."""
        intervals = intervals_of(np.stack(list(self.values.values())))
        return dict(zip(self.values, intervals, strict=True))

    @property
    def empty(self) -> int:
        """Number of queries without a hit."""
        return sum(not documents for documents in self.hits)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The difference between two configurations in one measure, over the same queries."""

    measure: str
    difference: Interval
    """Mean of the first minus the second, with the interval of a paired bootstrap."""
    better: int
    """Number of queries that the first answers better."""
    worse: int
    """Number of queries that the second answers better."""
    equal: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A query that one configuration answers better than the other, with both values of the measure."""

    query_id: str
    first: float
    """Value of the measure in the first configuration."""

    second: float
    """Value in the second."""


def evaluate(
    searches: Mapping[str, Search[QueryT]],
    queries: Mapping[str, QueryT],
    judgements: Judgements,
    *,
    k: int = 100,
    measures: Sequence[Measure] | None = None,
) -> list[Evaluation]:
    """Return the measures of each search.

    Queries without a relevant document (a level above 0) are left out, since every answer to them scores 0.

    Args:
        searches: by name; each returns up to k ids per query, best first.
        queries: texts, or what the searches take, by id.
        judgements: by query id.
        k: for the recall, if no measures are given.
        measures: to compute; default: `default_measures(k)`.

    Raises:
        CollectionError: no query has a relevant document.
        MissingPackageError: `ir_measures` is not installed.

    """
    judged = {
        name: judgements[name]
        for name in queries
        if any(level > 0 for level in judgements.get(name, {}).values())
    }
    if not judged:
        raise CollectionError(
            "qrels: no query has a relevant document; do the ids of both files match?", field="qrels"
        )
    chosen_measures = default_measures(k) if measures is None else measures
    measuring_engine()  # a missing package should show before the searches, not after them
    judged_queries = [queries[name] for name in judged]
    return [
        _evaluated(name, search, judged_queries, judged, chosen_measures) for name, search in searches.items()
    ]


def _evaluated(
    name: str,
    search: Search[QueryT],
    judged_queries: Sequence[QueryT],
    judged: Judgements,
    measures: Sequence[Measure],
) -> Evaluation:
    started = time.perf_counter()
    results = search(judged_queries)
    seconds = time.perf_counter() - started
    return Evaluation(
        name=name,
        query_ids=tuple(judged),
        values=measured_values(measures, judged, results),
        hits=tuple(map(tuple, results)),
        seconds=seconds,
    )


def compare(first: Evaluation, second: Evaluation) -> list[Comparison]:
    """Return the differences in each measure of two configurations that were asked the same queries."""
    comparisons = []
    for measure, one_Q in first.values.items():
        gaps_Q = one_Q - second.values[measure]
        better, worse = int((gaps_Q > 0).sum()), int((gaps_Q < 0).sum())
        comparisons.append(
            Comparison(
                measure=measure,
                difference=paired_bootstrap(one_Q, second.values[measure]),
                better=better,
                worse=worse,
                equal=len(gaps_Q) - better - worse,
            )
        )
    return comparisons


def largest_differences(
    first: Evaluation, second: Evaluation, count: int, *, measure: str = MAIN_MEASURE
) -> list[Difference]:
    """Return the `count` queries with the largest differences in the measure, largest first."""
    gaps_Q = np.abs(first.values[measure] - second.values[measure])
    order = np.argsort(-gaps_Q, kind="stable")[:count]
    return [
        Difference(
            query_id=first.query_ids[i],
            first=float(first.values[measure][i]),
            second=float(second.values[measure][i]),
        )
        for i in order.tolist()
        if gaps_Q[i] > 0
    ]


def run_paths(path: Path, names: Sequence[str]) -> dict[str, Path]:
    """Return the file of each configuration's run: the path itself for one, `run.dense.trec`, … for several."""
    if len(names) == 1:
        return {names[0]: path}
    parts = {name: re.sub(r"[^\w.=-]+", "_", name) for name in names}
    return {name: path.with_name(f"{path.stem}.{part}{path.suffix}") for name, part in parts.items()}


def write_run(path: Path, result: Evaluation) -> int:
    """Write a TREC run, and return the number of ids that had blanks, which a run cannot hold.

    A line has the query, `Q0`, the document, the rank from 1, a score, and the name of the configuration. Programs for
    runs order by score and equal scores by their own rule, so scores are numbers that fall with the rank. Blanks in
    ids become `%20`.
    """
    tag = re.sub(r"\s+", "_", result.name)
    changed: set[str] = set()

    def word(identifier: str) -> str:
        if re.search(r"\s", identifier):
            changed.add(identifier)
        return re.sub(r"\s", lambda match: f"%{ord(match[0]):02X}", identifier)

    lines = [
        f"{word(query)} Q0 {word(document)} {rank} {len(documents) - rank + 1} {tag}\n"
        for query, documents in zip(result.query_ids, result.hits, strict=True)
        for rank, document in enumerate(documents, 1)
    ]
    _write(path, "".join(lines))
    return len(changed)


def write_per_query(path: Path, results: Sequence[Evaluation], texts: Mapping[str, str]) -> None:
    """Write a row for each configuration and query: its id, text, number of hits, and value of each measure.

    Raises:
        CollectionError: the file's ending is neither `.jsonl` nor `.csv`.

    """
    if path.suffix not in (".jsonl", ".csv"):
        raise CollectionError(f"per-query: {path} must end with .jsonl or .csv", field="per-query")
    rows = [
        {
            "configuration": result.name,
            "query_id": name,
            "text": texts[name],
            "hits": len(result.hits[position]),
            **{measure: float(values_Q[position]) for measure, values_Q in result.values.items()},
        }
        for result in results
        for position, name in enumerate(result.query_ids)
    ]
    if path.suffix == ".jsonl":
        _write(path, "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows))
        return
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    _write(path, text.getvalue())


def _write(path: Path, text: str) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(text)


def _flag(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError
    return text == "true"


SWEPT: dict[str, Callable[[str], Any]] = {
    "index": str,
    "mode": str,
    "vectors": lambda text: "".join(text.split()),
    "fusion": str,
    "alpha": float,
    "typos": _flag,
    "prefix": _flag,
    "rerank": int,
    "k": int,
    "target_recall": float,
}
"""Options that can be swept, and the types of their values. The order is that of the configurations."""

_KINDS = {int: "an integer", float: "a number", _flag: "true or false"}
"""Names of the types that not every text is a value of."""

MOST_VALUES = 200
"""Values of one sweep, and configurations in all: a wrong step would search for days."""

_MODES = {
    "vectors": ("dense", "hybrid"),
    "fusion": ("hybrid",),
    "alpha": ("hybrid",),
    "typos": ("lexical", "hybrid"),
    "prefix": ("lexical", "hybrid"),
}
"""Modes of the options that others ignore or refuse."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """Options of a search."""

    name: str
    """The mode, and the options that are swept: `hybrid alpha=0.3`."""
    options: Mapping[str, Any]
    """Options by the names of SWEPT, without those that are not set."""

    def without(self, option: str) -> str:
        """Return the name without one option: configurations with equal ones make a line of a plot."""
        setting = f"{option}={value_text(self.options.get(option))}"
        return " ".join(part for part in self.name.split(" ") if part != setting)


def parse_sweep(text: str) -> tuple[str, list[Any]]:
    """Return the option and the values of a sweep such as `alpha=0.1..0.9:0.2`, in order, each once.

    Raises:
        ValueError: it has another form, or the option cannot be swept.

    """
    name, equals, values = text.partition("=")
    name = name.strip().replace("-", "_")
    if name not in SWEPT or not equals:
        raise ValueError(f"must be NAME=VALUES, with a name of {', '.join(SWEPT)}, got {text!r:.80}")
    parts = [part.strip() for part in values.split(",") if part.strip()]
    all_values = [value for part in parts for value in _values(name, part)]
    distinct = list(dict.fromkeys(all_values))
    if not distinct or len(distinct) > MOST_VALUES:
        raise ValueError(f"{name} must have 1 to {MOST_VALUES} values, got {len(distinct)}")
    return name, distinct


def combine(fixed: Mapping[str, Any], sweeps: Mapping[str, Sequence[Any]]) -> list[Configuration]:
    """Return the configurations of all combinations, in the order of SWEPT and of the values.

    Args:
        fixed: options of all configurations, by the names of SWEPT; None: not set.
        sweeps: values by option; `mode` is one of them.

    Raises:
        ValueError: there are more than MOST_VALUES.

    """
    names = [name for name in SWEPT if name in sweeps]
    configurations: dict[str, Configuration] = {}
    for values in itertools.product(*(sweeps[name] for name in names)):
        swept = _relevant(dict(zip(names, values, strict=True)))
        name = " ".join(_label(option, value) for option, value in swept.items())
        options = _relevant({**fixed, **swept})
        set_options = {key: value for key, value in options.items() if value is not None}
        configurations.setdefault(name, Configuration(name=name, options=set_options))
    if len(configurations) > MOST_VALUES:
        raise ValueError(f"at most {MOST_VALUES} configurations, these sweeps make {len(configurations)}")
    return list(configurations.values())


def _relevant(options: Mapping[str, Any]) -> dict[str, Any]:
    mode = options.get("mode")
    return {name: value for name, value in options.items() if mode in _MODES.get(name, (mode,))}


def _label(option: str, value: Any) -> str:
    return str(value) if option in ("index", "mode", "fusion") else f"{option}={value_text(value)}"


def value_text(value: Any) -> str:
    """Return the value of an option as a sweep has it; empty if it is not set."""
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _values(name: str, text: str) -> Iterable[Any]:
    kind = SWEPT[name]
    if kind is str or ".." not in text:
        return [_converted(name, kind, text)]
    bounds, _, step = text.partition(":")
    low, high = (_decimal(name, part) for part in bounds.split("..", 1))
    by = _decimal(name, step) if step else Decimal(1) if kind is int else None
    if by is None or by <= 0 or high < low:
        raise ValueError(f"{name}: a range is LOW..HIGH:STEP, such as 0.1..0.9:0.2, got {text!r:.80}")
    count = int((high - low) / by) + 1
    if count > MOST_VALUES:
        raise ValueError(f"{name} must have 1 to {MOST_VALUES} values, got {count}")
    return [_converted(name, kind, str(low + number * by)) for number in range(count)]


def _decimal(name: str, text: str) -> Decimal:
    try:
        number = Decimal(text.strip())
    except InvalidOperation as error:
        raise ValueError(f"{name}: must be a number, got {text!r:.80}") from error
    if not number.is_finite():
        raise ValueError(f"{name}: must be finite, got {text!r:.80}")
    return number


def _converted(name: str, kind: Callable[[str], Any], text: str) -> Any:
    try:
        return kind(text)
    except ValueError as error:
        raise ValueError(f"{name}: must be {_KINDS[kind]}, got {text!r:.80}") from error
