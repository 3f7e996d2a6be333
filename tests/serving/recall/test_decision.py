"""The moves of the settings, on made-up streams of queries: they converge, come to rest, and follow changes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

import pytest

from scannery.serving.recall.controller import (
    EXACT_STEP,
    FAST_WINDOW,
    SLOW_WINDOW,
    Evidence,
    Findings,
    distinct_steps,
    next_move,
    raised_target,
)

TARGET = 0.95
STEPS = 20
KEPT = 256
AT_ONCE = 16


class Stream:
    """Queries of a given mean recall at each step, and the moves that they lead to."""

    def __init__(self, recall: Callable[[int], float], seed: int = 0) -> None:
        self.recall, self.step, self.moves, self.taken_back = recall, 0, list[tuple[int, int]](), 0
        self.asked = 0
        self._random, self._down = random.Random(seed), False
        self._queries: deque[float] = deque(maxlen=KEPT)
        self._reset()

    def _reset(self) -> None:
        self._now, self._now_fast = Evidence(SLOW_WINDOW), Evidence(FAST_WINDOW)
        self._less, self._less_fast = Evidence(SLOW_WINDOW), Evidence(FAST_WINDOW)
        self._fresh = 0

    def ask(self, count: int) -> None:
        for _ in range(count):
            self.asked += 1
            hard = self._random.random()
            self._queries.append(hard)
            self._repeat(hard)
            self._fresh += 1
            if self.asked % AT_ONCE == 0:
                self._decide()

    def _repeat(self, hard: float) -> None:
        for step, parts in (
            (self.step, (self._now, self._now_fast)),
            (self.step - 1, (self._less, self._less_fast)),
        ):
            for part in parts if step >= 0 else ():
                part.add(self._found(hard, step) - TARGET)

    def _found(self, hard: float, step: int) -> float:
        """Return the recall of one query: most find all, some miss much; their mean is `recall`."""
        missing = 2 * (1 - self.recall(step))
        return 1.0 if hard >= missing else hard / missing

    def _decide(self) -> None:
        found = Findings(
            now=self._now,
            now_fast=self._now_fast,
            less=self._less,
            less_fast=self._less_fast,
            fresh=self._fresh,
        )
        move = next_move(found, taken_back=self.taken_back, lowest=self.step == 0, highest=self.step == STEPS)
        if move:
            self.taken_back += self._down and move > 0
            self._down = move < 0
            self.step += move
            self.moves.append((self.asked, self.step))
            self._reset()
            for hard in self._queries:
                self._repeat(hard)


def misses(share: float) -> Callable[[int], float]:
    """Return the recall at each step, if a share is missed at the first one."""
    return lambda step: 1 - share * 0.8**step


@pytest.mark.system
@pytest.mark.parametrize("seed", range(3))
def test_too_low_a_recall_is_raised_within_2000_queries_and_rests(seed: int) -> None:
    stream = Stream(misses(0.11), seed)
    stream.ask(2000)
    assert stream.recall(stream.step) >= TARGET - 0.007
    moves = len(stream.moves)
    stream.ask(98_000)
    assert len(stream.moves) - moves <= 10, stream.moves
    assert TARGET <= stream.recall(stream.step) < 0.97
    assert {abs(b - a) for (_, a), (_, b) in zip(stream.moves, stream.moves[1:], strict=False)} == {1}


def test_a_recall_that_is_well_above_moves_nothing() -> None:
    stream = Stream(misses(0.02))
    stream.ask(20_000)
    assert not stream.moves


def test_easier_questions_lead_back_down_and_harder_ones_up_again() -> None:
    stream = Stream(misses(0.11))
    stream.ask(3000)
    assert stream.step >= 3
    stream.recall = misses(0.01)
    stream.ask(1000)
    assert stream.step == 0
    stream.recall = misses(0.11)
    stream.ask(2000)
    assert stream.recall(stream.step) >= TARGET - 0.007


def test_one_unlucky_query_moves_nothing() -> None:
    stream = Stream(lambda step: 1.0)
    stream.ask(50)
    stream._now.add(-TARGET)
    stream._now_fast.add(-TARGET)
    stream._decide()
    assert not stream.moves


def test_perfect_queries_leave_some_doubt() -> None:
    evidence = Evidence()
    assert (evidence.count, evidence.mean, evidence.error) == (0, 0, float("inf"))
    for _ in range(10):
        evidence.add(0.05)
    assert evidence.error == pytest.approx((0.04 * 6) ** 0.5 / 10)
    assert not evidence.above(1.5)
    merged = Evidence.merged([evidence.numbers, evidence.numbers])
    assert merged.count == pytest.approx(20)
    assert merged.mean == pytest.approx(0.05)
    assert Evidence.merged([]).count == 0


def test_steps_keep_four_fifths_of_the_misses_and_end_with_exact_search() -> None:
    assert [round(raised_target(0.95, step), 4) for step in (0, 1, 2, EXACT_STEP)] == [0.95, 0.96, 0.968, 1]
    curve = {0.96: "two leaves", 0.985: "all leaves"}

    def settings(target: float) -> list[str | None]:
        return [next((name for recall, name in curve.items() if recall >= target), None)]

    steps = distinct_steps(settings, 0.95)
    assert [settings(raised_target(0.95, step)) for step in steps] == [["two leaves"], ["all leaves"], [None]]
    assert distinct_steps(lambda target: [None], 0.95) == (0,)
