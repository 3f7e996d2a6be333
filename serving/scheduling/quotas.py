"""Quotas: what the limits of a caller allow, for each request of every wire, before its handler is called.

Workers of a server count together. Servers do not: each of several allows as much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from google.protobuf.message import Message

from scannery.runtime.errors import PermissionDeniedError, QuotaError
from scannery.runtime.sharing import SharedBuckets
from scannery.serving.request.query import count_queries
from scannery.serving.scheduling.token_buckets import MAX_COST_NS, TokenBuckets
from scannery.serving.security.limits import RATES, ROWS, Limits
from scannery.serving.security.policy import check_policy
from scannery.serving.security.principal import CURRENT, Principal, current_principal
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.v1 import embedding_pb2, index_pb2, search_pb2

__all__ = ["NoQuotas", "Quotas"]

BYTES_PER_TOKEN = 4
"""Tokens are not counted before they are limited: that would take longer than the check of a short query."""
_UNITS = ("requests", "queries", "tokens to embed", "rows to write", "bytes to write")


class NoQuotas:
    """Quotas where nobody has limits: in the process of the caller, and at a leaf."""

    def limits_of(self, principal: Principal) -> Limits | None:
        """Return the limits of a caller; None: it has none."""
        return None

    def admit(self, request: Message) -> None:
        """Check a request of the current caller, and count it.

        Raises:
            PermissionDeniedError: the limits do not allow such a request.
            QuotaError: a rate is used up.

        """

    def admit_query(self) -> None:
        """As `admit`, for a search by one vector that differs from an admitted one in nothing else."""

    def max_rows(self) -> int | None:
        """Return the rows that the current caller may see of an index after a write; None: any number."""
        return None

    def refused(self, limit: str) -> None:
        """Count that a limit of the current caller, by its name, has refused a request."""

    def settle(self, request: Message, answer: Message | bytes) -> None:
        """Count what is known of an admitted request when it is answered: rows that it wrote besides those it names."""


class Quotas(NoQuotas):
    """Quotas of a server. Safe to use from several threads."""

    def __init__(self, default: Limits | None, shared: SharedBuckets, metrics: ServerMetrics) -> None:
        """Prepare.

        Args:
            default: limits of callers whose credentials have none; None: they have none.
            shared: memory of all workers.
            metrics: count refusals.

        """
        self._default, self._metrics = default, metrics
        self._buckets = TokenBuckets(shared)

    def limits_of(self, principal: Principal) -> Limits | None:
        """As `NoQuotas.limits_of`."""
        return principal.limits if principal.limits is not None else self._default

    def admit(self, request: Message) -> None:
        """As `NoQuotas.admit`."""
        if (limited := self._limited()) is None:
            return
        principal, limits = limited
        if limits.has_policy:
            try:
                check_policy(request, limits)
            except PermissionDeniedError:
                self._metrics.limited.inc((principal.name, "policy"))
                raise
        if limits.rates:
            costs_ns = [0] * len(RATES)
            for number, unit_ns in limits.rates:
                costs_ns[number] = min(int(_AMOUNTS[number](request) * unit_ns), MAX_COST_NS)
            self._take(principal, limits, costs_ns)

    def admit_query(self) -> None:
        """As `NoQuotas.admit_query`."""
        if (limited := self._limited()) is not None and limited[1].rates:
            self._take(*limited, limited[1].query_costs_ns)

    def max_rows(self) -> int | None:
        """As `NoQuotas.max_rows`."""
        limited = self._limited()
        return None if limited is None else limited[1].max_rows

    def refused(self, limit: str) -> None:
        """As `NoQuotas.refused`."""
        self._metrics.limited.inc((current_principal().name, limit))

    def settle(self, request: Message, answer: Message | bytes) -> None:
        """As `NoQuotas.settle`."""
        if (limited := self._limited()) is None or not limited[1].rates:
            return
        principal, limits = limited
        if (more := _rows_written(answer) - _rows(request)) > 0:
            for number, unit_ns in limits.rates:
                if number == ROWS:
                    self._buckets.owe(_holder(principal, limits), number, round(more * unit_ns))

    def _limited(self) -> tuple[Principal, Limits] | None:
        """Return the current caller and its limits; None: it has none."""
        principal = CURRENT.get()
        limits = None if principal is None else self.limits_of(principal)
        return None if principal is None or limits is None else (principal, limits)

    def _take(self, principal: Principal, limits: Limits, costs_ns: Sequence[int]) -> None:
        wait_ns, number = self._buckets.take(_holder(principal, limits), costs_ns, limits.burst_ns)
        if not wait_ns:
            return
        name, wait_s = RATES[number], wait_ns / 1e9
        self._metrics.limited.inc((principal.name, name))
        raise QuotaError(
            f"the limit {name} of this caller is used up: it allows {getattr(limits, name):g} {_UNITS[number]} a "
            f"second; try again in {wait_s:.3g} s",
            retry_after_s=max(wait_s, 0.001),
        )


def _holder(principal: Principal, limits: Limits) -> str:
    """Return the name of the buckets of a caller."""
    return f"tenant\0{limits.tenant}" if limits.tenant else principal.account


def _request(request: Message) -> int:
    return 1


def _queries(request: Message) -> int:
    if isinstance(request, search_pb2.SearchManyRequest):
        return count_queries(request)
    return int(isinstance(request, search_pb2.SearchRequest | search_pb2.ExplainRequest))


def _tokens(request: Message) -> int:
    return sum(-(-len(text.encode()) // BYTES_PER_TOKEN) for text in _texts(request))


def _texts(request: Message) -> Iterable[str]:
    """Yield the texts that a request has embedded."""
    if isinstance(request, embedding_pb2.EmbedRequest):
        yield from request.texts
    elif isinstance(request, index_pb2.UpsertRequest):
        for upsert in request.upserts:
            if not upsert.datapoint.HasField("vector"):
                yield from (upsert.datapoint.title, upsert.datapoint.text)
    elif isinstance(
        request, search_pb2.SearchRequest | search_pb2.SearchManyRequest | search_pb2.ExplainRequest
    ):
        if request.options.mode == search_pb2.MODE_LEXICAL:
            return
        queries = request.queries if isinstance(request, search_pb2.SearchManyRequest) else (request.query,)
        for query in queries:
            yield from (each.text for each in (query, *query.group.queries) if each.text)


def _rows(request: Message) -> int:
    if isinstance(request, index_pb2.UpsertRequest):
        return len(request.upserts)
    if isinstance(request, index_pb2.DeleteRequest):
        return len(request.ids) + len(request.document_ids)
    # How many a filter allows is known afterwards; one at least is to be free.
    return int(
        isinstance(request, index_pb2.DeleteWhereRequest | index_pb2.UpdateWhereRequest)
        and not request.dry_run
    )


def _rows_written(answer: Message | bytes) -> int:
    if isinstance(answer, index_pb2.UpsertResponse):
        return answer.written
    if isinstance(answer, index_pb2.UpdateWhereResponse):
        return answer.updated
    if isinstance(answer, index_pb2.DeleteResponse | index_pb2.DeleteWhereResponse):
        return answer.deleted
    return 0


def _bytes(request: Message) -> int:
    return request.ByteSize() if _rows(request) else 0


_AMOUNTS: tuple[Callable[[Message], int], ...] = (_request, _queries, _tokens, _rows, _bytes)
"""Amount of each rate that a request has, in the order of RATES."""
