"""Scans, from Python values to messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.filters import Where, build_filter
from scannery.client.request.named_vectors import checked_return
from scannery.client.request.queries import build_fields
from scannery.client.request.unicode import refuses_surrogates
from scannery.v1 import search_pb2 as pb

__all__ = ["build_scan", "checked_token"]

MAX_PAGE = 10_000
DEFAULT_PAGE = 5_000
"""A page of 1,000, the server's default, takes a fifth longer for each datapoint."""


@refuses_surrogates
def build_scan(
    index: str,
    *,
    where: Where | None = None,
    fields: Sequence[str] | None = None,
    order_by: str | None = None,
    vectors: bool = False,
    sample: int | None = None,
    seed: int = 0,
    page_size: int | None = None,
) -> pb.ScanRequest:
    """Return the request for the first page of a scan; the arguments are those of `Index.scan`.

    Raises:
        InvalidArgumentError: names the argument.

    """
    request = pb.ScanRequest(
        index=index,
        where=None if where is None else build_filter(where),
        return_fields=build_fields(fields),
        return_vector=checked_return(vectors),
        sample=0 if sample is None else _count(sample, "sample", 1, (1 << 64) - 1),
        seed=_count(seed, "seed", 0, (1 << 64) - 1),
    )
    request.page_size = _count(DEFAULT_PAGE if page_size is None else page_size, "page_size", 1, MAX_PAGE)
    if order_by is not None:
        request.order_by.CopyFrom(_order(order_by))
    return request


def checked_token(token: object) -> str | None:
    """Return the token of a scan if it is one, or None."""
    if token is not None and (not isinstance(token, str) or not token):
        raise InvalidArgumentError(f"token: must be the token of a scan, got {token!r:.80}", field="token")
    return token


def _order(order_by: Any) -> pb.OrderBy:
    if not isinstance(order_by, str) or not order_by.removeprefix("-"):
        raise InvalidArgumentError(
            f"order_by: must be the name of an attribute, after - for the greatest first, got {order_by!r:.80}",
            field="order_by",
        )
    return pb.OrderBy(field=order_by.removeprefix("-"), descending=order_by.startswith("-"))


def _count(value: Any, field: str, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
        raise InvalidArgumentError(f"{field}: must be {least} to {most}, got {value!r:.80}", field=field)
    return int(value)
