"""What metrics and the audit log see of a call: who calls which method of which index, on which wire."""

from __future__ import annotations

import time
from typing import Literal, TypeAlias

from scannery.serving.security.principal import Principal
from scannery.serving.telemetry.query_stats import QueryStats

__all__ = ["Call", "Wire"]

Wire: TypeAlias = Literal["grpc", "http", "engine"]
"""Where a call came from; `engine`: a bridge of this server has called it for a request of its callers."""


class Call:
    """A call of a method, from its headers to its answer. A request of a stream is one, too."""

    __slots__ = ("address", "alias", "index", "number", "path", "principal", "started_s", "stats", "wire")

    def __init__(
        self, path: str, wire: Wire, principal: Principal | None, address: str = "", *, index: str = ""
    ) -> None:
        """Begin now.

        Args:
            path: of the method.
            wire: where it came from.
            principal: the caller; None: it did not authenticate itself.
            address: of its machine or network; empty: this process itself calls.
            index: that the request names, or an alias of it.

        """
        self.path, self.wire, self.principal, self.address = path, wire, principal, address
        self.index = index
        """Name of the index; empty: the request has none, or is not decoded."""
        self.alias = index
        """Name by which the request names it; empty: as `index`."""
        self.stats = QueryStats()
        """Statistics of the answer, filled in by handlers."""
        self.number = 0
        """Number of a change in the audit log; 0: it has no record of its beginning."""
        self.started_s = time.monotonic()
        """Time of its headers."""
