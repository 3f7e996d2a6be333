"""What may be wrong with records that a build accepted: figures for its report, from the counts of its stages."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from scannery.pipelines.state.counts import Counts

__all__ = ["observations"]

MOST_NAMES = 20
LEAST_FOREIGN = 0.05
"""Share of the sampled texts from which on a language is told."""


def observations(counts: Counts, *, uncounted: bool) -> dict[str, Any]:
    """Return the statistics of a version about accepted records.

    Args:
        counts: sums over all units and shards.
        uncounted: whether a unit of an earlier release, which did not count fields, has documents.

    """
    missing = {} if uncounted else _missing_fields(counts)
    return {
        "cut_texts": counts.cut_texts,
        "cut_tokens": counts.cut_tokens,
        "missing_fields": missing,
        "unused_fields": _unused(counts) if missing else [],
        "converted": {name: count for name, count in sorted(counts.converted.items()) if count},
        "sampled_texts": counts.sampled_texts,
        "foreign_texts": {
            language: count
            for language, count in sorted(counts.foreign_texts.items(), key=lambda item: -item[1])
            if count >= LEAST_FOREIGN * counts.sampled_texts
        },
    }


def _missing_fields(counts: Counts) -> dict[str, list[str]]:
    """Return the fields of the spec that no record had, each with similar names that records have."""
    missing = [name for name, count in counts.fields.items() if not count]
    return {name: _near(name, counts.other_fields) for name in missing}


def _near(name: str, others: Mapping[str, int]) -> list[str]:
    lower = {other.lower(): other for other in others}
    return [lower[near] for near in difflib.get_close_matches(name.lower(), lower, n=2, cutoff=0.6)]


def _unused(counts: Counts) -> list[str]:
    return sorted(counts.other_fields, key=lambda name: (-counts.other_fields[name], name))[:MOST_NAMES]
