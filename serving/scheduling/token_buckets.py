"""Token buckets that the workers of a server share, without a lock that a killed worker could hold.

A bucket is one word: the time when it will be full again (the generic cell rate algorithm of ITU-T I.371). To take
from it moves that time on; if it would then be more than the burst ahead, nothing is taken. The word is changed by
compare-and-swap, so that two workers never take the same token.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numba.core import types
from numba.extending import intrinsic

from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.kernels.fused import compiled
from scannery.runtime.sharing import SharedBuckets

__all__ = ["MAX_COST_NS", "TokenBuckets"]

MAX_COST_NS = 86_400 * 10**9
"""Longest that one request can keep a bucket from being full."""


def _swap(typing: Any, words: Any, at: Any, before: Any, after: Any) -> tuple[Any, Any]:
    """Return the signature, and what generates the code, for arguments of these types."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array, at_, before_, after_ = values
        word = builder.gep(context.make_array(signature.args[0])(context, builder, array).data, [at_])
        result = builder.cmpxchg(word, before_, after_, "seq_cst", "seq_cst")
        return builder.extract_value(result, 1)

    return types.boolean(words, types.intp, types.int64, types.int64), generate


swap = cast("Callable[[np.ndarray, int, int, int], bool]", intrinsic(_swap))
"""Replaces a word of an int64 array if it still has the value `before`; returns whether it did."""


def _take(
    words: np.ndarray,
    at: int,
    first_ns: int,
    second_ns: int,
    third_ns: int,
    fourth_ns: int,
    fifth_ns: int,
    burst_ns: int,
    now_ns: int,
) -> int:
    """Take from the five buckets of a row and return 0, or take nothing, and return how long to wait and for which one.

    A bucket that is full gives any amount: else a batch that is larger than the burst would never be let in. Costs are
    single numbers, since numba takes these faster than an array.

    Returns:
        Nanoseconds times 8, plus the number of the bucket.

    """
    costs = (first_ns, second_ns, third_ns, fourth_ns, fifth_ns)
    for number in range(5):
        cost_ns = costs[number]
        while cost_ns > 0:
            before = words[at + number]
            full_ns = max(before, now_ns)
            wait_ns = full_ns - now_ns - max(burst_ns - cost_ns, 0)
            if wait_ns > 0:
                for taken in range(number):
                    while costs[taken] > 0:
                        before = words[at + taken]
                        if swap(words, at + taken, before, before - costs[taken]):
                            break
                return int(wait_ns * 8 + number)
            if swap(words, at + number, before, full_ns + cost_ns):
                break
    return 0


def _owe(words: np.ndarray, at: int, cost_ns: int, now_ns: int) -> None:
    """Take from a bucket whatever it has."""
    while True:
        before = words[at]
        if swap(words, at, before, max(before, now_ns) + cost_ns):
            return


take = compiled(_take, brief=True)
owe = compiled(_owe, brief=True)


class TokenBuckets:
    """The buckets of callers, some for each. Safe to use from several threads and processes."""

    def __init__(self, shared: SharedBuckets, clock_ns: Callable[[], int] = time.monotonic_ns) -> None:
        """Use the memory that the workers share; `clock_ns` is the monotonic clock of the machine."""
        self._shared, self._clock_ns = shared, clock_ns
        self._words = np.frombuffer(shared.words, np.int64)
        with COMPILING:  # no request waits for it
            spare = np.zeros(5, np.int64)
            take(spare, 0, 0, 0, 0, 0, 0, 0, 0)
            owe(spare, 0, 0, 0)

    def take(self, name: str, costs_ns: Sequence[int], burst_ns: int) -> tuple[int, int]:
        """Take from the buckets of a caller, from all or from none.

        Args:
            name: of the caller.
            costs_ns: for each of five buckets, in how many nanoseconds it gets as much as is taken, at most
                MAX_COST_NS; 0: nothing is.
            burst_ns: in how many nanoseconds an empty bucket is full.

        Returns:
            How long to wait, in nanoseconds, and for which bucket; 0: it was taken.

        """
        first_ns, second_ns, third_ns, fourth_ns, fifth_ns = costs_ns
        wait = take(
            self._words, self._shared.row(name), first_ns, second_ns, third_ns, fourth_ns, fifth_ns,
            burst_ns, self._clock_ns(),
        )  # fmt: skip
        return (wait >> 3, wait & 7) if wait else (0, 0)

    def owe(self, name: str, number: int, cost_ns: int) -> None:
        """Take from a bucket of a caller what it has already used, also if it is empty: it fills up later."""
        owe(self._words, self._shared.row(name) + number, min(cost_ns, MAX_COST_NS), self._clock_ns())
