"""One index of a catalog: what is open of it, and what goes wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial

from scannery.indexer import LeaseHolder
from scannery.live.live_index import LiveIndex
from scannery.live.maintenance.scheduler import Maintenance
from scannery.runtime.retry import RetryState
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["CatalogEntry"]

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class CatalogEntry:
    """Changed under the lock of its catalog; an error of any of its tasks is kept here, and goes no further."""

    name: str
    on_failure: Callable[[str], object]
    """Called with the name of each task that fails."""
    clock: Callable[[], float]
    live: LiveIndex[Snapshot] | None = None
    maintenance: Maintenance | None = None
    stamp: str = ""
    """Of the manifest that is open; another manifest of the same number has another one."""
    checked_at_s: float = float("-inf")
    """When its current version was looked for."""
    opening: RetryState = field(init=False)
    """Of the current version."""
    encoder: RetryState = field(init=False)
    """To have it loaded before the first text comes."""
    _upkeep: RetryState = field(init=False)
    _lease: RetryState = field(init=False)

    def __post_init__(self) -> None:
        self.opening, self.encoder, self._upkeep, self._lease = (
            RetryState(on_failure=partial(self.on_failure, task), clock=self.clock)
            for task in ("open", "encoder", "maintain", "lease")
        )

    @property
    def snapshot(self) -> Snapshot | None:
        """What a query sees now."""
        return None if self.live is None else self.live.snapshot

    @property
    def problem(self) -> str:
        """What is wrong, for callers; empty if nothing is."""
        return "; ".join(filter(None, (self.opening.problem, self.encoder.problem, self._upkeep.problem)))

    @property
    def failures(self) -> int:
        """How often in a row the current version could not be opened, or its encoder not be used."""
        return self.opening.failures + self.encoder.failures

    def look_again(self) -> None:
        """Forget when the version was looked at last: there is a later one."""
        self.checked_at_s = float("-inf")

    def load_encoder(self, snapshot: Snapshot) -> None:
        """Have the encoder of a version loaded; vector queries need none, so an error changes nothing for them."""
        if snapshot.manifest.spec.encoder is None:
            self.encoder.succeeded()
        else:
            # The first text loads what the model loads lazily, too.
            self.encoder.run(
                f"index {self.name}: its encoder cannot be used", lambda: snapshot.encoder.encode(["warm"])
            )

    def maintain(self) -> None:
        """Have sealed and merged what is due."""
        if self.live is not None and self.maintenance is not None:
            self._upkeep.run(
                f"index {self.name}: maintenance cannot be started",
                partial(self.maintenance.look, self.live.state),
            )

    def hold(self, leases: LeaseHolder) -> None:
        """Announce which version is open."""
        if (snapshot := self.snapshot) is not None:
            versions: Collection[int] = {snapshot.manifest.version}
            self._lease.run(
                f"index {self.name}: version {snapshot.manifest.version} cannot be announced as open",
                partial(leases.hold, self.name, versions),
            )

    def close(self, *, finish: bool = False) -> None:
        """Let go of it; with `finish`, after the maintenance that is due."""
        if self.maintenance is not None:
            self._closed(partial(self.maintenance.close, finish=finish))
        if self.live is not None:
            self._closed(self.live.close)

    def _closed(self, close: Callable[[], object]) -> None:
        try:
            close()
        except Exception:  # noqa: BLE001  other parts and other indexes must still be closed
            _LOG.exception("index %s: cannot be closed in order", self.name)
