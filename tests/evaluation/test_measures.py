"""Measures against their definitions, on random runs."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from scannery.evaluation.measures import default_measures, measured_values, parse_measures
from scannery.pipelines.errors import CollectionError

NAMES = ["nDCG@10", "nDCG", "MRR@10", "MRR", "MAP", "MAP@5", "recall@7", "recall", "success@3", "success"]
NAMES += ["precision@5", "judged@10", "judged"]


def defined(name: str, levels: Mapping[str, int], found: Sequence[str]) -> float:  # noqa: PLR0911
    """Return the measure of a query by its definition, in the least clever way."""
    family, _, cutoff = name.partition("@")
    first = list(found)[: int(cutoff)] if cutoff else list(found)
    gains = [max(levels.get(document, 0), 0) for document in first]
    relevant = sum(level > 0 for level in levels.values())
    if family == "nDCG":
        ideal = sorted((level for level in levels.values() if level > 0), reverse=True)[
            : int(cutoff or 10**6)
        ]
        best = sum(gain / math.log2(rank + 1) for rank, gain in enumerate(ideal, 1))
        return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, 1)) / best
    if family == "MRR":
        return next((1 / rank for rank, gain in enumerate(gains, 1) if gain), 0)
    if family == "MAP":
        precisions = [sum(g > 0 for g in gains[:rank]) / rank for rank, gain in enumerate(gains, 1) if gain]
        return sum(precisions) / relevant
    if family == "recall":
        return sum(gain > 0 for gain in gains) / relevant
    if family == "success":
        return float(any(gains))
    if family == "precision":
        return sum(gain > 0 for gain in gains) / int(cutoff)
    return sum(document in levels for document in first) / len(first) if first else 0.0


@pytest.mark.parametrize("seed", range(8))
def test_measures_are_those_of_their_definitions(seed: int) -> None:
    picker = random.Random(seed)
    documents = [f"d{number}" for number in range(60)]
    judged: dict[str, dict[str, int]] = {}
    found: list[list[str]] = []
    for query in range(25):
        levels = {name: picker.choice([-1, 0, 0, 1, 2, 3]) for name in picker.sample(documents, 15)}
        judged[f"q{query}"] = levels | {picker.choice(documents): 1}
        # Also queries without a hit, and with fewer hits than a cutoff.
        found.append(picker.sample(documents, picker.choice([0, 1, 4, 12, 30])))
    values = measured_values(parse_measures(NAMES), judged, found)
    assert list(values) == NAMES
    for name in NAMES:
        expected = [defined(name, levels, hits) for levels, hits in zip(judged.values(), found, strict=True)]
        # trec_eval computes nDCG with fewer digits.
        np.testing.assert_allclose(values[name], expected, atol=1e-6, err_msg=name)


def test_no_hits_at_all_measure_nothing() -> None:
    values = measured_values(parse_measures(NAMES), {"q": {"d": 1}}, [[]])
    assert {name: value.tolist() for name, value in values.items()} == {name: [0.0] for name in NAMES}


def test_names_are_taken_in_any_case_and_once() -> None:
    names = [
        one.name
        for one in parse_measures(["ndcg@10", "map", "P@5", "RR@10", "Recall@100", "nDCG@10", "hit@3"])
    ]
    assert names == ["nDCG@10", "MAP", "precision@5", "MRR@10", "recall@100", "success@3"]
    assert [one.name for one in default_measures(50)][3] == "recall@50"


@pytest.mark.parametrize("name", ["nDCG@", "nDCG@0", "nDCG@-1", "f1", "", "recall@x"])
def test_unknown_measures_are_refused(name: str) -> None:
    with pytest.raises(
        CollectionError, match="must be one of nDCG, MRR, MAP, recall, success, precision, judged"
    ):
        parse_measures([name])
