"""Holds the recall of each index at its target, by the evidence of all workers of a server.

The state of an index is one word of shared memory: its version, the step in force, and what leads there. Every worker
adds the recalls of the queries that it has sampled, under this word; the worker that finds by the sum of all that a
step is due replaces the word, and with it the evidence becomes void. Two workers that do so at once write equal words,
or one of two that are both right.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from scannery.indexer import Manifest, OpenIndex
from scannery.runtime.shared_table import SharedTable
from scannery.serving.recall.decision import FAST_WINDOW, SLOW_WINDOW, Findings, is_undecided, next_move
from scannery.serving.recall.evidence import FIELDS, Evidence
from scannery.serving.recall.steps import distinct_steps, has_choice, raised_target

__all__ = ["Estimate", "IndexControl", "RecallController", "no_step", "trying"]

_LOG = logging.getLogger(__name__)

_EPOCHS = 1 << 16
_NUMBERS = 1 << 16
"""Of versions: later ones begin at 0 again."""
MOST_TAKEN_BACK = 127


class _Trying(threading.local):
    step: int | None = None


_TRYING = _Trying()


@contextmanager
def trying(step: int) -> Iterator[None]:
    """Give a context in which the searches of this thread use another step than that in force."""
    _TRYING.step = step
    try:
        yield
    finally:
        _TRYING.step = None


@dataclass(frozen=True, slots=True)
class _State:
    """The word of an index: version (32 bits), epoch (16), step (8), moves taken back (7), last move was down (1)."""

    version: int
    epoch: int
    step: int
    taken_back: int
    down: bool

    @classmethod
    def of(cls, word: int) -> _State:
        return cls(word >> 32, word >> 16 & 0xFFFF, word >> 8 & 0xFF, word >> 1 & 0x7F, bool(word & 1))

    @property
    def word(self) -> int:
        return self.version << 32 | self.epoch << 16 | self.step << 8 | self.taken_back << 1 | self.down

    def moved(self, step: int) -> _State:
        """Return the state after a move to another step."""
        down = step < self.step
        taken_back = min(self.taken_back + (self.down and not down), MOST_TAKEN_BACK)
        return _State(self.version, self._next_epoch, step, taken_back, down)

    def of_version(self, version: int, *, stays: bool) -> _State:
        """Return the state of a new version, with the same step or the first one."""
        if stays:
            return _State(version, self._next_epoch, self.step, self.taken_back, self.down)
        return _State(version, self._next_epoch, 0, 0, False)

    @property
    def _next_epoch(self) -> int:
        return self.epoch % (_EPOCHS - 1) + 1  # never 0: a word is not 0 then


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is known of the recall of an index with the settings in force."""

    target: float
    """Of the index."""
    effective: float
    """The target that chooses the settings."""
    recall: float
    """Recall of the sampled queries: the target plus their mean deviation from their targets."""
    error: float
    """Its standard error; infinite: none was sampled."""
    queries: float


@dataclass(slots=True)
class _Own:
    """The evidence of this process, of one state."""

    word: int
    window: float
    parts: list[Evidence] = field(default_factory=list)
    fresh: float = 0.0

    def __post_init__(self) -> None:
        self.parts = [Evidence(SLOW_WINDOW / self.window), Evidence(max(FAST_WINDOW / self.window, 8.0))]
        self.parts += [Evidence(SLOW_WINDOW / self.window), Evidence(max(FAST_WINDOW / self.window, 8.0))]

    @property
    def numbers(self) -> list[float]:
        """The evidence, and last the number of fresh queries."""
        return [*(number for part in self.parts for number in part.numbers), self.fresh]


class IndexControl:
    """The recall of one index, in one process. Written by one thread, read by all."""

    def __init__(self, table: SharedTable, place: int, process: int, workers: int, index: OpenIndex) -> None:
        """Control a version of an index.

        Args:
            table: shared by the workers.
            place: of the index in it.
            process: number of this worker.
            workers: number of workers.
            index: the open version.

        """
        self._table, self._place, self._process, self._workers = table, place, process, workers
        self.index, self.index_id = index.manifest.index, index.manifest.index_id
        self.target = index.spec.target_recall
        self.version = _version_of(index.manifest)
        self.curves = _curves(index.manifest)
        self.steps = distinct_steps(index.settings_for, self.target)
        """Steps that change the settings."""
        self._last = 0
        self._own = _Own(0, workers)
        self._decided = 0
        """The state for which the estimate is certain enough; 0: none."""

    def begin(self, before: IndexControl | None) -> None:
        """Take the state of the shared word if it is of this version; otherwise write it.

        Args:
            before: the control of the version that this process had open.

        """
        state = self._state
        if state.version == self.version and state.epoch:
            return
        alike = before is not None and self._has_curves_of(before)
        goes_on = before is not None and _is_later(self.version, before.version)
        if before is not None and goes_on and _is_later(state.version, self.version):
            # Other workers have a later version open. The state is theirs, and this worker follows soon.
            self._last = state.step if alike else 0
            return
        known = before is not None and state.version == before.version
        # Another worker may have opened a version between that before and this one.
        known |= goes_on and _is_later(self.version, state.version)
        # The allowed misses of each step are the same share of the target's.
        self._set(state.of_version(self.version, stays=alike and known))

    @property
    def step(self) -> int:
        """The step in force in this thread."""
        if _TRYING.step is not None:
            return _TRYING.step
        word = self._table.words[self._place]
        if word >> 32 == self.version:
            self._last = word >> 8 & 0xFF
        return self._last

    def read(self) -> int:
        """Return the step in force; for snapshots."""
        return self.step

    @property
    def is_undecided(self) -> bool:
        """Whether more queries should be sampled."""
        return len(self.steps) > 1 and self._decided != self.word

    @property
    def word(self) -> int:
        """The state in force; evidence belongs to one state."""
        return self._table.words[self._place]

    @property
    def is_current(self) -> bool:
        """Whether the state in force is of this version: otherwise another worker has opened another one."""
        return self._state.version == self.version

    @property
    def step_below(self) -> int | None:
        """The step with less effort than that in force; None: there is none."""
        step = self.step
        return max((each for each in self.steps if each < step), default=None)

    def record(self, word: int, now: float, less: float | None, *, fresh: bool) -> None:
        """Add a query that was repeated.

        Args:
            word: the state in which it was.
            now: its recall less its target.
            less: the same with the settings of the step below; None: not measured.
            fresh: whether it was not repeated in an earlier state.

        """
        if word != self.word:
            return
        if self._own.word != word:
            self._own = _Own(word, self._workers)
        own = self._own
        for part in own.parts[:2]:
            part.add(now)
        if less is not None:
            for part in own.parts[2:]:
                part.add(less)
        own.fresh += fresh

    def decide(self) -> int:
        """Publish what was recorded, and move by a step if it is due; return the direction."""
        word, state = self.word, self._state
        if not self.is_current:
            return 0
        if self._own.word == word:
            self._table.write(self._process, self._place, word, self._own.numbers)
        found = self._findings(word)
        place = self._place_of(state.step)
        move = next_move(
            found,
            taken_back=state.taken_back,
            lowest=place == 0,
            highest=place == len(self.steps) - 1,
        )
        self._decided = 0 if move or is_undecided(found) else word
        if move:
            step = self.steps[place + move]
            self._tell(found, state.step, step)
            self._set(state.moved(step))
        return move

    def estimate(self) -> Estimate:
        """Return what is known of the recall now."""
        now = self._findings(self.word).now
        step = self._state.step if self.is_current else self._last
        return Estimate(
            self.target, raised_target(self.target, step), self.target + now.mean, now.error, now.count
        )

    def _findings(self, word: int) -> Findings:
        rows = self._table.read(self._place, word)
        parts = [Evidence.merged(row[i : i + FIELDS] for row in rows) for i in range(0, 4 * FIELDS, FIELDS)]
        fresh = sum(row[4 * FIELDS] for row in rows)
        return Findings(now=parts[0], now_fast=parts[1], less=parts[2], less_fast=parts[3], fresh=fresh)

    def _tell(self, found: Findings, before: int, step: int) -> None:
        up = step > before
        slow, fast = (found.now, found.now_fast) if up else (found.less, found.less_fast)
        evidence = slow if (slow.mean < 0) == up else fast  # the questions have just changed
        what = "is below" if up else "would also reach"
        _LOG.info(
            "index %s: recall of %.0f sampled queries %s the target %.3f: %.3f ± %.3f%s; effective target %.4f → %.4f",
            self.index, evidence.count, what, self.target, self.target + evidence.mean, evidence.error,
            "" if up else " with less effort",
            raised_target(self.target, before), raised_target(self.target, step),
        )  # fmt: skip

    def _place_of(self, step: int) -> int:
        """Return the place of a step in `steps`, or of the next lower one: another version had other steps."""
        return max(place for place, each in enumerate(self.steps) if each <= step or place == 0)

    def _has_curves_of(self, before: IndexControl) -> bool:
        """Return whether most rows with curves are in segments with the same curves as before."""
        rows = sum(rows for _, rows in self.curves.values())
        same = sum(
            rows for key, (curve, rows) in self.curves.items() if before.curves.get(key, ("", 0))[0] == curve
        )
        return self.target == before.target and 2 * same >= rows > 0

    @property
    def _state(self) -> _State:
        return _State.of(self._table.words[self._place])

    def _set(self, state: _State) -> None:
        self._table.words[self._place] = state.word


class RecallController:
    """The controls of all indexes of one process. Safe to use from several threads."""

    def __init__(self, table: SharedTable | None = None, *, process: int = 0, workers: int = 1) -> None:
        """Control nothing yet.

        Args:
            table: shared by the workers of a server; None: there are no others.
            process: number of this worker in the table.
            workers: number of workers.

        """
        self._table, self._process, self._workers = table or SharedTable(), process, workers
        self._controls: dict[str, IndexControl] = {}
        self._lock = threading.Lock()

    def opened(self, index: OpenIndex) -> None:
        """Control a version that is about to serve, unless all its segments are searched exactly anyway."""
        name, index_id = index.manifest.index, index.manifest.index_id
        with self._lock:
            before = self._controls.get(name)
            if before is not None and before.version == _version_of(index.manifest):
                return
            if before is not None and before.index_id != index_id:
                self._release(name)
                before = None
            if not has_choice(index.settings_for, index.spec.target_recall):
                self._release(name)
                return
            place = self._table.place(_identity(name, index_id))
            if place is None:
                _LOG.warning(
                    "index %s: its recall is not held: too many indexes have settings to choose", name
                )
                return
            control = IndexControl(self._table, place, self._process, self._workers, index)
            if before is not None:
                before.read()  # it answers queries on its version with this step until these are gone
            control.begin(before)
            self._controls[name] = control

    def closed(self, name: str) -> None:
        """Control an index no longer: it is gone."""
        with self._lock:
            self._release(name)

    def _release(self, name: str) -> None:
        control = self._controls.pop(name, None)
        if control is not None:
            self._table.release(_identity(name, control.index_id))

    def reader(self, manifest: Manifest) -> Callable[[], int]:
        """Return the function that returns the step in force, for the snapshots of a version."""
        control = self._controls.get(manifest.index)
        if control is None or control.version != _version_of(manifest):
            return no_step
        return control.read

    def control(self, name: str) -> IndexControl | None:
        """Return the control of an index; None: its recall is not controlled."""
        return self._controls.get(name)

    def estimates(self) -> Mapping[str, Estimate]:
        """Return what is known of the recall of each index that has settings to choose from."""
        return {name: one.estimate() for name, one in list(self._controls.items())}


def no_step() -> int:
    """Return 0: the settings of the curve, for versions whose recall is not controlled."""
    return 0


def _version_of(manifest: Manifest) -> int:
    """Return 16 bits that stand for the index, also for one that took the name of another, and 16 of its version."""
    index = zlib.crc32(str(manifest.index_id).encode()) & 0xFFFF
    return index << 16 | manifest.version % _NUMBERS


def _is_later(one: int, other: int) -> bool:
    """Return whether a version is a later one of the same index."""
    return one >> 16 == other >> 16 and 0 < (one - other) % _NUMBERS < _NUMBERS // 2


def _identity(name: str, index_id: str | None) -> str:
    """Return what stands for an index, and not for another one that takes its name later."""
    return f"{name}/{index_id}"


def _curves(manifest: Manifest) -> dict[str, tuple[str, int]]:
    """Return for each segment with curves a text that stands for these, and its rows."""
    return {
        entry.key: (repr((entry.curve, entry.depth_curves)), entry.rows)
        for entry in manifest.segments
        if entry.curve
    }
