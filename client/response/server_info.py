"""Descriptions of callers and of what a server measures of itself, as calls return them."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scannery.v1 import index_pb2

__all__ = ["CallerInfo", "Metric", "MetricSample", "parse_caller", "parse_metrics"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerInfo:
    """Who the caller is to a server, what it may do, and what answers it."""

    name: str
    """`NAME/ID` of an API key, `sub/SUBJECT` of a token, `anonymous` without either."""
    scopes: tuple[str, ...]
    """Scopes among `read`, `write` and `admin`; none includes another."""
    indexes: tuple[str, ...] | None
    """The only indexes that it sees, whether they exist or not; None: all."""
    expires_at: dt.datetime | None
    """Time after which the credentials are refused; None: they have no end."""
    asks_for_credentials: bool
    """Whether the server asks its callers for credentials."""
    server_version: str
    """Version of Scannery that the server runs."""
    server_id: str
    """Id of the running server, the same for all of its workers; empty: embedded."""
    server_role: str
    """`all`: a server of whole indexes; `root`: of a cluster; `embedded`: a store in this process."""
    limits: Mapping[str, Any]
    """Limits of the caller, by the names of `scannery keys create --limit`; empty: it has none."""
    access: tuple[Mapping[str, Any], ...]
    """What it sees of these indexes: `index`, a name or pattern, and `where`, `fields`, `methods` where these are
    restricted. The first that names an index counts. Empty: all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSample:
    """A value of a metric."""

    labels: dict[str, str]
    """Values of the labels, by name."""
    value: float
    """The value; of a histogram, the sum of what was observed."""
    buckets: tuple[int, ...]
    """Observations in each bucket of a histogram, not in those below; the last one has no upper bound. Else empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric of a server, of all of its workers."""

    name: str
    help: str
    """What it counts or measures."""
    kind: str
    """`counter`, `gauge` or `histogram`."""
    bounds: tuple[float, ...]
    """Upper bounds of the buckets of a histogram, ascending, but for the last one. Else empty."""
    samples: tuple[MetricSample, ...]


def parse_caller(message: index_pb2.WhoAmIResponse) -> CallerInfo:
    """Return who the caller is."""
    utc = dt.timezone.utc
    return CallerInfo(
        name=message.name,
        scopes=tuple(message.scopes),
        indexes=None if message.all_indexes else tuple(message.indexes),
        expires_at=message.expires_at.ToDatetime(tzinfo=utc) if message.HasField("expires_at") else None,
        asks_for_credentials=message.asks_for_credentials,
        server_version=message.server_version,
        server_id=message.server_id,
        server_role=message.server_role,
        limits=json.loads(message.limits_json or "{}"),
        access=tuple(json.loads(message.access_json or "[]")),
    )


def parse_metrics(message: index_pb2.GetMetricsResponse) -> dict[str, Metric]:
    """Return the metrics by name."""
    return {
        metric.name: Metric(
            name=metric.name,
            help=metric.help,
            kind=metric.kind,
            bounds=tuple(metric.bounds),
            samples=tuple(
                MetricSample(
                    labels=dict(zip(metric.labels, sample.labels, strict=False)),
                    value=sample.value,
                    buckets=tuple(sample.buckets),
                )
                for sample in metric.samples
            ),
        )
        for metric in message.metrics
    }
