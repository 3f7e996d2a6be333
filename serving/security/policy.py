"""Strict mode: requests that the limits of their caller do not allow are refused before they cost anything."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from google.protobuf.message import Message

from scannery.runtime.errors import PermissionDeniedError
from scannery.serving.limits import (
    DEFAULT_K,
    DEFAULT_PROJECT_PAGE,
    DEFAULT_RERANK_CANDIDATES,
    DEFAULT_SCAN_PAGE,
)
from scannery.serving.security.limits import Limits
from scannery.v1 import index_pb2, search_pb2, types_pb2

__all__ = ["check_policy"]

_SUBSTRING = (types_pb2.OPERATOR_SUBSTRING, types_pb2.OPERATOR_ISUBSTRING)


def check_policy(request: Message, limits: Limits) -> None:
    """Check a request of the server's own methods against the limits of its caller.

    Raises:
        PermissionDeniedError: it is larger than they allow, or of a kind that they refuse; names the field and the
            limit.

    """
    check = _CHECKS.get(type(request))
    if check is not None:
        check(request, limits)


def _check_search(request: search_pb2.SearchRequest, limits: Limits) -> None:
    _check_options(request.options, limits)
    _at_most(limits, "max_queries", "query.group.queries", len(request.query.group.queries))


def _check_batch(request: search_pb2.SearchManyRequest, limits: Limits) -> None:
    _check_options(request.options, limits)
    vectors = request.vectors
    if limits.max_queries is not None:
        rows = len(vectors.packed) // (4 * max(1, vectors.dimensions))
        _at_most(limits, "max_queries", "vectors" if rows else "queries", max(rows, len(request.queries)))
        for number, query in enumerate(request.queries):
            _at_most(limits, "max_queries", f"queries[{number}].group.queries", len(query.group.queries))
    for number, where in enumerate(request.where_each):
        _check_filter(f"where_each[{number}]", where, limits)


def _check_explain(request: search_pb2.ExplainRequest, limits: Limits) -> None:
    _refuse(limits, "explain", "id", "explanations of a datapoint's rank", refused=True)
    _check_options(request.options, limits)
    _at_most(limits, "max_queries", "query.group.queries", len(request.query.group.queries))


def _check_options(options: search_pb2.SearchOptions, limits: Limits) -> None:
    _at_most(limits, "max_k", "k", options.k if options.HasField("k") else DEFAULT_K)
    _at_most(limits, "max_offset", "offset", options.offset)
    _at_most(limits, "max_target_recall", "target_recall", options.target_recall)
    _refuse(limits, "exact", "exact", "exact searches", refused=options.exact)
    _refuse(
        limits,
        "knobs",
        "knobs",
        "settings of the index in place of a recall",
        refused=options.HasField("knobs"),
    )
    _refuse(limits, "explain", "explain", "explanations", refused=options.explain)
    if options.HasField("rerank"):
        rerank = options.rerank
        _refuse(limits, "rerank", "rerank", "reranking by a cross-encoder", refused=True)
        candidates = rerank.candidates if rerank.HasField("candidates") else DEFAULT_RERANK_CANDIDATES
        _at_most(limits, "max_rerank", "rerank.candidates", candidates)
    if options.HasField("where"):
        _check_filter("where", options.where, limits)


def _check_get(request: search_pb2.GetRequest, limits: Limits) -> None:
    _at_most(limits, "max_ids", "ids", len(request.ids))


def _check_delete(request: index_pb2.DeleteRequest, limits: Limits) -> None:
    _at_most(limits, "max_ids", "ids", len(request.ids))
    _at_most(limits, "max_ids", "document_ids", len(request.document_ids))


def _check_count(request: search_pb2.CountRequest, limits: Limits) -> None:
    _check_filter("where", request.where, limits)


def _check_aggregate(
    request: search_pb2.FacetsRequest | search_pb2.AttributeStatsRequest, limits: Limits
) -> None:
    _refuse(limits, "aggregate", "attribute", "facets and statistics of attributes", refused=True)
    _check_filter("where", request.where, limits)


def _check_scan(request: search_pb2.ScanRequest, limits: Limits) -> None:
    _refuse(limits, "scan", "index", "scans", refused=True)
    _at_most(
        limits,
        "max_page_size",
        "page_size",
        request.page_size if request.HasField("page_size") else DEFAULT_SCAN_PAGE,
    )
    _refuse(limits, "sort", "order_by", "scans in an order", refused=request.HasField("order_by"))
    _refuse(limits, "sort", "sample", "samples", refused=bool(request.sample))
    _check_filter("where", request.where, limits)


def _check_project(request: search_pb2.ProjectRequest, limits: Limits) -> None:
    _refuse(limits, "scan", "index", "maps", refused=True)
    page_size = request.page_size if request.HasField("page_size") else DEFAULT_PROJECT_PAGE
    _at_most(limits, "max_page_size", "page_size", page_size)
    _check_filter("where", request.where, limits)


def _check_filtered_write(
    request: index_pb2.DeleteWhereRequest | index_pb2.UpdateWhereRequest, limits: Limits
) -> None:
    _refuse(limits, "filtered_write", "where", "writes to what a filter allows", refused=True)
    _check_filter("where", request.where, limits)


_CHECKS: dict[type[Message], Callable[..., None]] = {
    search_pb2.SearchRequest: _check_search,
    search_pb2.SearchManyRequest: _check_batch,
    search_pb2.ExplainRequest: _check_explain,
    search_pb2.GetRequest: _check_get,
    search_pb2.CountRequest: _check_count,
    search_pb2.FacetsRequest: _check_aggregate,
    search_pb2.AttributeStatsRequest: _check_aggregate,
    search_pb2.ScanRequest: _check_scan,
    search_pb2.ProjectRequest: _check_project,
    index_pb2.DeleteRequest: _check_delete,
    index_pb2.DeleteWhereRequest: _check_filtered_write,
    index_pb2.UpdateWhereRequest: _check_filtered_write,
}


def _check_filter(path: str, where: types_pb2.Filter, limits: Limits) -> None:
    maximum, refuses = limits.max_conditions, "substring" in limits.refuse
    if maximum is None and not refuses:
        return
    count = 0
    for condition in _conditions(where):
        count += 1
        if refuses and condition.operator in _SUBSTRING:
            _refuse(
                limits, "substring", f"{path}.{condition.field:.80}", "search within strings", refused=True
            )
    _at_most(limits, "max_conditions", path, count)


def _conditions(where: types_pb2.Filter) -> Iterable[types_pb2.Condition]:
    pending = [where]
    while pending:
        node = pending.pop()
        kind = node.WhichOneof("kind")
        if kind == "condition":
            yield node.condition
        elif kind == "negation":
            pending.append(node.negation)
        elif kind is not None:
            pending.extend((node.all_of if kind == "all_of" else node.any_of).filters)


def _at_most(limits: Limits, name: str, field: str, value: float) -> None:
    maximum = getattr(limits, name)
    if maximum is not None and value > maximum:
        raise PermissionDeniedError(
            f"{field}: the limits of this caller allow at most {maximum:g} ({name}), got {value:g}",
            field=field,
        )


def _refuse(limits: Limits, kind: str, field: str, what: str, *, refused: bool) -> None:
    if refused and kind in limits.refuse:
        raise PermissionDeniedError(
            f"{field}: the limits of this caller refuse {what} (refuse={kind})", field=field
        )
