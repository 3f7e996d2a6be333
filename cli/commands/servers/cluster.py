"""`scannery cluster`: show the leaves of a cluster as a root sees them; start and end clusters on Ray."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn

import typer
from rich.markup import escape
from rich.table import Table

from scannery.cli.declared_options import configured, with_options
from scannery.cli.errors import NO
from scannery.cli.lazy_commands import LazyCommand, LazyGroup
from scannery.cli.options import ClusterNameOption, JsonOption, RayOption
from scannery.cli.output import console, print_json
from scannery.serving.config import LeavesConfig

if TYPE_CHECKING:
    from scannery.serving.leaves.groups import LeafGroups, LeafInfo
    from scannery.serving.leaves.leaf import IndexState

__all__ = ["cluster_app", "disagreements", "indexes_of", "unopened"]

_RAY = "scannery.bridges.ray.commands"


class _Commands(LazyGroup):
    """The commands of the bridge to Ray, which is imported when one of them runs."""

    TABLE: ClassVar[Mapping[str, LazyCommand]] = {
        "up": LazyCommand(
            f"{_RAY}:up",
            "Start a cluster on Ray, or give a running one other numbers of groups, rows and roots, while it answers.",
        ),
        "autoscale": LazyCommand(
            f"{_RAY}:autoscale",
            "Add and remove rows of a cluster on Ray with its load, until SIGTERM or Ctrl-C.",
        ),
        "down": LazyCommand(
            f"{_RAY}:down", "End the processes of a cluster on Ray when their requests have ended."
        ),
    }


cluster_app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    help="Show the leaves of a cluster; start and end clusters on Ray.",
)

_POLL_S = 0.02


@dataclass(frozen=True, kw_only=True)
class IndexStatus:
    """An index on all leaves that are ready."""

    name: str
    versions: Mapping[int, Sequence[int]]
    """Those that leaves of each group have open, ascending, by number of the group."""
    rows: int
    """Datapoints of one leaf of each group, of the newest version that it has."""
    shards: int
    """Shards of the same leaves."""
    sequence: int
    """The newest mutation that a leaf has read."""
    lag: int
    """Mutations that the leaf furthest behind has not read."""


@cluster_app.command(no_args_is_help=True)
@with_options(
    "leaves ray name leaves_key leaves_ca leaves_cert leaves_cert_key timeout as_json", LeavesConfig
)
def status(
    leaves: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="Leaves: `host:port,host:port`, `dns:///name:port`, or `file:///path` with one a line.",
        ),
    ] = "",
    ray: RayOption = "",
    name: ClusterNameOption = "default",
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time in which leaves have to answer.", min=0)
    ] = 3.0,
    as_json: JsonOption = False,
    **settings: Any,
) -> None:
    """Show groups, leaves, indexes and load; ends with 1 if a group has no leaf that is ready."""
    from scannery.serving.leaves.groups import LeafGroups

    if bool(leaves) == bool(ray):
        raise typer.BadParameter("give either --leaves or --ray")
    processes = import_module(_RAY).running(ray, name) if ray else None
    if processes is not None and not (leaves := processes.target):
        _tell_unserved(processes, as_json=as_json)
    groups = LeafGroups(configured(LeavesConfig, settings, target=leaves))
    try:
        _wait(groups, timeout)
        ready, problems, leaves_seen = groups.ready, list(groups.problems), groups.statuses()
        count = _number_of(groups)
    finally:
        groups.close()
    indexes = indexes_of(leaf for leaf in leaves_seen if leaf.groups == count)
    problems += [f"group {group}/{count} has no leaf that is ready" for group in _missing(leaves_seen, count)]
    problems += disagreements(indexes, count)
    problems += unopened(leaf for leaf in leaves_seen if leaf.groups == count)
    if as_json:
        report = _as_json(leaves_seen, indexes, problems, ready=ready, groups=count)
        print_json(report | ({"processes": processes.as_json()} if processes is not None else {}))
    else:
        if processes is not None:
            console().print(processes.table())
        _print(leaves_seen, indexes, problems)
    if not ready:
        raise typer.Exit(NO)


def indexes_of(leaves: Iterable[LeafInfo]) -> list[IndexStatus]:
    """Return the indexes that leaves have, by name; leaves that are not ready are left out."""
    by_name: defaultdict[str, defaultdict[int, list[IndexState]]] = defaultdict(lambda: defaultdict(list))
    for leaf in leaves:
        for name, state in leaf.indexes:
            if leaf.ready and leaf.group is not None:
                by_name[name][leaf.group].append(state)
    return [_index(name, by_group) for name, by_group in sorted(by_name.items())]


def disagreements(indexes: Iterable[IndexStatus], groups: int) -> list[str]:
    """Return what differs between the leaves that are ready; versions do so for a moment after each new one."""
    problems = []
    for index in indexes:
        lacking = [str(group) for group in range(groups) if group not in index.versions]
        if lacking:
            problems.append(f"index {index.name}: no leaf of group {', '.join(lacking)} has it open")
        if len({version for versions in index.versions.values() for version in versions}) > 1:
            problems.append(f"index {index.name}: leaves have different versions: {_versions(index)}")
    return problems


def unopened(leaves: Iterable[LeafInfo]) -> list[str]:
    """Return which leaves that are ready do not have an index that others of their group have."""
    ready = [leaf for leaf in leaves if leaf.ready]
    opened = {leaf.address: {name for name, _ in leaf.indexes} for leaf in ready}
    of_group: defaultdict[int | None, set[str]] = defaultdict(set)
    for leaf in ready:
        of_group[leaf.group] |= opened[leaf.address]
    return [
        f"leaf {leaf.address}: index {name} is not open, and others of its group have it; its log says why"
        for leaf in ready
        for name in sorted(of_group[leaf.group] - opened[leaf.address])
    ]


def _index(name: str, by_group: Mapping[int, Sequence[IndexState]]) -> IndexStatus:
    newest = [max(states, key=lambda state: state.version) for states in by_group.values()]
    sequences = [state.sequence for states in by_group.values() for state in states]
    return IndexStatus(
        name=name,
        versions={group: sorted({each.version for each in by_group[group]}) for group in sorted(by_group)},
        rows=sum(state.rows for state in newest),
        shards=sum(state.shards for state in newest),
        sequence=max(sequences),
        lag=max(sequences) - min(sequences),
    )


def _tell_unserved(processes: Any, *, as_json: bool) -> NoReturn:
    """Show processes of which no leaf serves, and end."""
    problem = "no leaf of this cluster serves"
    if as_json:
        report = _as_json([], [], [problem], ready=False, groups=0)
        print_json(report | {"processes": processes.as_json()})
    else:
        console().print(processes.table())
        console().print(problem)
    raise typer.Exit(NO)


def _wait(groups: LeafGroups, timeout_s: float) -> None:
    """Connect, and wait until each leaf has answered or failed."""
    end_s = time.monotonic() + timeout_s
    groups.start(timeout_s)
    while time.monotonic() < end_s:
        statuses = groups.statuses()
        if statuses and all(leaf.ready or leaf.problem for leaf in statuses):
            groups.catch_up(timeout_s)
            return
        time.sleep(_POLL_S)


def _number_of(groups: LeafGroups) -> int:
    """Return the number of groups; 0: no leaf has said it."""
    from scannery.runtime.errors import UnavailableError

    try:
        return groups.groups
    except UnavailableError:
        return 0


def _missing(leaves: Iterable[LeafInfo], groups: int) -> list[int]:
    there = {leaf.group for leaf in leaves if leaf.ready and leaf.groups == groups}
    return [group for group in range(groups) if group not in there]


def _print(leaves: Sequence[LeafInfo], indexes: Sequence[IndexStatus], problems: Sequence[str]) -> None:
    out = console()
    table = Table("group", "leaf", "ready", "in flight", "limit", "indexes", "datapoints")
    for leaf in leaves:
        table.add_row(
            "–" if leaf.group is None else f"{leaf.group}/{leaf.groups}",
            leaf.address,
            "yes" if leaf.ready else "no",
            f"{leaf.in_flight}",
            f"{leaf.in_flight_limit}",
            f"{len(leaf.indexes)}",
            f"{sum(state.rows for _, state in leaf.indexes):,}",
        )
    out.print(table)
    if indexes:
        table = Table("index", "version", "datapoints", "shards", "sequence", "lag")
        for index in indexes:
            table.add_row(
                escape(index.name),
                _versions(index),
                f"{index.rows:,}",
                f"{index.shards}",
                f"{index.sequence}",
                f"{index.lag}",
            )
        out.print(table)
    for problem in problems:
        out.print(problem, markup=False, highlight=False)


def _versions(index: IndexStatus) -> str:
    """Return the version of all groups, or those of each if they differ."""
    texts = {group: ", ".join(map(str, versions)) for group, versions in index.versions.items()}
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"group {group}: {text}" for group, text in texts.items())


def _as_json(
    leaves: Sequence[LeafInfo],
    indexes: Sequence[IndexStatus],
    problems: Sequence[str],
    *,
    ready: bool,
    groups: int,
) -> dict[str, Any]:
    return {
        "ready": ready,
        "groups": groups,
        "leaves": [
            {
                "address": leaf.address,
                "group": leaf.group,
                "groups": leaf.groups,
                "ready": leaf.ready,
                "in_flight": leaf.in_flight,
                "in_flight_limit": leaf.in_flight_limit,
                "indexes": [
                    {
                        "name": name,
                        "version": each.version,
                        "rows": each.rows,
                        "shards": each.shards,
                        "sequence": each.sequence,
                        "problem": each.problem,
                    }
                    for name, each in leaf.indexes
                ],
            }
            for leaf in leaves
        ],
        "indexes": [
            {
                "name": index.name,
                "versions": {str(group): versions for group, versions in index.versions.items()},
                "rows": index.rows,
                "shards": index.shards,
                "sequence": index.sequence,
                "lag": index.lag,
            }
            for index in indexes
        ],
        "problems": problems,
    }
