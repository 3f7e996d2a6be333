"""The wire to a server that is named by its gRPC port: HTTP where the server offers it, else gRPC."""

from __future__ import annotations

import time
from typing import TypeVar

from google.protobuf.message import Message

from scannery.client.async_concurrency import async_off_loop
from scannery.client.errors import ScanneryError
from scannery.client.request.calls import Method
from scannery.client.transport._async.grpc import AsyncGrpcWire
from scannery.client.transport._async.http import AsyncHttpWire
from scannery.client.transport.base import Headers
from scannery.client.transport.credentials import Credentials
from scannery.client.transport.discovery import ASK, endpoints_of, offer_in
from scannery.client.transport.http.pool import UnsentError
from scannery.client.transport.retries import Attempts

__all__ = ["AsyncWireChoice"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)

PROBE_TIMEOUT_S = 1.0
"""How long the decision may take, within the deadline of the call that makes it."""
STAY_S = 300.0
"""How long calls go over gRPC before the server is asked again, while its connections hold."""


class AsyncWireChoice:
    """One wire for all calls, until it loses the server.

    1. A call over gRPC asks for the HTTP endpoint.
    2. The next call connects to it, without credentials: a program of one call, as a command is, does not pay for that.
       If the expected server answers, that call and all later ones go over HTTP; otherwise, over gRPC.
    3. When HTTP loses the server, calls go over gRPC, and the first of them asks again. When gRPC loses it, or after
       `STAY_S`, the next call asks.

    Safe to use from several threads without a lock: what they could do twice does no harm. Pickled, it decides anew.

    Args:
        host: of the server.
        target: decides with `credentials` on encryption, and is what messages call the server.
        credentials: have the files for TLS.
        grpc: the wire to begin with.

    """

    def __init__(self, host: str, target: str, credentials: Credentials, grpc: AsyncGrpcWire) -> None:
        self._host, self._target, self._credentials = host, target, credentials
        self._grpc = grpc
        self._http: AsyncHttpWire | None = None
        """All calls go over it; None: over gRPC."""
        self._offers: list[tuple[int, str]] = []
        """Port and id of the server that were told; the call that takes them decides."""
        self._ask_at_s = 0.0
        self._closed = False
        self._proved = False
        """Whether the HTTP wire answered a call."""

    async def call(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, metadata: Headers
    ) -> ResponseT:
        """Return the answer; see `AsyncWire.call`."""
        http = self._http or await self._decide(attempts.left_s)
        if http is not None:
            try:
                answer = await http.call(method, request, attempts, metadata)
            except ScanneryError:  # some of which are OSErrors, too
                raise
            except OSError as error:
                self._lost(http)
                if not (attempts.repeatable or isinstance(error, UnsentError)):
                    # The server may have done it.
                    raise
            else:
                self._proved = True
                return answer
        return await self._over_grpc(method, request, attempts, metadata)

    async def _decide(self, left_s: float) -> AsyncHttpWire | None:
        """Return the HTTP wire if there is an offer and the server answers there; None: gRPC."""
        try:
            offer = self._offers.pop()
        except IndexError:
            return None
        try:
            return await self._connected(*offer, left_s)
        except BaseException:  # cancelled or interrupted: the next call decides
            self._offers[:] = [offer]
            raise

    async def _connected(self, port: int, server: str, left_s: float) -> AsyncHttpWire | None:
        """Connect to what was offered; None: the server does not answer there."""
        until_s = time.monotonic() + min(PROBE_TIMEOUT_S, left_s / 2)
        tls = self._credentials.encrypts(self._target)
        try:
            endpoints = await async_off_loop(endpoints_of, self._host, port, server, tls=tls)
        except (OSError, UnicodeError):
            return None
        for number, endpoint in enumerate(endpoints):
            now_s = time.monotonic()
            wire = AsyncHttpWire(endpoint, self._target, self._credentials)
            try:
                await wire.connect(now_s + (until_s - now_s) / (len(endpoints) - number))
            except (OSError, ScanneryError):  # another server, or none; a file for TLS has gone
                continue
            if self._closed:
                await wire.close()
                return None
            self._http, self._proved = wire, False
            return wire
        return None

    def _lost(self, http: AsyncHttpWire) -> None:
        if self._http is http:
            self._http = None
            # An endpoint that accepts connections and answers no call would be tried at every second call.
            self._ask_at_s = 0.0 if self._proved else time.monotonic() + STAY_S
        http.retire()

    async def _over_grpc(
        self, method: Method[RequestT, ResponseT], request: RequestT, attempts: Attempts, metadata: Headers
    ) -> ResponseT:
        now_s = time.monotonic()
        asks = now_s >= self._ask_at_s
        if asks:
            # Others need not ask meanwhile.
            self._ask_at_s = now_s + STAY_S
            metadata += ASK
        try:
            answer, trailing = await self._grpc.ask(method, request, attempts, metadata)
        except BaseException as error:  # cancelled or interrupted, too
            # After a lost connection, another server may be there.
            lost = isinstance(error, OSError) and not isinstance(error, ScanneryError)
            if asks or lost:
                self._ask_at_s = 0.0
            raise
        if asks and (offer := offer_in(trailing)) is not None:
            self._offers[:] = [offer]
        return answer

    async def close(self) -> None:
        """End all connections."""
        self._closed = True
        await self._grpc.close()
        if self._http is not None:
            await self._http.close()

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self._host, self._target, self._credentials, self._grpc)
