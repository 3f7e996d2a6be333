"""Random writes of callers who see a part of an index, and what becomes of its datapoints."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from scannery.v1 import index_pb2, search_pb2
from scannery.v1.types_pb2 import Datapoint, Value
from tests.cluster.questions import WORDS, any_filter
from tests.rights.principals import GROUPS, TENANTS, Caller, Table
from tests.rights.questions import INDEX, any_datapoint, any_name
from tests.rights.world import LeakError, Refusal, World

__all__ = ["write"]


def write(world: World, caller: Caller | None) -> str:
    """Write something as a caller, and check what becomes of it; return the method. None: a caller who sees all."""
    kind = world.chosen.choices([_upsert, _delete, _delete_where, _update_where], weights=[8, 3, 1, 1])[0]
    return kind(world, caller)


@dataclass
class _Batch:
    """An upsert, what becomes of it where it is allowed, and why it is not."""

    world: World
    caller: Caller | None
    seen: Table
    model: Table
    upserts: list[index_pb2.Upsert] = field(default_factory=list)
    whole: list[index_pb2.Upsert] = field(default_factory=list)
    """The same with the values that the index adds."""
    problems: set[str] = field(default_factory=set)
    """Codes of errors."""

    def add_change(self, name: str) -> None:
        """Change some fields of a datapoint."""
        upsert = _change(self.world.chosen, name)
        decisive = _decisive(self.world, self.caller)
        if any(path.removeprefix("attributes.") in decisive for path in upsert.update_mask.paths):
            self.problems.add("PERMISSION_DENIED")
        if name in self.seen:
            self.model[name] = _changed(self.seen[name], upsert)
        else:
            self.problems.add("NOT_FOUND")
        self.upserts.append(upsert)
        self.whole.append(upsert)

    def add_datapoint(self, name: str) -> None:
        """Write a datapoint."""
        chosen, caller = self.world.chosen, self.caller
        tenant = chosen.choice(TENANTS)
        if caller is not None and chosen.random() < 0.7:
            tenant = _likely(self.world, caller)
        point = any_datapoint(chosen, name, tenant if chosen.random() < 0.9 else None)
        if caller is not None and "tenant" in caller.fixed and chosen.random() < 0.5:
            point.attributes.pop("tenant", None)
        upsert, whole = index_pb2.Upsert(datapoint=point), index_pb2.Upsert(datapoint=point)
        if chosen.random() < 0.1:
            for each in (upsert, whole):
                each.condition.if_absent = True
            if name in self.seen:
                self.problems.add("FAILED_PRECONDITION")
        if caller is not None:
            for attribute, value in caller.fixed.items():
                if attribute not in point.attributes:
                    whole.datapoint.attributes[attribute].string_value = value
            hidden = name in self.world.model and name not in self.seen
            if hidden or not caller.sees(whole.datapoint, self.world.groups):
                self.problems.add("PERMISSION_DENIED")
        self.model[name] = whole.datapoint
        self.upserts.append(upsert)
        self.whole.append(whole)


def _upsert(world: World, caller: Caller | None) -> str:
    chosen = world.chosen
    seen = world.model if caller is None else world.seen(caller)
    batch = _Batch(world, caller, seen, dict(world.model))
    for name in dict.fromkeys(_names(world, seen) for _ in range(chosen.choice([1, 1, 2, 5]))):
        batch.add_change(name) if chosen.random() < 0.3 else batch.add_datapoint(name)
    request = index_pb2.UpsertRequest(index=INDEX, upserts=batch.upserts)
    if chosen.random() < 0.1:
        request.request_id = f"r{chosen.randrange(1 << 60)}"
    answer = _asked(world, caller, "Upsert", request, batch.problems)
    if not isinstance(answer, Refusal):
        if answer.written != len(batch.upserts):
            raise LeakError(f"{answer} of {request}")
        if request.request_id:
            _retried(world, caller, request, answer)
    same = index_pb2.UpsertRequest(index=INDEX, upserts=batch.whole)
    _same(world, caller, "Upsert", same, answer, batch.problems, batch.model, "written")
    return "Upsert"


def _retried(world: World, caller: Caller | None, request: Any, answer: Any) -> None:
    """Check that a retried request is answered again as it was."""
    again = world.wire.ask(caller, "Upsert", request)
    if again != answer:
        raise LeakError(f"{caller}: a retried request was answered {again}, not {answer}")


def _delete(world: World, caller: Caller | None) -> str:
    chosen = world.chosen
    seen = world.model if caller is None else world.seen(caller)
    names = list(dict.fromkeys(_names(world, seen) for _ in range(chosen.choice([1, 2, 5]))))
    documents = [f"t{chosen.randrange(world.rows // 3)}"] if chosen.random() < 0.3 else []
    request = index_pb2.DeleteRequest(index=INDEX, ids=names, document_ids=documents)
    answer = _asked(world, caller, "Delete", request, set())
    gone = {name for name, point in seen.items() if name in names or point.document_id in documents}
    if answer.deleted != len(gone):
        raise LeakError(f"{caller}: {request} deleted {answer.deleted}, not {len(gone)}")
    model = {name: point for name, point in world.model.items() if name not in gone}
    _same(world, caller, "Delete", request, answer, set(), model, "deleted")
    return "Delete"


def _delete_where(world: World, caller: Caller | None) -> str:
    where = any_filter(world.chosen)
    names = _matching(world, caller, where)
    request = index_pb2.DeleteWhereRequest(index=INDEX, where=where, dry_run=world.chosen.random() < 0.5)
    if len(names) > 30:
        request.dry_run = True
    answer = _asked(world, caller, "DeleteWhere", request, set())
    _check_number(caller, request, answer.deleted, answer.remaining, names)
    gone = set() if request.dry_run else names
    model = {name: point for name, point in world.model.items() if name not in gone}
    _same(world, caller, "DeleteWhere", request, answer, set(), model, "deleted")
    return "DeleteWhere"


def _update_where(world: World, caller: Caller | None) -> str:
    chosen, where = world.chosen, any_filter(world.chosen)
    names, values = _matching(world, caller, where), _values(chosen)
    request = index_pb2.UpdateWhereRequest(
        index=INDEX, where=where, attributes=values, dry_run=chosen.random() < 0.3
    )
    if len(names) > 30:
        request.dry_run = True
    problems = set()
    if values.keys() & _decisive(world, caller):
        problems.add("PERMISSION_DENIED")
    answer = _asked(world, caller, "UpdateWhere", request, problems)
    model = dict(world.model)
    if not isinstance(answer, Refusal):
        _check_number(caller, request, answer.updated, answer.remaining, names)
        for name in () if request.dry_run else names:
            model[name] = Datapoint()
            model[name].CopyFrom(world.model[name])
            for attribute, value in values.items():
                model[name].attributes[attribute].CopyFrom(value)
    _same(world, caller, "UpdateWhere", request, answer, problems, model, "updated")
    return "UpdateWhere"


def _check_number(caller: Caller | None, request: Any, rows: int, remaining: int, names: set[str]) -> None:
    expected = (len(names), len(names)) if request.dry_run else (len(names), 0)
    if (rows, remaining) != expected:
        raise LeakError(f"{caller}: {request} changed {rows}, {remaining} remain, expected {expected}")


def _asked(world: World, caller: Caller | None, method: str, request: Any, problems: set[str]) -> Any:
    """Return the answer to a write, which must be refused for one of some reasons, if there are any."""
    answer = world.wire.ask(caller, method, request)
    code = answer.code if isinstance(answer, Refusal) else None
    if (code not in problems) if problems else code:
        raise LeakError(
            f"{caller}: {method} {request} was answered {answer}, expected {problems or 'success'}"
        )
    if caller is not None:
        world.check_foreign(caller, request, answer)
    return answer


def _same(
    world: World,
    caller: Caller | None,
    method: str,
    request: Any,
    answer: Any,
    problems: set[str],
    model: Table,
    count: str,
) -> None:
    """Check that the index of a caller answers the same, and take what became of the datapoints."""
    if caller is not None and "PERMISSION_DENIED" not in problems:
        twins = world.twin_answer(caller, method, request)
        if isinstance(answer, Refusal):
            if twins != Refusal(answer.code, answer.message.replace(INDEX, f"{INDEX}-{caller.name}")):
                raise LeakError(f"{caller.name}: {method} {request}\n{answer}\n{twins}")
        elif isinstance(twins, Refusal) or getattr(twins, count) != getattr(answer, count):
            raise LeakError(f"{caller.name}: {method} {request}\n{answer}\n{twins}")
    if not isinstance(answer, Refusal):
        world.change(model, done=caller)


def _decisive(world: World, caller: Caller | None) -> frozenset[str]:
    """Return the attributes that a caller may not change; one that is in no group sees nothing that could change."""
    nothing = caller is None or (caller.name == GROUPS and not world.groups[GROUPS])
    return frozenset() if caller is None or nothing else caller.decisive


def _names(world: World, seen: Table) -> str:
    if seen and world.chosen.random() < 0.5:
        return world.chosen.choice(list(seen))
    return any_name(world.chosen, world.rows)


def _likely(world: World, caller: Caller) -> str:
    likely = {"equal": ["t0"], "several": ["t1", "t2"], "grouped": world.groups["grouped"], "nested": ["t4"]}
    return world.chosen.choice(likely.get(caller.name) or TENANTS)


def _change(chosen: random.Random, name: str) -> index_pb2.Upsert:
    point, paths = Datapoint(id=name), list[str]()
    if chosen.random() < 0.3:
        point.title = chosen.choice(WORDS)
        paths.append("title")
    for attribute, value in _values(chosen).items():
        point.attributes[attribute].CopyFrom(value)
        paths.append(f"attributes.{attribute}")
    upsert = index_pb2.Upsert(datapoint=point)
    upsert.update_mask.paths.extend(paths)
    return upsert


def _values(chosen: random.Random) -> dict[str, Value]:
    values = {
        "rating": Value(float_value=chosen.randrange(20) / 4),
        "show": Value(string_value=chosen.choice(["gotime", "jsparty"])),
        "year": Value(int_value=chosen.randrange(2000, 2020)),
        "tenant": Value(string_value=chosen.choice(TENANTS)),
    }
    names = chosen.choices(["rating", "show", "year", "tenant"], weights=[5, 5, 2, 1], k=2)
    return {name: values[name] for name in names}


def _changed(point: Datapoint, upsert: index_pb2.Upsert) -> Datapoint:
    changed = Datapoint()
    changed.CopyFrom(point)
    for path in upsert.update_mask.paths:
        if path == "title":
            changed.title = upsert.datapoint.title
        else:
            name = path.removeprefix("attributes.")
            changed.attributes[name].CopyFrom(upsert.datapoint.attributes[name])
    return changed


def _matching(world: World, caller: Caller | None, where: Any) -> set[str]:
    """Return the ids that a filter allows, of those that a caller sees."""
    request = search_pb2.ScanRequest(index=INDEX, where=where, page_size=1000, return_fields=["id"])
    ask = partial(world.wire.ask, caller) if caller is None else partial(world.twin_answer, caller)
    answer = ask("Scan", request)
    return {point.id for point in answer.datapoints}
