"""Fit an encoder to pairs: each text competes for its passage with those of the batch, and each passage for its text.

The loss is that of Henderson et al., "Efficient Natural Language Response Suggestion for Smart Reply", 2017, in both
directions. A batch is computed in parts of texts of similar length. Where it has more tokens than fit, the activations
of a part are computed again for its gradients, with the same dropout: the idea of Gao et al., "Scaling Deep Contrastive
Learning Batch Size under Memory Limited Setup", 2021.

Shapes: B pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from scannery.embed.models.loading import Side
from scannery.embed.models.trainable import TrainableModel
from scannery.indexer.spec.spec import Distance
from scannery.training.pairs.batches import PairBatches

if TYPE_CHECKING:
    import torch

__all__ = ["PairSteps"]

TEXTS_AT_ONCE = 16
"""Texts of a part: enough to fill two cores, few enough to waste little on padding."""
MAX_TOKENS = 1 << 13
"""Tokens of the queries, or of the passages, of a batch whose activations are kept; with MiniLM, up to 5 GB."""


class PairSteps:
    """The steps of a training of pairs."""

    def __init__(
        self,
        model: TrainableModel,
        batches: PairBatches,
        *,
        distance: Distance,
        scale: float,
        dtype: str = "float32",
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        """Prepare.

        Args:
            model: that is trained.
            batches: of the pairs.
            distance: of the index.
            scale: of scores.
            dtype: that matrices are multiplied in; weights and scores are float32.
            max_tokens: tokens of a batch whose activations are kept.

        """
        self._model, self._batches = model, batches
        self._distance, self._scale = distance, scale
        self._dtype, self._max_tokens = dtype, max_tokens

    def loss(self, step: int) -> torch.Tensor:
        """Return the loss of a step, with gradients."""
        import torch

        pairs = self._batches.pairs(step)
        queries_BD = self._vectors([pair.query for pair in pairs], "query")
        passages_BD = self._vectors([pair.passage for pair in pairs], "document")
        scores_BB = self._scale * self._similarities(queries_BD, passages_BD)
        numbers_B = torch.arange(len(pairs), device=scores_BB.device)
        cross_entropy = torch.nn.functional.cross_entropy
        return (cross_entropy(scores_BB, numbers_B) + cross_entropy(scores_BB.T, numbers_B)) / 2

    def _vectors(self, texts: Sequence[str], side: Side) -> torch.Tensor:
        """Return the vectors of texts with their gradients, (B, D)."""
        import torch
        from torch.utils.checkpoint import checkpoint

        items = self._model.prepare(texts, side)
        order = sorted(range(len(items)), key=lambda number: len(items[number]))
        keeps_all = sum(map(len, items)) <= self._max_tokens
        lower = self._dtype != "float32"
        with torch.autocast(self._model.device_type, getattr(torch, self._dtype), enabled=lower):
            parts = [
                self._model.vectors(part, side)
                if keeps_all
                else checkpoint(self._model.vectors, part, side, use_reentrant=False)
                for part in _parts([items[number] for number in order])
            ]
        vectors_BD = torch.cat(parts)
        return vectors_BD[torch.argsort(torch.tensor(order, device=vectors_BD.device))]

    def _similarities(self, queries_BD: torch.Tensor, passages_BD: torch.Tensor) -> torch.Tensor:
        """Return the scores of all passages for all queries, as of a search, (B, B)."""
        import torch

        if self._distance == "squared_l2":
            return -torch.cdist(queries_BD, passages_BD).square()
        if self._distance == "cosine":
            queries_BD = torch.nn.functional.normalize(queries_BD, dim=1)
            passages_BD = torch.nn.functional.normalize(passages_BD, dim=1)
        return queries_BD @ passages_BD.T


def _parts(items: Sequence[Any]) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), TEXTS_AT_ONCE):
        yield items[start : start + TEXTS_AT_ONCE]
