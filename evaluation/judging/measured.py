"""How well searches answer a set of questions: the measures of `scannery evaluate` on the same rankings.

Shapes: Q queries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from scannery.evaluation.evaluate import Evaluation, compare, evaluate
from scannery.evaluation.judgements import Judgements
from scannery.evaluation.measures import MAIN_MEASURE, Interval, parse_measures

__all__ = ["ColumnMeasures", "Measured", "WorstQuestion", "measured"]

DEPTH = 100
MEASURES = (MAIN_MEASURE, "MRR@10", f"recall@{DEPTH}", "judged@10")
WORST, MISSING = 10, 10
"""Number of questions that are listed, and of documents for each."""


@dataclass(frozen=True, kw_only=True)
class ColumnMeasures:
    """How well one column answers."""

    name: str
    means: Mapping[str, Interval]
    """Mean of each measure over the questions."""
    differences: Mapping[str, Interval]
    """Mean of each measure minus that of the first column, by the paired bootstrap; of the first: none."""


@dataclass(frozen=True, kw_only=True)
class WorstQuestion:
    """A question that the first column answers badly."""

    id: str
    text: str
    values: Sequence[float]
    """Main measure of each column."""
    missing: Sequence[str]
    """Relevant documents that are not among the hits of the first column."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """How well columns answer a set."""

    questions: int
    """Number of questions that are measured: those with a relevant document."""
    main_measure: str
    columns: Sequence[ColumnMeasures]
    worst: Sequence[WorstQuestion]


def measured(
    texts: Mapping[str, str],
    judgements: Judgements,
    rankings: Mapping[str, Mapping[str, Sequence[str]]],
) -> Measured:
    """Return the measures of each column.

    Args:
        texts: of the questions, by id.
        judgements: by question and document.
        rankings: by column and by question: the documents, best first.

    Raises:
        CollectionError: no question that all columns answer has a relevant document.
        MissingPackageError: `ir_measures` is not installed.

    """
    answered = {name: name for name in texts if all(name in column for column in rankings.values())}
    results = evaluate(
        {column: partial(_ranked, ranking) for column, ranking in rankings.items()},
        answered,
        judgements,
        k=DEPTH,
        measures=parse_measures(MEASURES),
    )
    first = results[0]
    return Measured(
        questions=len(first.query_ids),
        main_measure=MAIN_MEASURE,
        columns=[
            ColumnMeasures(
                name=result.name,
                means=result.means,
                differences={}
                if result is first
                else {each.measure: each.difference for each in compare(result, first)},
            )
            for result in results
        ],
        worst=_worst(results, texts, judgements),
    )


def _ranked(ranking: Mapping[str, Sequence[str]], names: Sequence[str]) -> list[Sequence[str]]:
    return [ranking[name][:DEPTH] for name in names]


def _worst(
    results: Sequence[Evaluation], texts: Mapping[str, str], judgements: Judgements
) -> list[WorstQuestion]:
    first = results[0]
    values_Q = first.values[MAIN_MEASURE]
    return [
        WorstQuestion(
            id=name,
            text=texts[name],
            values=[float(result.values[MAIN_MEASURE][i]) for result in results],
            missing=[
                document
                for document, level in judgements[name].items()
                if level > 0 and document not in first.hits[i]
            ][:MISSING],
        )
        for i in np.argsort(values_Q, kind="stable")[:WORST].tolist()
        if values_Q[i] < 1
        for name in [first.query_ids[i]]
    ]
