"""Answers what the page of operations asks for."""

from __future__ import annotations

import hashlib
import json
import math
import time

from starlette.requests import Request
from starlette.responses import Response

from scannery.client.errors import InvalidArgumentError, ScanneryError
from scannery.client.transport.base import AsyncTransport
from scannery.console.gateway.calls import json_answer, json_object
from scannery.console.gateway.messages import error_answer
from scannery.console.history.watches import Watch
from scannery.console.sessions import caller_secret

__all__ = ["History"]

MAX_WATCHES = 8
"""Histories at once, of different keys; of a further one, that which was not looked at for longest ends."""
KEPT_S = 24 * 3600.0


class History:
    """The history of a target.

    Args:
        transport: to the target.

    """

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._watches: dict[bytes, Watch] = {}

    async def answer(self, request: Request) -> Response:
        """Answer `POST /history`: `{"span": "minutes" | "day", "after": SECONDS, "index": NAME}`.

        `after` is the time of the last point that the page has, `index` that whose series are returned beside those of
        the server and of the groups of a cluster. Needs the scope `admin`, as GetMetrics does.
        """
        try:
            body = await json_object(request)
            try:
                span, after_s, index = (
                    body.get("span", "minutes"),
                    float(body.get("after", 0)),
                    body.get("index", ""),
                )
            except (ValueError, TypeError, OverflowError) as error:
                raise InvalidArgumentError(f"the request is wrong: {error}") from error
            if span not in ("minutes", "day"):
                raise InvalidArgumentError("span: must be minutes or day", field="span")
            if not math.isfinite(after_s):
                raise InvalidArgumentError("after: must be a number of seconds", field="after")
            watch = await self._looked_at()
        except ScanneryError as error:
            return json_answer(*error_answer(error))
        times, series = watch.spans[span].after(
            after_s, lambda owner: not owner.startswith("index:") or owner == f"index:{index}"
        )
        answer = {
            "times": times,
            "series": series,
            "requests": watch.last_minute(),
            "failures": watch.failures(),
        }
        return json_answer(200, json.dumps(answer, separators=(",", ":")).encode())

    async def close(self) -> None:
        """Stop polling."""
        for watch in self._watches.values():
            await watch.close()

    async def _looked_at(self) -> Watch:
        """Return the history of the caller; raises ScanneryError."""
        # A key is kept no longer than it is used: here is what it is recognised by.
        caller = hashlib.sha256(caller_secret().encode()).digest()
        watch = self._watches.get(caller) or Watch(self._transport)
        self._watches[caller] = watch
        try:
            await watch.look()
        except ScanneryError:
            if not watch.is_polling:
                await self._end(caller)
            raise
        finally:
            await self._make_room()
        return watch

    async def _make_room(self) -> None:
        by_age = sorted(self._watches, key=lambda each: self._watches[each].used_s)
        for caller in by_age[:-MAX_WATCHES]:
            await self._end(caller)
        for caller in by_age[-MAX_WATCHES:]:
            if time.monotonic() - self._watches[caller].used_s > KEPT_S:
                await self._end(caller)

    async def _end(self, caller: bytes) -> None:
        if (watch := self._watches.pop(caller, None)) is not None:
            await watch.close()
