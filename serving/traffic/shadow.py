"""Asks logged queries of an index also of another one, its shadow, when cores are idle, and logs what that answers.

Nothing waits for it: what is asked faster than there is spare time for is left out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace

from scannery.runtime.errors import CodedError
from scannery.runtime.retry import Deadline
from scannery.serving.observation.query_sample import IndexSample
from scannery.serving.request.query import words_of
from scannery.serving.scheduling.spare_time import SpareTime
from scannery.serving.security.principal import CURRENT, Principal
from scannery.serving.services.interleaving import request_of_shadow
from scannery.serving.traffic.recorder import LoggedSearch
from scannery.v1 import search_pb2 as pb

__all__ = ["Shadow"]

WAITING = 256
"""Most queries that wait, the newest ones."""
WAITING_BYTES = 64 << 10
"""Largest request that waits: a filter may be megabytes, and a waiting query holds the request that it is from."""
TIMEOUT_S = 10.0
"""Longest time of an answer."""
LOOK_S = 0.05


class Shadow:
    """The shadows of one process, as an `ObserverTask`. `add` is safe to use from several threads."""

    name = "shadow"

    def __init__(
        self,
        shadows: Mapping[str, str],
        search: Callable[[pb.SearchRequest, Deadline], pb.SearchResponse],
        log: Callable[[str, LoggedSearch, bytes, float, str], object],
    ) -> None:
        """Ask nothing yet.

        Args:
            shadows: the other index of each index that has one.
            search: answers a search.
            log: called with the other index, the query, its serialised answer, the seconds that it took, and the code
                of the error in place of an answer.

        """
        self._shadows, self._search, self._log = shadows, search, log
        self._waiting: deque[LoggedSearch] = deque(maxlen=WAITING)

    def add(self, search: LoggedSearch) -> None:
        """Have a query asked of the shadow of its index, if it has one, and one can: by text or words alone."""
        if search.request.index not in self._shadows or not words_of(search.query):
            return
        if search.request.ByteSize() <= WAITING_BYTES:
            self._waiting.append(search)

    def run(self, samples: Mapping[str, IndexSample], spare: SpareTime) -> float:
        """As `ObserverTask.run`; one query at a time."""
        while self._waiting and spare.is_available:
            search = self._waiting.popleft()
            shadow = self._shadows[search.request.index]
            with spare.spend():
                self._log(shadow, search, *self._answered(shadow, search))
        return LOOK_S

    def _answered(self, shadow: str, search: LoggedSearch) -> tuple[bytes, float, str]:
        request = request_of_shadow(shadow, search.query, search.request.options)
        # Both answers are compared: they must be of the same part.
        access = () if search.access is None else (replace(search.access, index=shadow),)
        token = CURRENT.set(Principal(self.name, frozenset({"read"}), access=access))
        began_s = time.monotonic()
        try:
            answer = self._search(request, Deadline.after(TIMEOUT_S)).SerializeToString()
        except CodedError as error:
            return b"", time.monotonic() - began_s, error.code
        finally:
            CURRENT.reset(token)
        return answer, time.monotonic() - began_s, ""
