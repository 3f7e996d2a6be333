"""The calls that tell who the caller is to a server, and what the server measures of itself."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.client.errors import InvalidArgumentError
from scannery.client.request.calls import Call, Method
from scannery.client.request.values import refuses_surrogates
from scannery.client.response.server_info import CallerInfo, Metric, parse_caller, parse_metrics
from scannery.v1 import index_pb2

__all__ = ["get_metrics", "who_am_i"]

WHO_AM_I = Method("/scannery.v1.IndexService/WhoAmI", index_pb2.WhoAmIRequest, index_pb2.WhoAmIResponse)
GET_METRICS = Method(
    "/scannery.v1.IndexService/GetMetrics", index_pb2.GetMetricsRequest, index_pb2.GetMetricsResponse
)


def who_am_i(
    *, timeout_s: float | None = None
) -> Call[index_pb2.WhoAmIRequest, index_pb2.WhoAmIResponse, CallerInfo]:
    """Return the call that tells who the caller is."""
    return Call(WHO_AM_I, index_pb2.WhoAmIRequest(), parse_caller, timeout_s)


@refuses_surrogates
def get_metrics(
    names: Sequence[str], *, timeout_s: float | None = None
) -> Call[index_pb2.GetMetricsRequest, index_pb2.GetMetricsResponse, dict[str, Metric]]:
    """Return the call for the metrics with some names, without any for all."""
    if isinstance(names, str):
        raise InvalidArgumentError(f"names: must be a list of names, got {names!r:.80}", field="names")
    return Call(GET_METRICS, index_pb2.GetMetricsRequest(names=names), parse_metrics, timeout_s)
