"""Fit the encoder of queries to judged queries.

Each relevant document competes with all that are not, by softmax over the scores of documents, which are those of their
best passages: what a search returns. Scores are multiplied by a scale, so that a difference of a few hundredths
decides. The loss is that of Karpukhin et al., "Dense Passage Retrieval for Open-Domain Question Answering", EMNLP 2020;
Lee et al., "Learning Dense Representations of Phrases at Scale", ACL 2021, train queries alone against a fixed index.

Batch and dropout of a step depend on the seed and its number alone, so that a run which was killed goes on with the
same numbers.

Shapes: Q queries, B queries of a step, N rows, C documents, D dimensions.
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
        device: str,
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
            device: as torch names it.

        """
        import torch

        self._model, self._queries = model, queries
        self._rows_ND = torch.from_numpy(rows.vectors_ND).to(device)
        self._documents_N = torch.from_numpy(rows.documents_N).to(device)
        self._documents = int(rows.documents_N.max()) + 1
        self._distance, self._scale = distance, scale
        self._batch, self._seed = min(batch, len(queries)), seed

    def loss(self, step: int) -> torch.Tensor:
        """Return the loss of a step, with gradients."""
        batch = [self._queries[number] for number in self._numbers(step)]
        scores_BC = self._document_scores(self._model.vectors([query.tokens for query in batch]))
        return _competition(self._scale * scores_BC, [query.relevant for query in batch])

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


def _competition(scores_BC: torch.Tensor, relevant: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return minus the mean logarithmic chance of the relevant documents, each among all that are not."""
    import torch

    losses = []
    for scores_C, numbers in zip(scores_BC, relevant, strict=True):
        others_C = scores_C.clone()
        others_C[list(numbers)] = -torch.inf
        losses.append(torch.nn.functional.softplus(others_C.logsumexp(0) - scores_C[list(numbers)]).mean())
    return torch.stack(losses).mean()
