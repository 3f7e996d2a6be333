"""Handlers that tell callers who they are and what answers them, and how that does."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from scannery.runtime.errors import InvalidRequestError, UnsupportedError
from scannery.runtime.retry import Deadline
from scannery.serving.contract import GET_METRICS, WHO_AM_I
from scannery.serving.scheduling.quotas import NoQuotas
from scannery.serving.security.principal import ANONYMOUS, CURRENT, SCOPES, is_visible
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.telemetry.metrics.exposition import MetricsReader
from scannery.serving.telemetry.metrics.registry import Dump, Family, Histogram, samples
from scannery.v1 import index_pb2 as pb

__all__ = ["EMBEDDED", "Introspection", "ServerIdentity"]

MAX_NAMES = 200
_LAST_S = datetime.max.replace(tzinfo=timezone.utc).timestamp() - 1
"""Later ends of credentials than a timestamp can have are told as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """What answers calls."""

    role: Literal["all", "root", "leaf", "embedded"]
    id: str = ""
    """The same for all workers of a running server; empty: embedded."""
    asks: bool = False
    """Whether callers need credentials: a key, a token or a certificate."""


EMBEDDED = ServerIdentity(role="embedded")


class Introspection:
    """WhoAmI and GetMetrics. Safe to use from several threads."""

    def __init__(self, identity: ServerIdentity, metrics: MetricsReader | None, quotas: NoQuotas) -> None:
        """Answer for a server.

        Args:
            identity: of the server.
            metrics: of all of its workers; None: it has none.
            quotas: what its callers may ask for.

        """
        self._identity, self._metrics, self._quotas = identity, metrics, quotas
        self.methods = {
            WHO_AM_I: UnaryMethod(pb.WhoAmIRequest, self.who_am_i, "credentials", narrowed=True),
            GET_METRICS: UnaryMethod(pb.GetMetricsRequest, self.metrics, "admin"),
        }

    def who_am_i(self, request: pb.WhoAmIRequest, deadline: Deadline) -> pb.WhoAmIResponse:
        """Describe the caller, without its secret, and the server."""
        caller = CURRENT.get() or ANONYMOUS
        response = pb.WhoAmIResponse(
            name=caller.name,
            scopes=[scope for scope in SCOPES if caller.may(scope)],
            all_indexes=caller.indexes is None,
            indexes=sorted(caller.indexes or ()),
            asks_for_credentials=self._identity.asks,
            server_version=_version(),
            server_id=self._identity.id,
            server_role=self._identity.role,
        )
        if caller.expires_s < _LAST_S:
            response.expires_at.FromSeconds(math.floor(caller.expires_s))
        if (limits := self._quotas.limits_of(caller)) is not None:
            response.limits_json = json.dumps(limits.to_dict())
        if caller.access:
            response.access_json = json.dumps([entry.as_json() for entry in caller.access])
        return response

    def metrics(self, request: pb.GetMetricsRequest, deadline: Deadline) -> pb.GetMetricsResponse:
        """Return the metrics of all workers, of indexes that the caller can see."""
        if self._metrics is None:
            raise UnsupportedError("a store that is opened in the process of its caller has no metrics")
        if len(request.names) > MAX_NAMES:
            raise InvalidRequestError.at(
                "names", f"must have at most {MAX_NAMES} items, got {len(request.names)}"
            )
        names, dump = set(request.names), self._metrics.read(deadline)
        metrics = [
            _metric(family, dump) for family in self._metrics.families if not names or family.name in names
        ]
        return pb.GetMetricsResponse(metrics=metrics)


def _metric(family: Family, dump: Dump) -> pb.Metric:
    metric = pb.Metric(name=family.name, help=family.text, kind=family.kind, labels=family.labels)
    if isinstance(family, Histogram):
        metric.bounds.extend(family.buckets)
    at = family.labels.index("index") if "index" in family.labels else None
    for labels, value in samples(family, dump):
        if at is not None and at < len(labels) and labels[at] and not is_visible(labels[at]):
            continue
        if isinstance(family, Histogram):
            metric.samples.add(labels=labels, value=value[0], buckets=value[1:])
        else:
            metric.samples.add(labels=labels, value=value)
    return metric


def _version() -> str:
    try:
        return version("scannery")
    except PackageNotFoundError:  # the sources run without being installed
        return ""
