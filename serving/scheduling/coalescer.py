"""Requests that arrive while others are being answered, answered together.

A few are answered at once, each as it comes. Those that come meanwhile wait; the first of them goes on when one ends,
and takes all the others along that ask in the same way. So nothing waits for company, and batches grow with the load.
In a batch, the memory that a search reads and the Python around it are paid once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import DeadlineError
from scannery.serving.scheduling.permits import CallerGoneError, current_permit, still_wanted

__all__ = ["Coalescer"]

AskedT = TypeVar("AskedT")
AnswerT = TypeVar("AnswerT")


class _Waiter(Generic[AskedT, AnswerT]):
    """A request that waits until it is answered with others, or has to answer them."""

    __slots__ = ("answers", "asked", "deadline", "gone", "key", "leads", "ready", "wanted")

    def __init__(self, key: tuple[object, ...], asked: AskedT, deadline: Deadline) -> None:
        self.key, self.asked, self.deadline = key, asked, deadline
        self.wanted = still_wanted()
        self.leads = self.gone = False
        self.answers: list[AnswerT] = []
        """The answer, if there is one; none: the batch failed."""
        self.ready = threading.Lock()
        self.ready.acquire()


class Coalescer(Generic[AskedT, AnswerT]):
    """Answers requests, several at once where they come faster than they are answered. For use by several threads."""

    def __init__(self, *, at_once: int, largest: int) -> None:
        """Take how many batches are answered at once, and how many requests a batch has at most."""
        self._at_once, self._largest = at_once, largest
        self._lock = threading.Lock()
        self._running = 0
        self._waiting: deque[_Waiter[AskedT, AnswerT]] = deque()

    def answer(
        self,
        key: tuple[object, ...],
        asked: AskedT,
        deadline: Deadline,
        answered: Callable[[Sequence[AskedT], Deadline], Sequence[AnswerT]],
    ) -> AnswerT:
        """Return what `answered` gives for a request.

        Args:
            key: only requests with the same are answered together: the same objects.
            asked: the request.
            deadline: of the request; that of a batch is the last of all in it.
            answered: answers requests; called in the thread of one of them, without locks.

        Raises:
            DeadlineError: the deadline passed while the request waited.
            GoneError: its caller hung up.
            Exception: what `answered` raises for this request alone.

        """
        with self._lock:
            alone = self._running < self._at_once
            if alone:
                self._running += 1
            else:
                waiter: _Waiter[AskedT, AnswerT] = _Waiter(key, asked, deadline)
                self._waiting.append(waiter)
        if alone:
            try:
                return answered([asked], deadline)[0]
            finally:
                self._hand_on()
        self._await(waiter)
        if waiter.gone:
            raise CallerGoneError
        if waiter.leads:
            return self._lead(waiter, answered)
        # What a batch failed with may be the fault of another.
        return waiter.answers[0] if waiter.answers else answered([asked], deadline)[0]

    def _await(self, waiter: _Waiter[AskedT, AnswerT]) -> None:
        if turn := current_permit():
            turn.pause()
        if waiter.ready.acquire(timeout=min(waiter.deadline.remaining_s, threading.TIMEOUT_MAX)):
            return
        with self._lock:
            leads = waiter.leads
            if waiter in self._waiting:
                self._waiting.remove(waiter)
        if leads:
            self._hand_on()
        raise DeadlineError("the deadline passed while the request waited for its turn")

    def _lead(
        self,
        waiter: _Waiter[AskedT, AnswerT],
        answered: Callable[[Sequence[AskedT], Deadline], Sequence[AnswerT]],
    ) -> AnswerT:
        followers = self._taken(waiter.key)
        deadline = max((waiter.deadline, *(each.deadline for each in followers)), key=lambda each: each.at_s)
        try:
            answers = answered([waiter.asked, *(each.asked for each in followers)], deadline)
            for follower, answer in zip(followers, answers[1:], strict=True):
                follower.answers.append(answer)
            return answers[0]
        except Exception:
            if not followers:
                raise
            return answered([waiter.asked], waiter.deadline)[0]
        finally:
            self._hand_on()
            for follower in followers:
                follower.ready.release()

    def _taken(self, key: tuple[object, ...]) -> list[_Waiter[AskedT, AnswerT]]:
        """Return those that wait with the key, and wait no longer."""
        taken: list[_Waiter[AskedT, AnswerT]] = []
        with self._lock:
            for _ in range(len(self._waiting)):
                waiter = self._waiting.popleft()
                if _dropped(waiter):
                    continue
                same = all(one is two for one, two in zip(key, waiter.key, strict=True))
                if same and len(taken) < self._largest - 1:
                    taken.append(waiter)
                else:
                    self._waiting.append(waiter)
        return taken

    def _hand_on(self) -> None:
        """Let the first that waits go on; nobody waits: one less is answered."""
        with self._lock:
            while self._waiting:
                first = self._waiting.popleft()
                if not _dropped(first):
                    first.leads = True
                    first.ready.release()
                    return
            self._running -= 1


def _dropped(waiter: _Waiter[AskedT, AnswerT]) -> bool:
    """Let a request go whose caller hung up."""
    if waiter.wanted():
        return False
    waiter.gone = True
    waiter.ready.release()
    return True
