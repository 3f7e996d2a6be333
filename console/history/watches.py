"""Polls the metrics of the target once a second, while somebody looks and with the rights of who does.

Each key or token has a history of its own, since a server tells a caller nothing of indexes that it may not see. Nobody
is told anything before a poll with the same key has been answered, which is a second old at most: a key that is taken
back ends its history.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from typing import Any

from scannery.client.errors import ScanneryError, UnavailableError
from scannery.client.request.server_calls import get_metrics
from scannery.client.response.server_info import Metric
from scannery.client.transport.base import AsyncTransport
from scannery.console.history.points import METRICS, Point, point, requests
from scannery.console.history.ring import Ring

__all__ = ["Watch"]

EVERY_S, MINUTE_S = 1.0, 60.0
RATES_S = 5.0
"""Time that the rates of a second are of: workers publish once a second, so that one second has none or two of that."""
LOOKED_S = 150.0
"""Time after a look in which polls go on: browsers run a page in the background once a minute."""
TIMEOUT_S = 5.0
PASSING = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
"""Codes of errors that pass by themselves."""

_LOG = logging.getLogger(__name__)


class Watch:
    """The history of a target for one caller.

    Args:
        transport: to the target.
        every_s: time between two polls.
        looked_s: time after a look in which polls go on.

    """

    def __init__(
        self, transport: AsyncTransport, *, every_s: float = EVERY_S, looked_s: float = LOOKED_S
    ) -> None:
        self.spans = {"minutes": Ring(900), "day": Ring(1440)}
        """A point a second for 15 minutes, a point a minute for 24 hours."""
        self.used_s = time.monotonic()
        """Time of the last look."""
        self._transport = transport
        self._every_s, self._looked_s = every_s, looked_s
        self._task: asyncio.Task[None] | None = None
        self._polled = asyncio.Event()
        self._error: ScanneryError | None = None
        """Why the last poll has no answer; None: it has one."""
        self._recent: deque[tuple[float, dict[str, Metric]]] = deque()
        """The samples of the last seconds, the oldest first."""
        self._minutes: deque[tuple[float, dict[str, Metric]]] = deque(maxlen=2)
        """Samples with which the former minute and this one began."""
        self._requests: list[dict[str, Any]] = []

    async def look(self) -> None:
        """Poll for a while from now on, with the key or token of the caller, and wait for the first answer.

        Raises:
            ScanneryError: the last poll failed; the watch goes on only after errors that pass by themselves.

        """
        self.used_s = time.monotonic()
        if not self.is_polling:
            self._polled = asyncio.Event()
            self._error = UnavailableError("the metrics were not read")
            # The task has the context of the caller, and so its key; nothing else keeps it.
            self._task = asyncio.create_task(self._poll())
        await self._polled.wait()
        if self._error is not None:
            raise self._error

    @property
    def is_polling(self) -> bool:
        """Whether polls go on."""
        return self._task is not None and not self._task.done()

    def last_minute(self) -> list[dict[str, Any]]:
        """Return the requests of the last minute or two, as `points.requests` does."""
        return self._requests

    def failures(self) -> dict[str, float]:
        """Return the failures of work in the background since the server's start, by task."""
        metric = self._recent[-1][1].get("scannery_background_failures_total") if self._recent else None
        return {sample.labels["task"]: sample.value for sample in metric.samples} if metric else {}

    async def close(self) -> None:
        """Stop polling."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _poll(self) -> None:
        # What was before a pause is no beginning of a second or a minute.
        self._recent.clear()
        self._minutes.clear()
        next_s = time.monotonic()
        try:
            while time.monotonic() - self.used_s < self._looked_s:
                try:
                    await self._sample()
                    self._error = None
                except ScanneryError as error:
                    self._error = error
                    if error.code not in PASSING:
                        return
                self._polled.set()
                next_s = max(next_s + self._every_s, time.monotonic() + self._every_s / 2)
                await asyncio.sleep(next_s - time.monotonic())
        except Exception:  # noqa: BLE001  a defect here ends neither the console nor those who wait
            _LOG.exception("the history ends")
        finally:
            self._polled.set()

    async def _sample(self) -> None:
        call = get_metrics(METRICS)
        message = await self._transport.call(call.method, call.request, TIMEOUT_S)
        now_s = time.monotonic()

        def digest() -> tuple[dict[str, Metric], Point, Point | None]:
            """With a thousand indexes it takes long: in a thread."""
            sample = call.parse(message)
            first_s, first = self._recent[0] if self._recent else (now_s, None)
            values = point(first, sample, max(now_s - first_s, 1e-3))
            if self._minutes:
                begun_s, begun = self._minutes[0]
                self._requests = requests(begun, sample, now_s - begun_s)
            begun_s, begun = self._minutes[-1] if self._minutes else (now_s, sample)
            is_over = now_s - begun_s >= MINUTE_S
            return sample, values, point(begun, sample, now_s - begun_s) if is_over else None

        sample, values, minute = await asyncio.to_thread(digest)
        time_s = time.time()
        self._recent.append((now_s, sample))
        while now_s - self._recent[0][0] > RATES_S:
            self._recent.popleft()
        self.spans["minutes"].add(time_s, values)
        if minute is not None:
            self.spans["day"].add(time_s, minute)
        if minute is not None or not self._minutes:
            self._minutes.append((now_s, sample))
