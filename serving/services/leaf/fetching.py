"""Datapoints by id, and what roots need of them besides: the texts and vectors that they are searched by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.engine.hydrator import Hydrator
from scannery.serving.engine.rows.local_rows import LocalRows
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.options import parse_fields
from scannery.serving.request.query import check_count, parse_identifier
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import leaf_pb2 as pb
from scannery.v1.types_pb2 import Datapoint

__all__ = ["fetched"]


def fetched(snapshot: Snapshot, request: pb.LeafFetchRequest, deadline: Deadline) -> pb.LeafFetchResponse:
    """Return what a request asks of the datapoints that the snapshot has.

    Raises:
        InvalidRequestError: names the field.
        DeadlineError: the deadline passed.

    """
    check_count("ids", len(request.ids), limits.MAX_LEAF_IDS)
    ids = [parse_identifier(text, f"ids[{i}]") for i, text in enumerate(request.ids)]
    _check_names(snapshot, request.searched_vectors)
    found = [(number, place) for number, one in enumerate(ids) if (place := snapshot.find(one)) is not None]
    deadline.check()
    answers = [pb.LeafDatapoint(place=number) for number, _ in found]
    places = [place for _, place in found]
    if request.datapoint:
        for answer, datapoint in zip(answers, _datapoints(snapshot, request, places), strict=True):
            answer.datapoint.CopyFrom(datapoint)
    deadline.check()
    if request.searched_text and places:
        for answer, text in zip(answers, _texts(snapshot, places), strict=True):
            answer.searched_text = text or ""
    for name in request.searched_vectors:
        space = snapshot.space(name)
        for answer, place in zip(answers, places, strict=True):
            vector_D = space.vector_of(*place)
            if vector_D is not None:
                answer.searched_vectors[name].packed = vector_D.astype("<f4").tobytes()
    return pb.LeafFetchResponse(found=answers)


def _datapoints(
    snapshot: Snapshot, request: pb.LeafFetchRequest, places: Sequence[tuple[int, int]]
) -> list[Datapoint]:
    spec = snapshot.manifest.spec
    fields = parse_fields(request.return_fields, spec, vector=request.return_vector)
    return Hydrator(snapshot.segments, spec, fields, group_by=None).datapoints(places)


def _texts(snapshot: Snapshot, places: Sequence[tuple[int, int]]) -> list[str | None]:
    numbers, rows = np.array(places, np.int64).T
    return LocalRows(snapshot).searched_texts(Ranking(numbers, rows, np.zeros(len(rows), np.float32)))


def _check_names(snapshot: Snapshot, names: Sequence[str]) -> None:
    manifest = snapshot.manifest
    known = {*manifest.named_vectors, *([""] if manifest.dimensions else [])}
    for number, name in enumerate(names):
        if name not in known:
            raise InvalidRequestError.at(
                f"searched_vectors[{number}]", f"index {manifest.index!r} has no vectors {name!r:.80}"
            )
