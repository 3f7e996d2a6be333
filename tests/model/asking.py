"""Operations that ask an index about itself, and change what a filter finds."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from scannery.client.response.results import Datapoint
from tests.model.checks import compare_point, random_filter
from tests.model.errors import check
from tests.model.operations import Op, operation
from tests.model.oracle import matches
from tests.model.rows import ATTRIBUTES, DYNAMIC, Row
from tests.model.world import Entry, Rows
from tests.model.writing import acknowledge, random_change, state_of

if TYPE_CHECKING:
    from tests.model.machine import Machine

__all__: list[str] = []

_COUNTED = ["document_id", *(name for name, kind in ATTRIBUTES.items() if kind != "geo")]
"""Fields that have facets."""


def _where(machine: Machine, rng: random.Random) -> dict[str, Any]:
    return random_filter(rng, shape=machine.shape)


def _matching(rows: Rows, where: dict[str, Any] | None) -> list[Row]:
    return [row for row in rows.values() if where is None or matches(row, where)]


@operation(3, inner=1)
def counted(machine: Machine, rng: random.Random, op: Op) -> None:
    """Count what a filter allows."""
    actor, where = machine.some_actor(rng), rng.choice([None, _where(machine, rng)])
    rows = machine.checker.readable(actor)
    found, wanted = actor.index.count(where=where), len(_matching(rows, where))
    check(found == wanted, f"{actor.name} counts {found} of {wanted} with {where!r}")


@operation(3, inner=1)
def faceted(machine: Machine, rng: random.Random, op: Op) -> None:
    """Count the values of an attribute."""
    actor, where = machine.some_actor(rng), rng.choice([None, _where(machine, rng)])
    name = rng.choice([*_COUNTED, *(DYNAMIC if machine.shape.dynamic else ())])
    rows = _matching(machine.checker.readable(actor), where)
    wanted, missing = _facets(rows, name)
    facets = actor.index.facets(name, where=where, limit=10_000)
    found = {_exact(facet.value): facet.count for facet in facets}
    what = f"facets of {name} with {where!r}"
    check(found == wanted, f"{what} are {found}, not {wanted}")
    check(facets.missing == missing, f"{what} miss {facets.missing}, not {missing}")
    check(facets.distinct == len(wanted), f"{what} have {facets.distinct} values, not {len(wanted)}")
    counts = [facet.count for facet in facets]
    check(counts == sorted(counts, reverse=True), f"{what} are not in order")


def _facets(rows: Iterable[Row], name: str) -> tuple[dict[str, int], int]:
    """Return the number of rows by value, as exact text, and of those without a value."""
    counts, missing = Counter[str](), 0
    for row in rows:
        value = row.document_id if name == "document_id" else row.all_attributes.get(name)
        missing += value is None
        nested = isinstance(value, dict) or (
            isinstance(value, list) and any(isinstance(item, (list, dict)) for item in value)
        )
        items = value if isinstance(value, list) else [value]
        if not nested:
            counts.update({_exact(item) for item in items if item is not None})
    return dict(counts), missing


def _exact(value: Any) -> str:
    return json.dumps(value, default=str)


@operation(2, inner=1)
def scanned(machine: Machine, rng: random.Random, op: Op) -> None:
    """Read all that a filter allows, perhaps with a write in between, which the scan must not see."""
    actor, where = machine.some_actor(rng), rng.choice([None, _where(machine, rng)])
    dynamic = (DYNAMIC[0], f"-{DYNAMIC[1]}") if machine.shape.dynamic else ()
    order = rng.choice([None, None, "id", "year", "-show", *dynamic])
    rows = {row.id: row for row in _matching(machine.checker.readable(actor), where)}
    scan = actor.index.scan(where=where, order_by=order, vectors=True, page_size=rng.choice([1, 7, 50, 1000]))
    points: list[Datapoint] = []
    for point in scan:
        if len(points) == 3 and rng.random() < 0.3:
            machine.do({"do": "upsert", "seed": op["seed"], "nested": True})
        points.append(point)
    names = [point.id for point in points]
    check(len(set(names)) == len(names), f"a scan with {where!r} repeats rows")
    check(set(names) == set(rows), f"a scan with {where!r} has {len(names)} of {len(rows)} rows")
    for point in points:
        compare_point(rows[point.id], point)
    if order is not None:
        _check_order([rows[name] for name in names], order)


def _check_order(rows: list[Row], order: str) -> None:
    name, falling = order.removeprefix("-"), order.startswith("-")
    by_id = sorted(rows, key=lambda row: row.id)
    values = {row.id: row.id if name == "id" else row.all_attributes.get(name) for row in rows}
    missing = [row for row in by_id if values[row.id] is None]
    nested = [row for row in by_id if isinstance(values[row.id], (list, dict))]
    others = [row for row in by_id if not isinstance(values[row.id], (list, dict, type(None)))]
    ordered = sorted(others, key=lambda row: _order_key(values[row.id]), reverse=falling)
    wanted = [row.id for row in [*ordered, *nested, *missing]]
    check([row.id for row in rows] == wanted, f"a scan by {order} is not in the order {wanted}")


def _order_key(value: Any) -> tuple[int, Any]:
    """Return what orders values of any types: numbers, strings, booleans."""
    return (2 if isinstance(value, bool) else 1 if isinstance(value, str) else 0), value


@operation(1.5, inner=1)
def deleted_where(machine: Machine, rng: random.Random, op: Op) -> None:
    """Delete what a filter allows, of few rows."""
    actor, where = machine.some_actor(rng), _few(machine, rng)

    def write() -> tuple[Rows, Any]:
        return state_of(machine, actor), actor.index.delete(where=where)

    rows, done = machine.moved(actor, write)
    names = tuple(row.id for row in _matching(rows, where))
    check(done.deleted == len(names), f"{actor.name} deleted {done.deleted} of {len(names)} with {where!r}")
    if names:
        acknowledge(machine, actor, done, Entry((), names))


@operation(1.5, inner=1)
def updated_where(machine: Machine, rng: random.Random, op: Op) -> None:
    """Change what a filter allows, of few rows."""
    actor, where = machine.some_actor(rng), _few(machine, rng)
    change = random_change(rng, machine.shape.dynamic).get("attributes") or {"year": 2031}

    def write() -> tuple[Rows, Any]:
        return state_of(machine, actor), actor.index.update(where=where, attributes=change)

    rows, done = machine.moved(actor, write)
    revision = machine.world.position + 1
    changed = tuple(row.changed({"attributes": change}, revision) for row in _matching(rows, where))
    check(done.written == len(changed), f"{actor.name} changed {done.written} of {len(changed)}, {where!r}")
    if changed:
        acknowledge(machine, actor, done, Entry(changed))


def _few(machine: Machine, rng: random.Random) -> dict[str, Any]:
    """Return a filter that leaves enough for other operations."""
    names = [f"id{rng.randrange(machine.ids)}" for _ in range(rng.choice([1, 5, 30]))]
    return {"$and": [{"id": {"$in": names}}, _where(machine, rng)]}


@operation(0.3)
def dry_run(machine: Machine, rng: random.Random, op: Op) -> None:
    """Ask what a deletion would do: nothing is done."""
    actor, where = machine.some_actor(rng), _few(machine, rng)
    rows = machine.checker.readable(actor)
    done = actor.index.delete(where=where, dry_run=True)
    counts = [len(_matching(state, where)) for state in (rows, state_of(machine, actor))]
    check(done.deleted in counts, f"a dry run says {done}, not {counts}")
    machine.checker.everything(actor)
