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
from scannery.serving.engine.wire_fields import framed, varint
from scannery.v1.search_pb2 import Hit, SearchResponse
from scannery.v1.types_pb2 import Value

__all__ = ["written_hits"]

_HITS = SearchResponse.HITS_FIELD_NUMBER
_FIXED32 = 5
"""The wire type of a float."""


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
    """Return each hit as a field; datapoints are copied as the leaves wrote them."""
    scores = _scores(ranking)
    places = zip(ranking.segments.tolist(), ranking.rows.tolist(), strict=True)
    written = []
    for place, (number, row) in enumerate(places):
        datapoint = tables[number].datapoints.get(row)
        if datapoint is None:  # its group stopped to answer, which the caller allows
            continue
        own = [datapoint, *(values[place] for values in scores)]
        if grouped or ranking.by_vector is not None:
            value = tables[number].values.get(row) if grouped else None
            own.append(_rest(value, ranking, names, place).SerializeToString())
        written.append(framed(_HITS, b"".join(own)))
    return written


def _scores(ranking: Ranking) -> list[list[bytes]]:
    """Return the scores of all hits, a list for each kind, as fields; without those that are not there."""
    given = (
        (Hit.SCORE_FIELD_NUMBER, ranking.scores),
        (Hit.DENSE_SCORE_FIELD_NUMBER, ranking.dense),
        (Hit.LEXICAL_SCORE_FIELD_NUMBER, ranking.lexical),
        (Hit.RERANK_SCORE_FIELD_NUMBER, ranking.rerank),
    )
    return [_fields(field, scores_H) for field, scores_H in given if scores_H is not None]


def _fields(number: int, scores_H: np.ndarray) -> list[bytes]:
    """Return each score as a field; empty where it is not a number."""
    tag, data = varint(number << 3 | _FIXED32), scores_H.astype("<f4").tobytes()
    missing = np.isnan(scores_H).tolist()
    return [b"" if none else tag + data[4 * at : 4 * at + 4] for at, none in enumerate(missing)]


def _rest(value: Value | None, ranking: Ranking, names: Sequence[str], place: int) -> Hit:
    """Return what few hits have besides the datapoint and the scores."""
    hit = Hit()
    if value is not None:
        hit.group.CopyFrom(value)
    if ranking.by_vector is not None:
        own = zip(names, ranking.by_vector[place].tolist(), strict=True)
        hit.vector_scores.update({name: score for name, score in own if score == score})  # noqa: PLR0124  not NaN
    return hit
