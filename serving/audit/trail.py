"""The audit log of one process: takes records of calls, and has a thread write them.

A call that only reads leaves its record in a queue, which takes 2 µs; the thread writes what has come within EVERY_S,
and has it survive a loss of power within SYNC_EVERY_S. A change has two records: the first survives a loss of power
before the change begins, so that none is made without one, and the second is written before the answer is sent.

While records cannot be written, calls are refused (`check`), unless the options are lenient: then there is room for
MAX_WAITING records, and those that do not fit are counted. Callers without credentials, who could fill the disk, have
MAX_STRANGERS records in a second; others are counted.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count

from scannery.runtime.errors import AuditError
from scannery.runtime.retry import Backoff
from scannery.serving.audit.chain import Chain
from scannery.serving.audit.exporter import Exporter
from scannery.serving.audit.records import CallRecord, Event, Record, call_facts
from scannery.serving.config import AuditConfig
from scannery.serving.telemetry.calls import Call
from scannery.serving.telemetry.metrics import ServerMetrics

__all__ = ["AuditTrail"]

_LOG = logging.getLogger(__name__)

EVERY_S = 0.1
"""A process that is killed loses the records of reads of this time."""
SYNC_EVERY_S = 1.0
MAX_WAITING = 20_000
"""Records of the busiest worker in some seconds: 10 MB."""
MAX_STRANGERS = 20
"""Records a second of calls without a caller's name."""
WITHIN_S = 10.0
"""Longest wait for a record to be written."""
FIRST_RETRY_S, MAX_RETRY_S = 0.2, 2.0
STARTED = "STARTED"
"""Outcome in the first record of a change."""


class AuditTrail:
    """The log of one process. Safe to use from several threads; `start` starts its own."""

    def __init__(
        self,
        config: AuditConfig,
        metrics: ServerMetrics,
        *,
        server: str,
        clock_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Open no file yet.

        Args:
            config: the options, with a folder.
            metrics: count records.
            server: id of the server.
            clock_ns: wall clock, nanoseconds since 1970.

        Raises:
            ConfigError: it is to be sent to a collector, and the packages for that are missing.

        """
        self._config, self._metrics, self._server, self._clock_ns = config, metrics, server, clock_ns
        self._chain: Chain
        self._exporter = Exporter(config.otlp, metrics, server=server) if config.otlp else None
        self._waiting: deque[CallRecord] = deque()
        self._calls = count(1)
        self._idles = True
        """Whether the thread waits for a record; set before it looks whether there is one."""
        self._refuses = False
        """Whether calls are refused, since they would have no record."""
        self._changed = threading.Condition()
        self._batches = self._done = 0
        """Batches that were taken from those that wait, and the last one that was written."""
        self._urgent = self._syncs = self._stopped = False
        self._strangers = (0, 0)
        """A second, and the calls without a caller's name in it."""
        self._lost = self._unlisted = 0
        """Records that did not fit, and calls without a caller's name beyond the limit, that no record tells of yet."""
        self._problem = ""
        """Why records cannot be written; empty: they can."""
        self._failed_s = 0.0
        self._retry = Backoff(first_s=FIRST_RETRY_S, max_s=MAX_RETRY_S)
        self._synced_s = 0.0
        self._thread = threading.Thread(target=self._run, name="scannery-audit", daemon=True)
        metrics.audit_failing.asks(self._failing)

    def start(self) -> None:
        """Open a file and start the thread; call it after the fork. Raises ConfigError."""
        config = self._config
        self._chain = Chain(
            config.folder,
            server=self._server,
            file_bytes=config.file_bytes,
            facts={"format": 1, "process": os.getpid()},
            tell=(lambda lines: None) if self._exporter is None else self._exporter.put,
            clock_ns=self._clock_ns,
        )
        self._tell()
        self._thread.start()
        if self._exporter is not None:
            self._exporter.start()

    def stop(self) -> None:
        """Write what waits, for at most ten seconds, and end the threads."""
        if self._thread.ident is None:
            return
        with self._changed:
            self._stopped = True
            self._wake()
        self._thread.join(WITHIN_S)
        if self._exporter is not None:
            self._exporter.stop()

    def check(self) -> None:
        """Raise AuditError if calls are not to be answered now."""
        if self._refuses:
            raise self._error()

    def begin(self, call: Call) -> None:
        """Write that a change begins; raises AuditError if that cannot be written, and the change must not be made."""
        call.number = next(self._calls)
        record = self._record(call, STARTED, time.monotonic() - call.started_s)
        if not self._put_now(record, sync=True) and not self._config.lenient:
            raise self._error()

    def ended(self, call: Call, outcome: str, seconds: float) -> None:
        """Record how a call has ended, by the name of its status; of a change, before its answer is sent."""
        if call.number:
            self._put_now(self._record(call, outcome, seconds), sync=False)
        elif call.principal is not None or call.wire == "engine" or self._lists_stranger():
            self._put(self._record(call, outcome, seconds))
        if self._idles:
            self._wake()

    def _record(self, call: Call, outcome: str, seconds: float) -> CallRecord:
        principal = call.principal
        name = "" if principal is None else principal.name
        facts = call_facts(call.wire, name, call.address, call.path, call.alias, call.index, outcome)
        return self._clock_ns(), facts, call.stats.counts, seconds, call.number

    def _put(self, record: CallRecord) -> bool:
        """Have a record written soon; False: there is no room."""
        count = len(self._waiting)
        if count < MAX_WAITING // 2:
            self._waiting.append(record)
            return True
        # What is refused from now on is recorded, too.
        self._refuses = not self._config.lenient
        if count < MAX_WAITING:
            self._waiting.append(record)
            return True
        with self._changed:
            self._lost += 1
        self._metrics.audit_lost.inc()
        return False

    def _wake(self) -> None:
        with self._changed:
            self._idles = False
            self._changed.notify_all()

    def _put_now(self, record: CallRecord, *, sync: bool) -> bool:
        """Write a record, together with others that wait; False: it cannot be written now."""
        with self._changed:
            has_room = self._put(record)
            self._wake()
            if not has_room or self._problem:
                return False
            number = self._batches + 1
            self._urgent, self._syncs = True, self._syncs or sync
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._done >= number or self._problem, WITHIN_S)
            return self._done >= number

    def _lists_stranger(self) -> bool:
        """Return whether a call without a caller's name gets a record, and count it."""
        second = self._clock_ns() // 10**9
        with self._changed:
            calls = self._strangers[1] if self._strangers[0] == second else 0
            self._strangers = second, calls + 1
            self._unlisted += calls >= MAX_STRANGERS
            self._wake()
        return calls < MAX_STRANGERS

    def _error(self) -> AuditError:
        why = self._problem or "they come faster than it can be written"
        return AuditError(
            f"the audit log of this server cannot be written ({why}), and it answers no call without a record",
            retry_after_s=MAX_RETRY_S,
        )

    def _failing(self) -> dict[tuple[str, ...], float]:
        return {(): time.monotonic() - self._failed_s if self._problem else 0.0}

    # The thread

    def _run(self) -> None:
        ended = False
        while not ended:
            with self._changed:
                self._changed.wait_for(lambda: not self._idles or self._waiting or self._stopped)
                self._idles = False
                self._changed.wait_for(lambda: self._urgent or self._stopped, EVERY_S)
                ended = self._stopped
                self._batches += 1
                number, syncs = self._batches, self._syncs
                self._urgent = self._syncs = False
                batch = self._counted()
                # Before the records are taken: who adds one from now on wakes this thread.
                self._idles = True
            batch += [self._waiting.popleft() for _ in range(len(self._waiting))]
            self._write(number, batch, sync=syncs)
        try:
            self._chain.append([Event(self._clock_ns(), "closed", {})], sync=True)
            self._tell()
        except (OSError, AuditError) as error:
            _LOG.error("audit log: its end cannot be written: %s", error)
        self._chain.close()

    def _counted(self) -> list[Record]:
        """Return what to record of calls that have no record."""
        now_ns, batch = self._clock_ns(), list[Record]()
        for name, calls in (("lost", self._lost), ("unlisted", self._unlisted)):
            if calls:
                batch.append(Event(now_ns, name, {"calls": calls}))
        self._lost = self._unlisted = 0
        return batch

    def _write(self, number: int, batch: list[Record], *, sync: bool) -> None:
        """Write a batch; if that fails, try again until it works or the server stops."""
        while True:
            try:
                due = time.monotonic() - self._synced_s >= SYNC_EVERY_S
                self._chain.append(batch, sync=sync or due)
            except Exception as error:  # noqa: BLE001  whatever it is: calls are not to go on without a record
                self._fail(error)
                with self._changed:
                    if self._changed.wait_for(lambda: self._stopped, self._retry.back_off()):
                        _LOG.error("audit log: %d records are lost", len(batch))
                        return
            else:
                break
        if sync or due:
            self._synced_s = time.monotonic()
        self._metrics.audit_records.inc(by=len(batch))
        with self._changed:
            self._done = number
            self._refuses = False
            if self._problem:
                _LOG.warning("audit log: it can be written again")
                self._problem = ""
                self._retry.reset()
            self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            begins = not self._problem
            self._failed_s = time.monotonic() if begins else self._failed_s
            # Callers are not told the paths of this machine.
            self._problem = "its files were changed" if isinstance(error, AuditError) else _reason(error)
            self._refuses = not self._config.lenient
            self._changed.notify_all()
        if begins:
            what = "calls have no record" if self._config.lenient else "calls are refused"
            trace = None if isinstance(error, (AuditError, OSError)) else error
            _LOG.error("audit log: it cannot be written, and %s: %s", what, error, exc_info=trace)

    def _tell(self) -> None:
        """Log where the chain ends: a line that is kept elsewhere proves that nothing before it was removed."""
        _LOG.info(
            "audit log: record %d of chain %d has the hash %s",
            self._chain.n,
            self._chain.number,
            self._chain.hash,
        )


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or type(error).__name__
