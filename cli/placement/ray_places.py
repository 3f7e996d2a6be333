"""Places on Ray's nodes: placement groups, whose names say for which rows of a team they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from scannery.cli.placement.slots import Slot, Team, placement_name, placement_of
from scannery.runtime.errors import ConfigError

__all__ = ["Places"]


class Places:
    """The placement groups of one cluster."""

    def __init__(self, ray: Any, cluster: str) -> None:
        """Keep what Ray is asked with.

        Args:
            ray: the module, connected.
            cluster: name of the cluster.

        """
        self._ray, self._cluster = ray, cluster

    def of(self, team: Team, rows: Sequence[int], cpus: float) -> list[tuple[Any, Sequence[int]]]:
        """Return placement groups with places for all rows of a team, each with its rows; what is absent is made."""
        found = [
            (self._ray.util.get_placement_group(table["name"]), reserved)
            for table, reserved in self._tables(team)
            if set(rows) & set(reserved)
        ]
        free = {row for _, reserved in found for row in reserved}
        if new := [row for row in rows if row not in free]:
            found.append((self._reserve(team, new, cpus), new))
        return found

    def check(self, cpus: Mapping[Team, float]) -> None:
        """Raise ConfigError if other processors are reserved for each process of a team, which may not run yet."""
        for team, wanted in cpus.items():
            for table, _ in self._tables(team):
                _check_cpus(team, table, wanted)

    def release(self, running: Iterable[Slot]) -> None:
        """Give back the places of which nothing runs any more."""
        kept = set(running)
        for table, rows in self._tables():
            placed = placement_of(self._cluster, table["name"])
            assert placed is not None
            if not any(Slot(placed[0], row) in kept for row in rows):
                with suppress(ValueError):  # another command was quicker
                    self._ray.util.remove_placement_group(self._ray.util.get_placement_group(table["name"]))

    def _reserve(self, team: Team, rows: Sequence[int], cpus: float) -> Any:
        """Make a placement group with a bundle for each row, if possible on nodes that the team does not use."""
        nodes = {
            node["NodeID"]
            for node in self._ray.nodes()
            # Others, as a head without processors, have no place however long one waits.
            if node["Alive"] and node["Resources"].get("CPU", 0) >= cpus
        }
        used = self._used_nodes(team)
        apart = len(nodes - used) >= len(rows)
        selector = {"ray.io/node-id": f"!in({','.join(sorted(used))})"}
        return self._ray.util.placement_group(
            [{"CPU": cpus}] * len(rows),
            strategy="STRICT_SPREAD" if apart else "SPREAD",
            name=placement_name(self._cluster, team, rows),
            lifetime="detached",
            bundle_label_selector=[selector] * len(rows) if apart and used else None,
        )

    def _used_nodes(self, team: Team) -> set[str]:
        """Return the nodes on which a team has places."""
        return {
            node for table, _ in self._tables(team) for node in table["bundles_to_node_id"].values() if node
        }

    def _tables(self, team: Team | None = None) -> list[tuple[dict[str, Any], Sequence[int]]]:
        """Return what Ray knows of the placement groups of a team, or of all, each with its rows."""
        found = []
        for table in self._ray.util.placement_group_table().values():
            placed = placement_of(self._cluster, table["name"])
            if table["state"] != "REMOVED" and placed is not None and team in (None, placed[0]):
                found.append((table, placed[1]))
        return found


def _check_cpus(team: Team, table: dict[str, Any], cpus: float) -> None:
    reserved = {bundle.get("CPU", 0.0) for bundle in table["bundles"].values()}
    if reserved != {cpus}:
        raise ConfigError(
            f"{team}: {max(reserved):g} processors are reserved for each process, wanted {cpus:g}: end the cluster "
            "first, or give another name",
            field="options",
        )
