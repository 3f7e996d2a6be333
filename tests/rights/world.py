"""An index of several tenants beside a plain model of it, and beside an index for each caller of what it sees.

The model says who sees which datapoints. The index of a caller has these alone, and its answers must be those that the
caller gets from the index of all.
"""

from __future__ import annotations

import difflib
import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from scannery.runtime.errors import ServingError
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.security.access import parse_access
from scannery.serving.security.groups import GroupTable
from scannery.serving.security.principal import CURRENT, Principal
from scannery.serving.services.search import Service
from scannery.serving.status import status_for_callers
from scannery.v1 import index_pb2, search_pb2
from scannery.v1.types_pb2 import Datapoint
from tests.cluster.questions import DIMENSIONS
from tests.rights.principals import CALLERS, GROUPS, TENANTS, Caller, Table, marker
from tests.rights.questions import INDEX, spec

__all__ = ["Engine", "Refusal", "Wire", "World"]

TIMEOUT_S = 60


@dataclass(frozen=True)
class Refusal:
    """An error, as a caller gets it."""

    code: str
    message: str


class Wire(Protocol):
    """A way to an index, as some caller."""

    def ask(self, caller: Caller | None, method: str, request: Any) -> Any:
        """Return the answer or the Refusal; None: a caller who sees all."""

    def set_groups(self, groups: Mapping[str, list[str]]) -> None:
        """Change the groups of callers; return when that is seen."""


_INDEX_METHODS = {"Upsert", "Delete", "DeleteWhere", "UpdateWhere", "GetIndex", "ListIndexes", "CreateIndex"}


def path_of(method: str) -> str:
    """Return the path of a method."""
    return f"/scannery.v1.{'Index' if method in _INDEX_METHODS else 'Search'}Service/{method}"


class Engine:
    """The handlers, called in this process."""

    def __init__(self, store: Path) -> None:
        self.service = Service(open_embedded_catalog(store, create=True))
        self._principals: dict[str, Principal] = {}
        for caller in CALLERS:
            self.add(caller, INDEX)
        self._groups = GroupTable({})

    def add(self, caller: Caller, index: str) -> None:
        """Take calls of a caller, whose entry is for the indexes that a pattern names."""
        access = parse_access([{"index": index, **caller.access}])
        self._principals[caller.name] = Principal(caller.name, frozenset({"read", "write"}), access=access)

    def set_groups(self, groups: Mapping[str, list[str]]) -> None:
        """As `Wire.set_groups`."""
        self._groups = GroupTable({name: frozenset(each) for name, each in groups.items()})

    def ask(self, caller: Caller | None, method: str, request: Any) -> Any:
        """As `Wire.ask`."""
        principal = None if caller is None else self._groups.filled(self._principals[caller.name])
        token = CURRENT.set(principal)
        try:
            return self.service.call(path_of(method), request, Deadline.after(TIMEOUT_S))
        except ServingError as error:
            status, _, detail = status_for_callers(error)
            return Refusal(status.name, detail.message)
        finally:
            CURRENT.reset(token)

    def close(self) -> None:
        """Close the indexes."""
        self.service.close()


class LeakError(AssertionError):
    """What a caller got is not what it may see, or not all of it."""


class World:
    """The index, its model and the indexes of callers."""

    def __init__(self, wire: Wire, twins: Engine, chosen: random.Random, rows: int) -> None:
        """Make the indexes of callers for what the index has; `rows`: limit of ids."""
        self.wire, self.twins, self.chosen, self.rows = wire, twins, chosen, rows
        self.model: Table = {}
        self.groups: dict[str, list[str]] = {GROUPS: []}
        self._late: dict[str, set[str]] = {caller.name: set() for caller in CALLERS}
        """Datapoints that the index of a caller does not have yet as they are."""
        self._seen: dict[str, Table] = {}
        self._foreign: dict[str, list[bytes]] = {}
        self._look()
        for caller in CALLERS:
            twin = spec(twin_of(caller), attributes=caller.fields)
            created = twins.ask(
                None,
                "CreateIndex",
                index_pb2.CreateIndexRequest(spec_json=json.dumps(twin), dimensions=DIMENSIONS),
            )
            assert not isinstance(created, Refusal), created
        wire.set_groups(self.groups)

    def seen(self, caller: Caller) -> Table:
        """Return what a caller sees."""
        return self._seen[caller.name]

    def _look(self) -> None:
        """Note what callers see now, and which markers none of that has."""
        for caller in CALLERS:
            seen = {name: point for name, point in self.model.items() if caller.sees(point, self.groups)}
            self._seen[caller.name] = seen
            texts = b"".join(point.SerializeToString() for point in seen.values())
            marks = (marker(tenant).encode() for tenant in (*TENANTS, "none"))
            self._foreign[caller.name] = [mark for mark in marks if mark not in texts]

    def change(self, model: Table, *, done: Caller | None = None) -> None:
        """Take another state of the index; `done`: the caller whose index has it already."""
        before, self.model = self.model, model
        self._look()
        changed = {
            name for name in before.keys() | model.keys()
            if before.get(name) is not model.get(name)
        }  # fmt: skip
        for caller in CALLERS:
            if caller is not done:
                self._late[caller.name] |= changed

    def change_groups(self) -> None:
        """Give a caller other groups."""
        caller = next(each for each in CALLERS if each.name == GROUPS)
        before = self.seen(caller)
        self.groups = {GROUPS: self.chosen.sample(TENANTS, self.chosen.randrange(4))}
        self.wire.set_groups(self.groups)
        self._look()
        self._late[caller.name] |= before.keys() ^ self.seen(caller).keys()

    def _catch_up(self, caller: Caller) -> None:
        gone, points = [], []
        names, self._late[caller.name] = self._late[caller.name], set()
        for name in sorted(names):
            point = self.model.get(name)
            if point is None or not caller.sees(point, self.groups):
                gone.append(name)
            else:
                points.append(_readable(point, caller))
        index = twin_of(caller)
        if gone:
            self._must("Delete", index_pb2.DeleteRequest(index=index, ids=gone))
        if points:
            upserts = [index_pb2.Upsert(datapoint=point) for point in points]
            self._must("Upsert", index_pb2.UpsertRequest(index=index, upserts=upserts))

    def _must(self, method: str, request: Any) -> None:
        answer = self.twins.ask(None, method, request)
        assert not isinstance(answer, Refusal), answer

    def twin_answer(self, caller: Caller, method: str, request: Any) -> Any:
        """Return what the index of a caller answers."""
        self._catch_up(caller)
        same = type(request)()
        same.CopyFrom(request)
        same.index = twin_of(caller)
        return self.twins.ask(None, method, same)

    def check(self, caller: Caller, method: str, request: Any, answer: Any) -> None:
        """Raise LeakError if an answer has anything that a caller does not see, or is not that of its index."""
        self.check_foreign(caller, request, answer)
        expected = self.twin_answer(caller, method, request)
        mine, twins = comparable(answer, INDEX), comparable(expected, twin_of(caller))
        if isinstance(answer, search_pb2.ScanResponse) and not request.HasField("order_by"):
            mine, twins = (_unordered(each, request) for each in (mine, twins))
        if mine != twins and not (method == "Project" and _same_maps(mine, twins, request)):
            got, due = (str(each).splitlines() for each in (mine, twins))
            lines = difflib.unified_diff(got, due, "got", "its index", lineterm="", n=1)
            difference = "\n".join(lines)
            raise LeakError(f"{caller.name}: {method} {request}\n{difference}")

    def check_foreign(self, caller: Caller, request: Any, answer: Any) -> None:
        """Raise LeakError if an answer has a datapoint or a marker that is not of what a caller sees."""
        seen = self.seen(caller)
        for point in datapoints_of(answer):
            if point.id not in seen:
                raise LeakError(f"{caller.name}: {request} returned {point.id}")
        if isinstance(answer, search_pb2.ProjectResponse) and not seen.keys() >= {*answer.ids}:
            raise LeakError(f"{caller.name}: {request} returned {set(answer.ids) - seen.keys()}")
        data = answer.message.encode() if isinstance(answer, Refusal) else answer.SerializeToString()
        foreign = {mark for mark in self._foreign[caller.name] if mark in data}
        if foreign and any(mark not in request.SerializeToString() for mark in foreign):
            raise LeakError(f"{caller.name}: {request} returned {foreign}: {answer}")


def twin_of(caller: Caller) -> str:
    """Return the name of the index of a caller."""
    return f"{INDEX}-{caller.name}"


def _readable(point: Datapoint, caller: Caller) -> Datapoint:
    if caller.fields is None:
        return point
    part = Datapoint()
    part.CopyFrom(point)
    for name in [name for name in part.attributes if name not in caller.fields]:
        del part.attributes[name]
    values = json.loads(point.dynamic_json or "{}")
    part.ClearField("dynamic_json")
    if kept := {name: value for name, value in values.items() if name in caller.fields}:
        part.dynamic_json = json.dumps(kept)
    if "payload" not in caller.fields:
        part.ClearField("payload_json")
    return part


def datapoints_of(answer: Any) -> Iterator[Datapoint]:
    """Yield the datapoints of an answer."""
    for hit in getattr(answer, "hits", ()):
        yield hit.datapoint
    for result in getattr(answer, "results", ()):
        yield from datapoints_of(result)
    yield from getattr(answer, "datapoints", ())


_DIFFERENT = (
    "version", "sequence", "until_sequence", "index", "next_page_token", "page_token", "created_at", "request_id",
)  # fmt: skip
_PLANS = (
    "segments",
    "stages",
    "expected_recall",
    "recall_steps",
    "effective_target_recall",
    "warnings",
    "strangeness",
)


def comparable(answer: Any, index: str) -> Any:
    """Return an answer without what is of the index, not of its datapoints."""
    if isinstance(answer, Refusal):
        return Refusal(answer.code, answer.message.replace(index, INDEX))
    if isinstance(answer, index_pb2.GetIndexResponse):
        return _description(answer.index, index)
    found = type(answer)()
    found.CopyFrom(answer)
    fields = found.DESCRIPTOR.fields_by_name
    for name in _DIFFERENT:
        if name in fields:
            found.ClearField(name)
    for holder in (found, *getattr(found, "results", ())):
        for field in ("explanation", "search"):
            if field in holder.DESCRIPTOR.fields_by_name and holder.HasField(field):
                for name in _PLANS:
                    getattr(holder, field).ClearField(name)
    for point in datapoints_of(found):
        point.ClearField("revision")
    if isinstance(found, search_pb2.ExplainResponse):
        found.hit.datapoint.ClearField("revision")
    return found


def _description(info: index_pb2.IndexInfo, index: str) -> Any:
    return (
        info.rows, info.dimensions, dict(info.attributes), info.dynamic, info.lexical, info.size_bytes * 0,
        {name: (each.rows, each.dimensions) for name, each in info.named_vectors.items()},
        json.loads(info.spec_json.replace(index, INDEX)),
    )  # fmt: skip


def _same_maps(mine: Any, twins: Any, request: Any) -> bool:
    """Return whether two maps have the same datapoints; sums of positions are rounded otherwise."""
    if isinstance(mine, Refusal) or isinstance(twins, Refusal):
        return False
    # Which datapoints are of a sample, and so how many of them have the vector, is not said.
    pairs = [(each.total, [] if request.limit else sorted(each.ids)) for each in (mine, twins)]
    return pairs[0] == pairs[1] and np.allclose(mine.explained, twins.explained)


def _unordered(page: Any, request: Any) -> Any:
    """Return a page whose order is not said; which datapoints are of a sample, neither."""
    if isinstance(page, Refusal):
        return page
    if request.sample:
        return page.total, len(page.datapoints)
    page.datapoints.sort(key=lambda point: point.id)
    return page
