"""What the handlers of every version of the API work with.

Calls of the engine by long-running operations, which wait where callers of single requests would try again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from scannery.bridges.vertex.shared.operations import Operations
from scannery.bridges.vertex.shared.state import JsonDocument
from scannery.runtime.errors import OverloadedError
from scannery.runtime.retry import Backoff
from scannery.serving.bridging import Deadline, Engine
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.config import VertexConfig

__all__ = ["Facade", "patiently"]


@dataclass(frozen=True, slots=True)
class Facade:
    """The parts of a server that the handlers use."""

    engine: Engine
    """The services of this server."""
    catalog: Catalog
    """The indexes, by their own names."""
    state: JsonDocument
    """All other resources."""
    operations: Operations
    config: VertexConfig
    address: Callable[[], str]
    """Returns the address that clients are told, HOST:PORT."""


CALL_TIMEOUT_S = 300.0
MAX_OVERLOADED_S = 600.0
"""Seconds of refusals after which an operation gives up."""

ResultT = TypeVar("ResultT")


def patiently(called: Callable[[Deadline], ResultT]) -> ResultT:
    """Return the result of a call with a deadline; one that is refused because of load is repeated."""
    backoff, until_s = Backoff(first_s=0.1, max_s=5.0), time.monotonic() + MAX_OVERLOADED_S
    while True:
        try:
            return called(Deadline.after(CALL_TIMEOUT_S))
        except OverloadedError as error:
            if time.monotonic() > until_s:
                raise
            time.sleep(error.retry_after_s or backoff.back_off())
