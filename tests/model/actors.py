"""Who reads and writes: embedded clients, and servers without their ports, in this process.

Time is virtual: an actor looks for new versions when the machine says so, so that a list of operations gives the same
run each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannery.client import Client, Index
from scannery.client.transport.embedded import EmbeddedTransport
from scannery.indexer import SegmentCache, Store
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.roles import embedded_catalog, server_catalog
from scannery.serving.embedded import EmbeddedEngine

__all__ = ["ACTORS", "Actor", "Clock", "LocalActor"]

ACTORS = {"e1": False, "e2": False, "s1": True, "s2": True}
"""Names of the actors in this process; whether it is a server, which looks for versions only when told to."""
TIMEOUT_S = 15.0


@dataclass
class Clock:
    """Seconds that pass when an operation says so."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Actor:
    """A client, and what it has seen."""

    name: str
    client: Client
    index_name: str
    acknowledged: int = 0
    """Its last write."""
    many: bool = False
    """Whether it is several workers, of which any may answer."""
    seen_version: int = 0
    seen_sequence: int = 0

    @property
    def index(self) -> Index:
        """The handle on the index."""
        return self.client.index(self.index_name)

    def look(self) -> None:
        """Look for new versions."""

    def version(self) -> int:
        """Return the version that it has open."""
        return self.index.stats().version

    def open_version(self) -> int:
        """Return the version that it has open, without a look for another one."""
        return self.seen_version

    def close(self) -> None:
        """Let go of everything."""
        self.client.close()


@dataclass
class LocalActor(Actor):
    """An actor of this process."""

    catalog: Catalog = field(kw_only=True)
    clock: Clock = field(kw_only=True)
    server: bool = field(kw_only=True)

    @classmethod
    def opened(cls, name: str, store: Path, index: str, cache: SegmentCache, **options: Any) -> LocalActor:
        """Open the store anew."""
        clock = Clock()
        server = ACTORS[name]
        kind = server_catalog if server else embedded_catalog
        catalog = kind(Store.open(store), cache=cache, clock=clock, **options)
        # It starts no process by itself: sealing and merging are operations here.
        catalog.maintain = lambda: None  # type: ignore[method-assign]
        client = Client(EmbeddedTransport(EmbeddedEngine(catalog)), timeout_s=TIMEOUT_S)
        if server:
            catalog.refresh()
        return cls(name, client, index, catalog=catalog, clock=clock, server=server)

    def look(self) -> None:
        """Look for new versions, as a server does each second, and an embedded client if it is asked."""
        self.clock.now_s += 3600.0
        if self.server:
            self.catalog.refresh()

    def open_version(self) -> int:
        """Return the version that it has open, without a look for another one."""
        return max((known.manifest.version for known in self.catalog.snapshots()), default=0)

    def version(self) -> int:
        """Return the version that it has open; a call of its own would describe the index, too."""
        # A look that finds the log cut answers once more of what there was, and the next one moves.
        self.catalog.snapshot(self.index_name)
        return self.catalog.snapshot(self.index_name).manifest.version
