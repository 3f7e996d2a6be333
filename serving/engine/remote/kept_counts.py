"""The integers of BM25 weights that a root keeps, so that words which were asked before need no call to the leaves.

A state of an index never changes, and neither do its counts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from typing import TypeAlias

from scannery.indexer import CorpusCounts
from scannery.v1.leaf_pb2 import At

__all__ = ["KeptCounts"]

MAX_STATES = 8
MAX_TERMS = 1 << 16
"""Of one state: about 8 MB."""

_Key: TypeAlias = tuple[str, str, int, int]


class KeptCounts:
    """Counts over all groups of leaves, by state. Safe to use from several threads."""

    def __init__(self) -> None:
        self._states: OrderedDict[_Key, tuple[int, int, dict[str, int]]] = OrderedDict()
        """Rows with words, number of words, and frequencies; the state that was asked for last is last."""
        self._lock = threading.Lock()

    def find(self, at: At, terms: Iterable[str]) -> CorpusCounts | None:
        """Return the counts of a state with the frequencies that are known; None: nothing is known of it."""
        with self._lock:
            known = self._states.get(_key(at))
            if known is None:
                return None
            self._states.move_to_end(_key(at))
            documents, length, frequencies = known
            found = {term: frequencies[term] for term in terms if term in frequencies}
            return CorpusCounts(documents, length, found)

    def keep(self, at: At, counts: CorpusCounts) -> None:
        """Keep the counts of a state; the state that was not asked for the longest time is dropped."""
        with self._lock:
            *_, frequencies = self._states.setdefault(_key(at), (counts.documents, counts.length, {}))
            if len(frequencies) + len(counts.frequencies) > MAX_TERMS:
                frequencies.clear()
            if len(counts.frequencies) <= MAX_TERMS:
                frequencies.update(counts.frequencies)
            while len(self._states) > MAX_STATES:
                self._states.popitem(last=False)


def _key(at: At) -> _Key:
    return at.index, at.index_id, at.version, at.sequence
