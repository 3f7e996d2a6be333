"""Hits in the wire format, of datapoints that leaves returned.

Shapes: H hits of one query.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from scannery.serving.engine.hydrator import Written
from scannery.serving.engine.remote.leaf_table import LeafTable
from scannery.serving.engine.top_k import Ranking
from scannery.serving.engine.wire_fields import framed
from scannery.v1.search_pb2 import Hit, SearchResponse

__all__ = ["written_hits"]

_HITS = SearchResponse.HITS_FIELD_NUMBER


def written_hits(
    rankings: Sequence[Ranking], tables: Sequence[LeafTable], names: Sequence[str], *, grouped: bool
) -> Written:
    """Return the hits of each query.

    Args:
        rankings: the hits, as groups of leaves and rows of their tables.
        tables: of each group; they have the datapoints.
        names: of the vectors of `Hit.vector_scores`; none leaves it out.
        grouped: whether `Hit.group` is set.

    """
    lists = [b"".join(_hits(ranking, tables, names, grouped=grouped)) for ranking in rankings]
    bounds_L = np.array([0, *accumulate(map(len, lists))], np.int64)
    return Written(np.frombuffer(b"".join(lists), np.uint8), bounds_L)


def _hits(
    ranking: Ranking, tables: Sequence[LeafTable], names: Sequence[str], *, grouped: bool
) -> list[bytes]:
    written = []
    for place, (number, row) in enumerate(zip(ranking.segments.tolist(), ranking.rows.tolist(), strict=True)):
        table = tables[number]
        datapoint = table.datapoints.get(row)
        if datapoint is None:  # its group stopped to answer, which the caller allows
            continue
        hit = Hit(datapoint=datapoint, score=float(ranking.scores[place]))
        _put_scores(hit, ranking, place)
        if grouped and (value := table.values.get(row)) is not None:
            hit.group.CopyFrom(value)
        if ranking.by_vector is not None:
            own = zip(names, ranking.by_vector[place].tolist(), strict=True)
            hit.vector_scores.update({name: score for name, score in own if score == score})  # noqa: PLR0124  not NaN
        written.append(framed(_HITS, hit.SerializeToString()))
    return written


def _put_scores(hit: Hit, ranking: Ranking, place: int) -> None:
    """Add the scores besides the one that hits are ordered by."""
    for name, scores_H in (
        ("dense_score", ranking.dense),
        ("lexical_score", ranking.lexical),
        ("rerank_score", ranking.rerank),
    ):
        if scores_H is not None and not np.isnan(scores_H[place]):
            setattr(hit, name, float(scores_H[place]))
