"""When an index counts as being filled, by a clock that the test moves."""

from __future__ import annotations

from scannery.live.maintenance.scheduler import QUIET_S, SEALED_S, FillDetector

SEAL_ROWS = 1_000


class Writes:
    """Writes to an index, and the clock."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.detector = FillDetector(lambda: self.now_s)
        self.written = self.sealed = self.rows = 0
        self.since_s = self.now_s

    def after(self, seconds: float, *, rows: int = 0, seal: bool = False) -> bool:
        self.now_s += seconds
        self.written += rows > 0
        self.rows += rows
        if seal:
            self.sealed, self.rows, self.since_s = self.written, 0, self.now_s
        return self.detector.filling(
            written_to=self.written,
            sealed=self.sealed,
            full=self.rows >= SEAL_ROWS,
            behind=self.rows >= 3 * SEAL_ROWS,
            age_s=self.now_s - self.since_s,
        )


def test_rows_that_come_quickly_fill_an_index_until_they_stop() -> None:
    writes = Writes()
    assert not writes.after(1, rows=500)
    assert writes.after(1, rows=500)
    for _ in range(5):
        assert writes.after(1, rows=800, seal=True)
        assert writes.after(1, rows=800)
    assert writes.after(QUIET_S - 0.1)
    assert not writes.after(0.1)


def test_slow_writes_do_not_fill_an_index() -> None:
    writes = Writes()
    writes.after(0)
    for _ in range(3):
        assert not writes.after(SEALED_S - 1, rows=500)
        assert not writes.after(1, rows=500)
        writes.after(1, seal=True)
        assert not writes.after(SEALED_S, rows=100)


def test_writes_that_are_refused_have_not_stopped() -> None:
    writes = Writes()
    assert not writes.after(100, rows=2_999)
    assert writes.after(1, rows=1)
    assert writes.after(10 * QUIET_S)
    assert not writes.after(1, seal=True)
    assert writes.after(1, rows=10)


def test_an_index_that_was_sealed_before_a_start_is_not_being_filled() -> None:
    writes = Writes()
    writes.sealed = writes.written = 7
    assert not writes.after(0, rows=10)
    assert not writes.after(1, rows=10)
