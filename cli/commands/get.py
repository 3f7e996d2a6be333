"""`scannery get`: print datapoints by id."""

from __future__ import annotations

from typing import Annotated

import typer

from scannery.cli.options import (
    FieldsOption,
    IndexOption,
    JsonOption,
    StoreOption,
    TargetOption,
    TimeoutOption,
    connected,
)
from scannery.cli.output import point_json, print_json, print_points
from scannery.client import NotFoundError

__all__ = ["get"]


def get(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of datapoints.")],
    index: IndexOption,
    target: TargetOption = None,
    store: StoreOption = None,
    vectors: Annotated[bool, typer.Option("--vectors", help="With --json: also the vectors.")] = False,
    fields: FieldsOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Print the datapoints that exist; ends with an error if some do not."""
    with connected(target, store, timeout_s=timeout) as client:
        points = client.index(index).get(ids, vectors=vectors and as_json, fields=fields or None)
    points_present = [point for point in points if point is not None]
    if as_json:
        print_json([point_json(point) for point in points_present])
    else:
        print_points(points_present)
    missing = [identifier for identifier, point in zip(ids, points, strict=True) if point is None]
    if missing:
        raise NotFoundError(f"index {index!r} has no datapoint {', '.join(map(repr, missing))}")
