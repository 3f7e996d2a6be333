"""Fit the encoder of queries to judged queries.

Each relevant document competes with all that are not, by softmax over the scores of documents, which are those of their
best passages: what a search returns. Scores are multiplied by a scale, so that a difference of a few hundredths
decides. The loss is that of Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering", EMNLP 2020;
Lee et al., "Learning Dense Representations of Phrases at Scale", ACL 2021, train queries alone against a fixed index.

Batch and dropout of a step depend on the seed and its number alone, so that a run which was killed goes on with the
same numbers.

Shapes: Q queries, B queries of a step, N rows, C documents, R relevant ones of a query at most, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from scannery.embed.models.trainable import TrainableModel
from scannery.indexer.spec.spec import Distance
from scannery.training.query_side.rows import ScoredRows

if TYPE_CHECKING:
    import torch

__all__ = ["QuerySteps", "TrainingQuery"]


@dataclass(frozen=True, slots=True)
class TrainingQuery:
    """A query with what answers it."""

    tokens: Any
    """Tokens, as `TrainableModel.prepare` returns them."""
    relevant: Sequence[int]
    """Numbers of the relevant documents, at least one."""


class QuerySteps:
    """The steps of a training of queries."""

    def __init__(
        self,
        model: TrainableModel,
        queries: Sequence[TrainingQuery],
        rows: ScoredRows,
        *,
        distance: Distance,
        scale: float,
        batch: int,
        seed: int,
    ) -> None:
        """Prepare.

        Args:
            model: that is trained.
            queries: at least one.
            rows: that they are trained against.
            distance: of the index.
            scale: of scores.
            batch: queries of a step at most.
            seed: of the order of queries.

        """
        import torch

        self._model, self._queries = model, queries
        self._rows_ND = torch.from_numpy(rows.vectors_ND).to(model.device.name)
        self._documents_N = torch.from_numpy(rows.documents_N).to(model.device.name)
        self._documents = int(rows.documents_N.max()) + 1
        self._most_relevant = max(len(query.relevant) for query in queries)
        self._distance, self._scale = distance, scale
        self._batch, self._seed = min(batch, len(queries)), seed

    def loss(self, step: int) -> torch.Tensor:
        """Return the loss of a step, with gradients."""
        import torch

        batch = [self._queries[number] for number in self._numbers(step)]
        device, seed = self._model.device, int(torch.randint(1 << 62, ()))

        def vectors() -> torch.Tensor:
            device.seed(seed)
            return self._model.vectors([query.tokens for query in batch])

        scores_BC = self._document_scores(device.vectors(vectors, kept=True))
        # Of one shape in all steps. The device may have rows of no query.
        relevant_BR = torch.full((len(scores_BC), self._most_relevant), self._documents)
        for row, query in enumerate(batch):
            relevant_BR[row, : len(query.relevant)] = torch.tensor(query.relevant)
        return _competition(self._scale * scores_BC, device.put(relevant_BR).long()) / len(batch)

    def _numbers(self, step: int) -> list[int]:
        """Return the numbers of the queries of a step: each pass over all of them has an order of its own."""
        count = len(self._queries)
        orders: dict[int, np.ndarray] = {}
        numbers = []
        for position in range(step * self._batch, (step + 1) * self._batch):
            turn, number = divmod(position, count)
            if turn not in orders:
                orders[turn] = np.random.default_rng((self._seed, turn)).permutation(count)
            numbers.append(int(orders[turn][number]))
        return numbers

    def _document_scores(self, queries_BD: torch.Tensor) -> torch.Tensor:
        """Return the best score of the rows of each document, (B, C)."""
        import torch

        if self._distance == "cosine":
            queries_BD = torch.nn.functional.normalize(queries_BD, dim=1)
        scores_BN = queries_BD @ self._rows_ND.T
        if self._distance == "squared_l2":
            squares_N = self._rows_ND.square().sum(dim=1)
            scores_BN = 2 * scores_BN - squares_N - queries_BD.square().sum(dim=1, keepdim=True)
        lowest_BC = scores_BN.new_full((len(queries_BD), self._documents), -torch.inf)
        return lowest_BC.scatter_reduce(1, self._documents_N.expand_as(scores_BN), scores_BN, "amax")


def _competition(scores_BC: torch.Tensor, relevant_BR: torch.Tensor) -> torch.Tensor:
    """Return minus the logarithmic chance of the relevant documents, each among all that are not, by query.

    Args:
        scores_BC: scores of documents.
        relevant_BR: numbers of the relevant ones, int64; C: none.

    Returns:
        The sum over queries of the mean over their relevant documents.

    """
    import torch

    scores_BC1 = torch.nn.functional.pad(scores_BC, (0, 1))
    irrelevant_BC = scores_BC1.scatter(1, relevant_BR, -torch.inf)[:, :-1]
    differences_BR = irrelevant_BC.logsumexp(1, keepdim=True) - scores_BC1.gather(1, relevant_BR)
    counts_BR = (relevant_BR < scores_BC.size(1)).float()
    losses_BR = torch.nn.functional.softplus(differences_BR) * counts_BR
    return (losses_BR.sum(dim=1) / counts_BR.sum(dim=1).clamp(min=1)).sum()
