"""One index of a catalog: its open version and its errors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from scannery.indexer import LeaseHolder, Manifest
from scannery.live.live_index import LiveIndex
from scannery.live.maintenance.scheduler import Maintenance
from scannery.live.memtable import LiveState
from scannery.runtime.errors import ServingError
from scannery.runtime.retry import Deadline, RetryState
from scannery.runtime.sharing import SharedMarks
from scannery.serving.catalog.held_snapshots import Holds
from scannery.serving.snapshot.snapshot import Snapshot

__all__ = ["CatalogEntry"]

_LOG = logging.getLogger(__name__)


@dataclass(slots=True)
class CatalogEntry:
    """Modified under the lock of the catalog. Errors of its tasks are kept here and not raised."""

    name: str
    on_failure: Callable[[str], object]
    """Called with the name of each failed task."""
    clock: Callable[[], float]
    live: LiveIndex[Snapshot] | None = None
    maintenance: Maintenance | None = None
    stamp: str = ""
    """Store stamp of the open manifest, which differs if the index was deleted and built again."""
    checked_at_s: float = float("-inf")
    """When its latest version was last checked."""
    maintain_at_s: float = float("-inf")
    """When `maintain` is due at the latest."""
    maintained: tuple[int, int] = (0, 0)
    """Version and sequence when it was last called."""
    drop_mark: int = 0
    """The mark of its name (`Catalog`) when its latest version was last checked."""
    alter_mark: int = 0
    """Likewise the mark of changes of its spec."""
    mark_slot: int = field(init=False)
    """Place of both marks (`SharedMarks`)."""
    opening: RetryState = field(init=False)
    """Opening of the current version."""
    encoder: RetryState = field(init=False)
    """Loading of its encoders."""
    _maintaining: RetryState = field(init=False)
    _lease: RetryState = field(init=False)

    def __post_init__(self) -> None:
        self.mark_slot = SharedMarks.slot_of(self.name)
        self.opening, self.encoder, self._maintaining, self._lease = (
            RetryState(on_failure=partial(self.on_failure, task), clock=self.clock)
            for task in ("open", "encoder", "maintain", "lease")
        )

    @property
    def snapshot(self) -> Snapshot | None:
        """The current snapshot; None: not open."""
        return None if self.live is None else self.live.snapshot

    @property
    def version(self) -> int | None:
        """The version that is open; None: none is."""
        return None if self.live is None else self.live.state.manifest.version

    @property
    def problem(self) -> str:
        """Current errors, for callers; empty: none."""
        return "; ".join(
            filter(None, (self.opening.problem, self.encoder.problem, self._maintaining.problem))
        )

    @property
    def failures(self) -> int:
        """Consecutive failures to open the current version or to use its encoder."""
        return self.opening.failures + self.encoder.failures

    def look_again(self) -> None:
        """Have the version checked at the next access: there is a newer one."""
        self.checked_at_s = float("-inf")

    def load_encoders(self, snapshot: Snapshot) -> None:
        """Load the encoders of a version; an error does not affect vector queries.

        Raises:
            ServingError: an encoder cannot be used that would replace one of the open version that works.

        """
        for name in self._replaced_encoders(snapshot.manifest):
            _warm_up(snapshot, name)
        names = snapshot.manifest.encoded.keys()
        if not names:
            self.encoder.succeeded()
            return

        def load() -> None:
            for name in names:
                _warm_up(snapshot, name)

        self.encoder.run(f"index {self.name}: its encoder cannot be used", load)

    def _replaced_encoders(self, manifest: Manifest) -> list[str]:
        """Return the names whose encoders differ from those of the open version, if these work."""
        current = self.snapshot
        if current is None or current.manifest.index_id != manifest.index_id:
            return []
        before, now = (
            {name: (spec, each.vectors[name]) for name, spec in each.spec.encoders.items()}
            for each in (current.manifest, manifest)
        )
        replaced = [name for name in before.keys() & now.keys() if before[name] != now[name]]
        # One that failed may work by now: an encoder process that started later than this server.
        return [name for name in replaced if not self.encoder.failures or _works(current, name)]

    def may_need_maintenance(self, now_s: float) -> bool:
        """Return whether `maintain` may find something to do; cheap."""
        if self.live is None or self.maintenance is None:
            return False
        return (
            self.live.superseded
            or now_s >= self.maintain_at_s
            or self.maintained != _position(self.live.state)
        )

    def maintain(self, *, regularly: bool) -> None:
        """Start sealing and merging that is due; see `Maintenance.look`."""
        live, maintenance = self.live, self.maintenance
        if live is not None and maintenance is not None:
            state = live.state

            def look() -> None:
                if live.superseded:
                    maintenance.pass_mark(state.manifest)
                self.maintain_at_s = self.clock() + maintenance.look(state, regularly=regularly)
                self.maintained = _position(state)

            self._maintaining.run(f"index {self.name}: maintenance cannot be started", look)

    def hold(self, leases: LeaseHolder, held: Holds) -> None:
        """Renew the lease on the open version and what requests hold, which protects them from removal."""
        if self.live is None:
            return
        manifest = self.live.snapshot.manifest
        index_id, versions, after = manifest.index_id, held.versions | {manifest.version}, held.log_after
        if leases.is_due(self.name, versions, index_id, after):
            self._lease.run(
                f"index {self.name}: version {manifest.version} cannot be announced as open",
                lambda: leases.hold(self.name, versions, index_id, log_after=after),
            )

    def close(self, *, finish: bool = False) -> None:
        """Close the index; with `finish`, after maintenance that is due."""
        if self.maintenance is not None:
            self._close_part(partial(self.maintenance.close, finish=finish))
        if self.live is not None:
            self._close_part(self.live.close)

    def _close_part(self, close: Callable[[], object]) -> None:
        try:
            close()
        except Exception:  # noqa: BLE001  other parts and other indexes must still be closed
            _LOG.exception("index %s: cannot be closed in order", self.name)


def _warm_up(snapshot: Snapshot, name: str) -> None:
    """Load an encoder. The first text triggers lazy loading inside a model."""
    encoder = snapshot.encoder(name)
    encoder.encode(["warm"])
    if len(snapshot.manifest.spec.encoders[name].sides) > 1:
        encoder.encode_documents(["warm"], Deadline.after(None), path="texts")


def _works(snapshot: Snapshot, name: str) -> bool:
    """Return whether an encoder can be used."""
    try:
        _warm_up(snapshot, name)
    except ServingError:
        return False
    return True


def _position(state: LiveState) -> tuple[int, int]:
    return state.manifest.version, state.sequence
