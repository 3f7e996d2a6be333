"""The pairs of each step of a training: by its number and the seed alone, each of another document."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from scannery.pipelines.errors import CollectionError
from scannery.training.pairs.corpus import Corpus
from scannery.training.pairs.judged import JUDGED
from scannery.training.pairs.signals import SIGNALS, Pair, Signal

__all__ = ["PairBatches"]

ATTEMPTS = 1000
"""Rows of a signal that may give no pair, one after the other."""


class PairBatches:
    """Batches of pairs."""

    def __init__(
        self,
        corpus: Corpus,
        judged: Sequence[Pair],
        signals: Mapping[str, float],
        *,
        held_out: Collection[int],
        batch: int,
        seed: int,
        makers: Mapping[str, Signal] = SIGNALS,
    ) -> None:
        """Prepare.

        Args:
            corpus: whose passages give pairs.
            judged: pairs of judged queries.
            signals: weights of signals; those that give no pairs are left out.
            held_out: numbers of documents that give no pairs, and of none of `judged`.
            batch: pairs of a step at most.
            seed: of all batches.
            makers: of the pairs of the corpus, by signal.

        Raises:
            CollectionError: no signal gives pairs.

        """
        self._corpus, self._judged, self._seed, self._makers = corpus, judged, seed, makers
        self._documents = np.setdiff1d(np.arange(corpus.documents), np.array([*held_out], np.int64))
        self._batch = min(batch, len(self._documents))
        random = np.random.default_rng(seed)
        shares = {
            name: share
            for name, share in signals.items()
            if share > 0 and self._pair(name, random) is not None
        }
        if not shares:
            raise CollectionError(
                f"signals: none of {', '.join(signals)} gives pairs of this index", field="signals"
            )
        self.signals = tuple(shares)
        """Signals that give pairs."""
        self._shares = np.array([*shares.values()]) / sum(shares.values())

    def pairs(self, step: int) -> list[Pair]:
        """Return the pairs of a step."""
        random = np.random.default_rng((self._seed, step))
        pairs: dict[int, Pair] = {}
        for _ in range(ATTEMPTS * self._batch):
            if len(pairs) == self._batch:
                break
            pair = self._pair(self.signals[random.choice(len(self.signals), p=self._shares)], random)
            if pair is not None:
                pairs.setdefault(pair.document, pair)
        return [*pairs.values()]

    def _pair(self, signal: str, random: np.random.Generator) -> Pair | None:
        """Return a pair of a signal at random; None: ATTEMPTS rows gave none."""
        if signal == JUDGED:
            return self._judged[int(random.integers(len(self._judged)))] if self._judged else None
        # A document first: long ones would give most of the pairs.
        for _ in range(ATTEMPTS if len(self._documents) else 0):
            rows = self._corpus.rows_of(int(random.choice(self._documents)))
            pair = self._makers[signal](self._corpus, rows[random.integers(len(rows))], random)
            if pair is not None:
                return pair
        return None
