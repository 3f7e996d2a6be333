"""Limits of gRPC calls: how many at once, how late their messages, by caller; and how a call ends with an error.

So calls that never send their body cannot block callers that do.

Errors have details in the form of Google's error model (https://google.aip.dev/193), for clients in other languages.
The messages are those of `google/rpc/status.proto` and `google/rpc/error_details.proto`, of
which a server needs no more than these few fields.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn, Protocol, TypeAlias
from urllib.parse import unquote

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from grpc import StatusCode

from scannery.runtime.errors import DeadlineError, UnauthenticatedError
from scannery.runtime.tasks import PeriodicTask
from scannery.serving.engine.wire_fields import framed, varint
from scannery.serving.scheduling.permits import heaviest
from scannery.serving.security.principal import CURRENT, Principal, anonymous_at, current_principal
from scannery.serving.status import DETAIL_KEY, status_for_callers
from scannery.v1.types_pb2 import ErrorDetail

__all__ = [
    "CallLimit", "CallTimeouts", "End", "abort", "address_of", "caller_of", "cancelling", "status_details",
]  # fmt: skip


MAX_MESSAGE_BYTES = 400
"""The message is sent in full beside the details, and all trailing metadata together may take 8 KiB."""
_TYPE_URL = "type.googleapis.com/"


def status_details(code: StatusCode, message: str, detail: ErrorDetail, error: Exception) -> bytes:
    """Return a serialised `google.rpc.Status` with ErrorInfo, RetryInfo, BadRequest and our own ErrorDetail.

    Args:
        code: of the call.
        message: of the call.
        detail: field and retry delay.
        error: whose class is the reason in ErrorInfo.

    """
    short = message.encode("utf-8", "replace")[:MAX_MESSAGE_BYTES].decode("utf-8", "ignore")
    error_detail = ErrorDetail(field=detail.field, message=short, retry_after_ms=detail.retry_after_ms)
    # ErrorInfo: reason, domain.
    reason = "INTERNAL" if code is StatusCode.INTERNAL else _reason(type(error).__name__)
    details = [
        _any("google.rpc.ErrorInfo", framed(1, reason.encode()) + framed(2, b"scannery")),
        _any(error_detail.DESCRIPTOR.full_name, error_detail.SerializeToString()),
    ]
    if detail.retry_after_ms:
        delay = Duration()
        delay.FromMilliseconds(detail.retry_after_ms)
        details.append(_any("google.rpc.RetryInfo", framed(1, delay.SerializeToString())))
    if detail.field and code is StatusCode.INVALID_ARGUMENT:
        # BadRequest: violations with field and description.
        violation = framed(1, detail.field.encode()) + framed(2, b"see the message of the status")
        details.append(_any("google.rpc.BadRequest", framed(1, violation)))
    # Status: code, message, details.
    status = b"\x08" + varint(code.value[0]) + framed(2, short.encode())
    return status + b"".join(framed(3, each.SerializeToString()) for each in details)


def _any(name: str, data: bytes) -> Message:
    return Any(type_url=_TYPE_URL + name, value=data)


def _reason(name: str) -> str:
    """Return the name of an error's class as a reason: `UnknownIndexError` is `UNKNOWN_INDEX`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name.removesuffix("Error")).upper()


_LOG = logging.getLogger(__name__)

CHECK_EVERY_S = 0.5


def _always() -> bool:
    return True


def cancelling(call: Cancellable) -> End:
    """Return what cancels a call; its caller is not told why."""
    return lambda error: call.cancel()


class Cancellable(Protocol):
    """A call that can be cancelled."""

    def cancel(self) -> object:
        """Cancel the call."""


Allowed: TypeAlias = Callable[[], bool]
End: TypeAlias = Callable[[Exception], object]
"""Ends a call, from any thread. A call that waits for its body can only be cancelled, without the reason."""


class _Watch:
    __slots__ = ("_calls", "_key")

    def __init__(
        self,
        calls: dict[int, tuple[float, End, Allowed]],
        end: End,
        until_s: float,
        allowed: Allowed,
    ) -> None:
        self._calls, self._key = calls, id(self)
        calls[self._key] = (until_s, end, allowed)

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        self._calls.pop(self._key, None)


class CallTimeouts(PeriodicTask):
    """Ends watched calls after their time limit. Safe to use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """Start the thread; `clock` returns seconds."""
        super().__init__("call-timeouts", self._check, every_s=CHECK_EVERY_S)
        self._clock = clock
        # Single operations on a dict are atomic.
        self._calls: dict[int, tuple[float, End, Allowed]] = {}
        self.start()

    def watched(self, end: End, seconds: float, allowed: Allowed = _always) -> _Watch:
        """Return a context; inside it, the call is ended after `seconds`, or when `allowed()` is False."""
        return _Watch(self._calls, end, self._clock() + seconds, allowed)

    def _check(self) -> None:
        now_s = self._clock()
        for key, (until_s, end, allowed) in list(self._calls.items()):
            try:
                reason: Exception | None = None
                if now_s > until_s:
                    reason = DeadlineError(
                        "the request took too long to arrive, or the stream lasted too long"
                    )
                elif not allowed():
                    reason = UnauthenticatedError("the credentials of the stream are no longer valid")
                if reason is not None and self._calls.pop(key, None) is not None:
                    _LOG.info("a call is ended: %s", reason)
                    end(reason)
            except Exception:  # noqa: BLE001  other calls must be checked as well
                _LOG.exception("a call could not be checked")


class CallLimit:
    """A limit of `most` concurrent calls. Safe to use from several threads."""

    def __init__(self, maximum: int) -> None:
        self._limit = maximum
        self._lock = threading.Lock()
        self._calls: dict[int, tuple[str, Cancellable]] = {}
        """Account and call by increasing number, the oldest first."""
        self._last = 0

    @contextmanager
    def entered(self, account: str, call: Cancellable) -> Iterator[None]:
        """Count a call inside the context; at the limit, end the oldest of the account that has the most."""
        with self._lock:
            evicted = self._evicted() if len(self._calls) >= self._limit else None
            self._last += 1
            number = self._last
            self._calls[number] = (account, call)
        if evicted is not None:
            evicted.cancel()
        try:
            yield
        finally:
            with self._lock:
                self._calls.pop(number, None)

    def _evicted(self) -> Cancellable:
        account = heaviest(Counter(account for account, _ in self._calls.values()))
        number = next(number for number, (owner, _) in self._calls.items() if owner == account)
        return self._calls.pop(number)[1]


STATUS_KEY = "grpc-status-details-bin"
"""Trailing metadata with a `google.rpc.Status`, which clients in other languages look for."""
PUSHBACK_KEY = "grpc-retry-pushback-ms"
"""Trailing metadata with the delay that gRPC's own retries obey."""


def abort(context: grpc.ServicerContext, error: Exception) -> NoReturn:
    """End a call with the status and detail of `error`."""
    code, message, detail = status_for_callers(error)
    if code is grpc.StatusCode.INTERNAL:
        _LOG.error("unexpected error", exc_info=error)
    metadata: list[tuple[str, str | bytes]] = [
        *(context.trailing_metadata() or ()),
        (DETAIL_KEY, detail.SerializeToString()),
        (STATUS_KEY, status_details(code, message, detail, error)),
    ]
    if detail.retry_after_ms:
        metadata.append((PUSHBACK_KEY, str(detail.retry_after_ms)))
    context.set_trailing_metadata(tuple(metadata))
    context.abort(code, message)


def caller_of(context: grpc.ServicerContext) -> Principal:
    """Return the caller, with its address if it has no credentials, and set it for the rest of the call."""
    principal = current_principal()
    if principal.is_anonymous and not principal.address:
        principal = anonymous_at(_host_of(context))
        CURRENT.set(principal)
    return principal


def address_of(context: grpc.ServicerContext) -> str:
    """Return the address of the caller's machine, of IPv6 that of its network."""
    return anonymous_at(_host_of(context)).address


def _host_of(context: grpc.ServicerContext) -> str:
    # ipv4:127.0.0.1:5000, ipv6:%5B::1%5D:5000, unix:…
    kind, _, address = context.peer().partition(":")
    return unquote(address).rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else kind
