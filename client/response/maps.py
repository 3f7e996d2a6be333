"""Maps of datapoints, as calls return them.

Shapes: N datapoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scannery.client.response.decoding import parse_value
from scannery.client.response.results import AttributeValue
from scannery.v1 import search_pb2

__all__ = ["MapPage", "Projection", "joined_map", "parse_map"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A map of datapoints in two dimensions."""

    ids: list[str]
    """Ids of the datapoints that have a vector."""
    positions: np.ndarray
    """Positions from left to right and from top to bottom, uint16 (N, 2); both axes are as long, 0 to 65535."""
    attributes: dict[str, list[AttributeValue | None]]
    """Values of the datapoints by attribute; None: a datapoint has none."""
    total: int
    """Datapoints that were chosen, with those that have no vector."""
    version: int
    """Version of the index."""
    sequence: int
    """Mutations up to this sequence were visible."""
    explained: tuple[float, float]
    """Share of the variance of the vectors along each axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPage:
    """A page of a map."""

    part: Projection
    """The datapoints of the page."""
    next_token: str
    """Token of the next page; empty after the last one."""
    index_name: str
    """Index that was read."""


def parse_map(response: search_pb2.ProjectResponse) -> MapPage:
    """Return a page of a map."""
    positions = [np.frombuffer(axis, "<u2").astype(np.uint16) for axis in (response.x, response.y)]
    first, second = response.explained
    part = Projection(
        ids=list(response.ids),
        positions=np.stack(positions, axis=1),
        attributes={column.name: _values(column) for column in response.attributes},
        total=response.total,
        version=response.version,
        sequence=response.sequence,
        explained=(first, second),
    )
    return MapPage(part=part, next_token=response.next_page_token, index_name=response.index)


def _values(column: search_pb2.ProjectedColumn) -> list[AttributeValue | None]:
    values = [None, *map(parse_value, column.values)]
    return [values[code] for code in np.frombuffer(column.codes, "<u2").tolist()]


def joined_map(parts: Sequence[Projection]) -> Projection:
    """Return the pages of a map, at least one, as one."""
    last = parts[-1]
    return Projection(
        ids=[identifier for part in parts for identifier in part.ids],
        positions=np.concatenate([part.positions for part in parts]),
        attributes={
            name: [value for part in parts for value in part.attributes[name]] for name in last.attributes
        },
        total=last.total,
        version=last.version,
        sequence=last.sequence,
        explained=last.explained,
    )
