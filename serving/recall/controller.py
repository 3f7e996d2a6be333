"""Holds the recall of each index at its target, by the evidence of all workers of a server.

The state of an index is one word of shared memory: its version, the step in force, and what leads there. Every worker
adds the recalls of the queries that it has sampled, under this word; the worker that finds by the sum of all that a
step is due replaces the word, and with it the evidence becomes void. Two workers that do so at once write equal words,
or one of two that are both right.

Statistics of how far the recall of sampled queries is from their targets.

A sample is a query, and its value the query's recall less its target: hits of one query are found or missed together,
so the error is that of queries, not of hits.

When the settings of an index move by a step: up quickly if recall is too low, down slowly if less would suffice.

At a step above the first, sampled queries are also repeated with the settings of the step below. So it is measured, not
guessed, whether these would suffice.

A move down needs far more certainty than one up, and more each time that it had to be taken back. So at steady recall
the settings come to rest: where the target is met narrowly, the step below is not significantly above the target.

Steps of the effective target: what is asked for, so that the target is met on live queries.

A step leaves 0.8 of the misses that the step before allows: a target of 0.95 becomes 0.96, 0.968, 0.974 and so on. The
targets that requests name are moved by as many steps. The last step is exact search.
"""

from __future__ import annotations

import logging
import math
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from scannery.indexer import Manifest, OpenIndex
from scannery.runtime.sharing import SharedTable

__all__ = [
    "EXACT_STEP",
    "FIELDS",
    "Estimate",
    "Evidence",
    "Findings",
    "IndexControl",
    "RecallController",
    "distinct_steps",
    "is_undecided",
    "next_move",
    "no_step",
    "raised_target",
    "trying",
]


FIELDS = 4
"""Numbers that an evidence is made of."""
PRIOR_VARIANCE = 0.04
PRIOR_QUERIES = 6.0
"""Some queries of this variance are assumed besides those seen: if all have been found, the error is not 0."""


class Evidence:
    """Deviations of queries, where older ones count less. Not safe to use from several threads."""

    __slots__ = ("_keep", "_squares", "_sum", "_weight", "_weights2")

    def __init__(self, window: float = math.inf, numbers: Sequence[float] = (0.0, 0.0, 0.0, 0.0)) -> None:
        """Begin.

        Args:
            window: queries after which an older one counts 1/e as much.
            numbers: of another evidence.

        """
        self._keep = 1 - 1 / window
        self._weight, self._weights2, self._sum, self._squares = numbers

    @classmethod
    def merged(cls, rows: Iterable[Sequence[float]]) -> Evidence:
        """Return the evidence of several processes, from their `numbers`."""
        return cls(numbers=[sum(column) for column in zip(*rows, strict=True)] or [0.0] * FIELDS)

    def add(self, deviation: float) -> None:
        """Add a query: its recall less its target."""
        keep = self._keep
        self._weight = self._weight * keep + 1
        self._weights2 = self._weights2 * keep * keep + 1
        self._sum = self._sum * keep + deviation
        self._squares = self._squares * keep + deviation * deviation

    @property
    def numbers(self) -> tuple[float, ...]:
        """What the evidence is made of."""
        return self._weight, self._weights2, self._sum, self._squares

    @property
    def count(self) -> float:
        """How many queries of equal weight would say as much."""
        return self._weight**2 / self._weights2 if self._weights2 else 0.0

    @property
    def mean(self) -> float:
        """The mean deviation; 0 without queries."""
        return self._sum / self._weight if self._weight else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean; infinite without queries."""
        count = self.count
        if not count:
            return math.inf
        variance = max(self._squares / self._weight - self.mean**2, 0.0)
        return math.sqrt(variance * count + PRIOR_VARIANCE * PRIOR_QUERIES) / count

    def below(self, errors: float) -> bool:
        """Return whether the mean is below 0 by more than some standard errors."""
        return self.mean + errors * self.error < 0

    def above(self, errors: float) -> bool:
        """Return whether the mean is above 0 by more than some standard errors."""
        return self.mean - errors * self.error > 0


SLOW_WINDOW = 2000.0
FAST_WINDOW = 96.0
"""Queries; the fast one sees a change of the questions before the slow one."""
LEAST = 48
LEAST_FAST = 32
MANY = 400
"""Queries from which on one standard error suffices for a move up: near the target, the rest is doubt."""
UP = 2.0
UP_FAST = 3.5
UP_MANY = 1.0
"""Standard errors for a move up."""
FRESH_UP = 16
"""New queries since the last move for a move up: the same queries alone must not lead up many steps."""
LEAST_DOWN = 100
LEAST_DOWN_FAST = 48
FRESH_DOWN = 64
"""New queries since the last move for a move down."""
DOWN = 2.5
DOWN_FAST = 4.0
"""Standard errors for a move down."""
DOWN_MORE = 0.75
"""Further standard errors for each move down that was taken back."""
MOST_TAKEN_BACK = 4
SETTLED = 200
"""Queries after which the estimate is certain enough if it is clear."""
CERTAIN = 1000
"""Queries after which it is, clear or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What all processes have found with the settings in force."""

    now: Evidence
    """Recall with the settings in force."""
    now_fast: Evidence
    """The same of the last queries."""
    less: Evidence
    """Recall with those of the step below; empty at the first step."""
    less_fast: Evidence
    fresh: float
    """Queries that were not asked before the last move."""


def next_move(findings: Findings, *, taken_back: int, lowest: bool, highest: bool) -> int:
    """Return the direction of the next step: 1 (more effort), -1 (less), or 0 (none).

    Args:
        findings: with the settings in force.
        taken_back: moves down that were followed by a move up.
        lowest: whether there is no step below.
        highest: whether there is none above.

    """
    if not highest and _too_low(findings):
        return 1
    return -1 if not lowest and _less_suffices(findings, taken_back) else 0


def _too_low(findings: Findings) -> bool:
    now, fast = findings.now, findings.now_fast
    if findings.fresh < FRESH_UP:
        return False
    if fast.count >= LEAST_FAST and fast.below(UP_FAST):
        return True
    return now.count >= LEAST and (now.below(UP) or (now.count >= MANY and now.below(UP_MANY)))


def _less_suffices(findings: Findings, taken_back: int) -> bool:
    if findings.fresh < FRESH_DOWN:
        return False
    more = DOWN_MORE * min(taken_back, MOST_TAKEN_BACK)
    less, fast = findings.less, findings.less_fast
    if less.count >= LEAST_DOWN and less.above(DOWN + more):
        return True
    return fast.count >= LEAST_DOWN_FAST and fast.above(DOWN_FAST + more)


def is_undecided(findings: Findings) -> bool:
    """Return whether more queries should be sampled: the estimate is uncertain, or a move may be near."""
    now, fast = findings.now, findings.now_fast
    if now.count < SETTLED or (fast.count >= LEAST_FAST / 2 and fast.below(1.0)):
        return True
    if findings.less_fast.count >= LEAST_FAST and findings.less_fast.above(DOWN):
        return True
    return now.count < CERTAIN and not now.above(UP)


MISSES_KEPT = 0.8
EXACT_STEP = 32
"""The last step: exact search."""

SettingsT = TypeVar("SettingsT")


def raised_target(target: float, step: int) -> float:
    """Return the effective target, 1 for exact search."""
    return 1.0 if step >= EXACT_STEP else 1 - (1 - target) * MISSES_KEPT**step


def has_choice(settings_for: Callable[[float], Sequence[SettingsT | None]], target: float) -> bool:
    """Return whether a target has settings other than exact search in some segment."""
    return any(each is not None for each in settings_for(target))


def distinct_steps(
    settings_for: Callable[[float], Sequence[SettingsT | None]], target: float
) -> tuple[int, ...]:
    """Return the steps that change the settings of an index, ascending: 0 first, exact search last.

    Curves have few points, so that several steps in turn may have the same settings.

    Args:
        settings_for: returns the settings of each segment for a target; None: exact search.
        target: of the index.

    """
    if not has_choice(settings_for, target):
        return (0,)  # exact anyway
    steps, last = [0], settings_for(target)
    for step in range(1, EXACT_STEP):
        settings = settings_for(raised_target(target, step))
        if settings == last:
            continue
        if all(each is None for each in settings):
            break
        steps.append(step)
        last = settings
    return (*steps, EXACT_STEP)


_LOG = logging.getLogger(__name__)

_EPOCHS = 1 << 16
_NUMBERS = 1 << 16
"""Numbers of versions: later ones begin at 0 again."""
MAX_TAKEN_BACK_COUNTED = 127


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
        taken_back = min(self.taken_back + (self.down and not down), MAX_TAKEN_BACK_COUNTED)
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
    """Target recall of the index."""
    effective: float
    """The target that chooses the settings."""
    recall: float
    """Recall of the sampled queries: the target plus their mean deviation from their targets."""
    error: float
    """Its standard error; infinite: none was sampled."""
    queries: float


@dataclass(slots=True)
class _LocalEvidence:
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

    def __init__(
        self, table: SharedTable, position: int, process: int, workers: int, index: OpenIndex
    ) -> None:
        """Control a version of an index.

        Args:
            table: shared by the workers.
            position: of the index in it.
            process: number of this worker.
            workers: number of workers.
            index: the open version.

        """
        self._table, self._position, self._process, self._workers = table, position, process, workers
        self.index, self.index_id = index.manifest.index, index.manifest.index_id
        self.target = index.spec.target_recall
        self.version = _version_of(index.manifest)
        self.curves = _curves(index.manifest)
        self.steps = distinct_steps(index.settings_for, self.target)
        """Steps that change the settings."""
        self._last = 0
        self._local = _LocalEvidence(0, workers)
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
        is_earlier = before is not None and state.version == before.version
        # Another worker may have opened a version between that before and this one.
        is_earlier |= goes_on and _is_later(self.version, state.version)
        # The allowed misses of each step are the same share of the target's.
        self._set(state.of_version(self.version, stays=alike and is_earlier))

    @property
    def step(self) -> int:
        """The step in force in this thread."""
        return self.read()

    def read(self) -> int:
        """Return the step in force in this thread; for snapshots."""
        if _TRYING.step is not None:
            return _TRYING.step
        word = self._table.words[self._position]
        if word >> 32 == self.version:
            self._last = word >> 8 & 0xFF
        return self._last

    @property
    def is_undecided(self) -> bool:
        """Whether more queries should be sampled."""
        return len(self.steps) > 1 and self._decided != self.word

    @property
    def word(self) -> int:
        """The state in force; evidence belongs to one state."""
        return self._table.words[self._position]

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
        if self._local.word != word:
            self._local = _LocalEvidence(word, self._workers)
        local = self._local
        for part in local.parts[:2]:
            part.add(now)
        if less is not None:
            for part in local.parts[2:]:
                part.add(less)
        local.fresh += fresh

    def decide(self) -> int:
        """Publish what was recorded, and move by a step if it is due; return the direction."""
        word, state = self.word, self._state
        if not self.is_current:
            return 0
        if self._local.word == word:
            self._table.write(self._process, self._position, word, self._local.numbers)
        findings = self._findings(word)
        position = self._position_of(state.step)
        move = next_move(
            findings,
            taken_back=state.taken_back,
            lowest=position == 0,
            highest=position == len(self.steps) - 1,
        )
        self._decided = 0 if move or is_undecided(findings) else word
        if move:
            step = self.steps[position + move]
            self._tell(findings, state.step, step)
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
        rows = self._table.read(self._position, word)
        parts = [Evidence.merged(row[i : i + FIELDS] for row in rows) for i in range(0, 4 * FIELDS, FIELDS)]
        fresh = sum(row[4 * FIELDS] for row in rows)
        return Findings(now=parts[0], now_fast=parts[1], less=parts[2], less_fast=parts[3], fresh=fresh)

    def _tell(self, findings: Findings, before: int, step: int) -> None:
        up = step > before
        slow, fast = (findings.now, findings.now_fast) if up else (findings.less, findings.less_fast)
        evidence = slow if (slow.mean < 0) == up else fast  # the questions have just changed
        what = "is below" if up else "would also reach"
        _LOG.info(
            "index %s: recall of %.0f sampled queries %s the target %.3f: %.3f ± %.3f%s; effective target %.4f → %.4f",
            self.index, evidence.count, what, self.target, self.target + evidence.mean, evidence.error,
            "" if up else " with less effort",
            raised_target(self.target, before), raised_target(self.target, step),
        )  # fmt: skip

    def _position_of(self, step: int) -> int:
        """Return the position of a step in `steps`, or of the next lower one: another version had other steps."""
        return max(position for position, each in enumerate(self.steps) if each <= step or position == 0)

    def _has_curves_of(self, before: IndexControl) -> bool:
        """Return whether most rows with curves are in segments with the same curves as before."""
        rows = sum(rows for _, rows in self.curves.values())
        same = sum(
            rows for key, (curve, rows) in self.curves.items() if before.curves.get(key, ("", 0))[0] == curve
        )
        return self.target == before.target and 2 * same >= rows > 0

    @property
    def _state(self) -> _State:
        return _State.of(self._table.words[self._position])

    def _set(self, state: _State) -> None:
        self._table.words[self._position] = state.word


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
            position = self._table.place(_identity(name, index_id))
            if position is None:
                _LOG.warning(
                    "index %s: its recall is not held: too many indexes have settings to choose", name
                )
                return
            control = IndexControl(self._table, position, self._process, self._workers, index)
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
        return {name: control.estimate() for name, control in list(self._controls.items())}


def no_step() -> int:
    """Return 0: the settings of the curve, for versions whose recall is not controlled."""
    return 0


def _version_of(manifest: Manifest) -> int:
    """Return 16 bits that stand for the index, also for one that took the name of another, and 16 of its version."""
    index = zlib.crc32(str(manifest.index_id).encode()) & 0xFFFF
    return index << 16 | manifest.version % _NUMBERS


def _is_later(version: int, reference: int) -> bool:
    """Return whether a version is a later one of the same index."""
    return version >> 16 == reference >> 16 and 0 < (version - reference) % _NUMBERS < _NUMBERS // 2


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
