"""Random writes of every kind: what one server and a cluster must answer alike."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from scannery.v1 import index_pb2 as pb
from scannery.v1.types_pb2 import Condition, Datapoint, Filter, Operator, Value, Vector
from tests.cluster.questions import DIMENSIONS, INDEX, ROWS, TOPIC_DIMENSIONS, WORDS

__all__ = ["AnyRequest", "RandomWrites"]

AnyRequest: TypeAlias = pb.UpsertRequest | pb.DeleteRequest | pb.DeleteWhereRequest | pb.UpdateWhereRequest

NEW = 60
"""Ids that no datapoint has at first."""
DOCUMENTS = 40
MASKS = [["title"], ["attributes.year"], ["attributes.show", "title"], ["payload_json"], ["vectors.topic"]]


class RandomWrites:
    """Requests, the same for the same seed. Some conditions hold, since the revisions are noted that writes made."""

    def __init__(self, seed: int) -> None:
        self._chosen = random.Random(seed)
        self._revisions: dict[str, int] = {}
        self._before: AnyRequest | None = None

    def next(self) -> tuple[str, AnyRequest]:
        """Return the name of a method and a request."""
        if self._before is not None and self._before.request_id and self._chosen.random() < 0.3:
            request, self._before = self._before, None  # as a caller does that got no answer
            if self._chosen.random() < 0.2:
                request.ids.append("another") if isinstance(request, pb.DeleteRequest) else None
        else:
            kinds: list[Callable[[], AnyRequest]] = [
                self._upsert, self._partial, self._delete, self._delete_where, self._update_where,
            ]  # fmt: skip
            request = self._chosen.choices(kinds, [6, 4, 3, 1, 1])[0]()
            if self._chosen.random() < 0.3:
                request.request_id = f"r{self._chosen.randrange(1 << 40)}"
            self._before = request
        return type(request).__name__.removesuffix("Request"), request

    def answered(self, request: AnyRequest, answer: Any) -> None:
        """Note the revisions that a write made."""
        if isinstance(request, pb.UpsertRequest) and isinstance(answer, pb.UpsertResponse):
            self._revisions |= {item.datapoint.id: answer.sequence for item in request.upserts}

    def _upsert(self) -> pb.UpsertRequest:
        names = dict.fromkeys(self._id() for _ in range(self._chosen.choice([1, 1, 4, 25])))
        request = pb.UpsertRequest(index=INDEX)
        for name in names:
            item = request.upserts.add(datapoint=self._point(name))
            self._set_condition(name, item)
        return request

    def _partial(self) -> pb.UpsertRequest:
        request = pb.UpsertRequest(index=INDEX)
        for name in dict.fromkeys(self._id() for _ in range(self._chosen.choice([1, 1, 5]))):
            item = request.upserts.add(datapoint=self._point(name))
            item.update_mask.paths.extend(self._chosen.choice(MASKS))
            for field in ("vector", "text", "document_id"):  # which no mask may name
                item.datapoint.ClearField(field)
            self._set_condition(name, item)
        if self._chosen.random() < 0.3:
            request.upserts.add(datapoint=self._point(self._id()))
        return request

    def _delete(self) -> pb.DeleteRequest:
        ids = list(dict.fromkeys(self._id() for _ in range(self._chosen.choice([1, 3, 10]))))
        request = pb.DeleteRequest(index=INDEX, ids=ids)
        if self._chosen.random() < 0.3:
            request.document_ids.append(f"doc{self._chosen.randrange(DOCUMENTS)}")
        elif self._chosen.random() < 0.4:
            request.conditions.extend(
                pb.WriteCondition(if_revision=self._revisions.get(name, 0)) for name in ids
            )
        return request

    def _delete_where(self) -> pb.DeleteWhereRequest:
        return pb.DeleteWhereRequest(
            index=INDEX, where=self._where(), limit=10_000, dry_run=self._chosen.random() < 0.3
        )

    def _update_where(self) -> pb.UpdateWhereRequest:
        return pb.UpdateWhereRequest(
            index=INDEX,
            where=self._where(),
            attributes={"year": Value(int_value=self._chosen.randrange(2000, 2020))},
            dry_run=self._chosen.random() < 0.3,
        )

    def _where(self) -> Filter:
        """Return a filter that allows few datapoints."""
        year = Value(int_value=self._chosen.randrange(1999, 2020))
        kinds = [
            Condition(field="year", operator=Operator.OPERATOR_EQ, values=[year]),
            Condition(field="id", operator=Operator.OPERATOR_PREFIX, values=[Value(string_value="d12")]),
            Condition(
                field="document_id", operator=Operator.OPERATOR_EQ, values=[Value(string_value="doc3")]
            ),
        ]
        return Filter(condition=self._chosen.choice(kinds))

    def _set_condition(self, name: str, item: pb.Upsert) -> None:
        kind = self._chosen.random()
        if kind < 0.3:
            item.condition.if_revision = self._revisions.get(name, 0)
        elif kind < 0.33:
            item.condition.if_revision = 1
        elif kind < 0.36:
            item.condition.if_absent = True

    def _id(self) -> str:
        # Few of the ids are used, so that writes meet.
        return f"d{self._chosen.choice([self._chosen.randrange(60), ROWS + self._chosen.randrange(NEW)])}"

    def _point(self, name: str) -> Datapoint:
        """Return a datapoint, often of another document, and so in another shard, than the one before it."""
        point = Datapoint(
            id=name,
            document_id=f"doc{self._chosen.randrange(DOCUMENTS)}",
            text=" ".join(self._chosen.choices(WORDS, k=self._chosen.randrange(1, 9))),
            title=self._chosen.choice(WORDS),
            payload_json=f'{{"n":{self._chosen.randrange(9)}}}',
            vector=self._vector(DIMENSIONS),
        )
        point.attributes["show"].string_value = self._chosen.choice(["gotime", "jsparty"])
        point.attributes["year"].int_value = self._chosen.randrange(2000, 2020)
        point.vectors["topic"].CopyFrom(self._vector(TOPIC_DIMENSIONS))
        return point

    def _vector(self, dimensions: int) -> Vector:
        vector_D = np.random.default_rng(self._chosen.randrange(1 << 30)).standard_normal(dimensions)
        return Vector(packed=vector_D.astype("<f4").tobytes())
