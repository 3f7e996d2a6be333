"""Fit an encoder to pairs: each text competes for its passage with those of the batch, and each passage for its text.

The loss is that of Henderson et al., "Efficient Natural Language Response Suggestion for Smart Reply", 2017, in both
directions. A batch is computed in parts of texts of similar length. Where it has more tokens than fit, the activations
of a part are computed again for its gradients, with the same dropout: the idea of Gao et al., "Scaling Deep Contrastive
Learning Batch Size under Memory Limited Setup", 2021.

Of several processes each computes some of the parts, and the loss of all pairs from the vectors of all processes. The
dropout of a part depends on the step and the part alone, so that the number of processes changes nothing but roundings.

Shapes: B pairs, R texts of both sides, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from scannery.embed.models.loading import Side
from scannery.embed.models.trainable import TrainableModel
from scannery.indexer.spec.spec import Distance
from scannery.training.pairs.batches import PairBatches
from scannery.training.pairs.signals import Pair
from scannery.training.runs.replicas import Replicas

if TYPE_CHECKING:
    import torch

__all__ = ["PairSteps"]

TEXTS_AT_ONCE = 16
"""Texts of a part: enough to fill two cores, few enough to waste little on padding."""
MAX_TOKENS = 1 << 13
"""Tokens of the queries, or of the passages, that a process has of a batch and keeps the activations of; with MiniLM,
up to 5 GB."""


class _Part(NamedTuple):
    """Texts that are computed together."""

    side: Side
    rows: list[int]
    """Numbers of the texts, in the batch."""
    items: list[Any]
    """Their tokens, by length."""

    @property
    def cost(self) -> float:
        """Tokens with padding."""
        return len(self.items) * max(map(len, self.items))


class PairSteps:
    """The steps of a training of pairs."""

    def __init__(
        self,
        model: TrainableModel,
        batches: PairBatches | None,
        replicas: Replicas,
        *,
        distance: Distance,
        scale: float,
        dtype: str = "float32",
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        """Prepare.

        Args:
            model: that is trained.
            batches: of the pairs; None in a process that follows, which gets them from the leader.
            replicas: processes of this training.
            distance: of the index.
            scale: of scores.
            dtype: that matrices are multiplied in; weights and scores are float32.
            max_tokens: tokens of a side of a batch whose activations are kept.

        """
        self._model, self._batches, self._replicas = model, batches, replicas
        self._distance, self._scale = distance, scale
        self._dtype, self._max_tokens = dtype, max_tokens

    def loss(self, step: int) -> torch.Tensor:
        """Return the loss of a step, with gradients."""
        import torch

        pairs = self._pairs(step)
        vectors_RD = self._vectors(
            {"query": [pair.query for pair in pairs], "document": [pair.passage for pair in pairs]}
        )
        queries_BD, passages_BD = vectors_RD.split(len(pairs))  # type: ignore[no-untyped-call]
        scores_BB = self._scale * self._similarities(queries_BD, passages_BD)
        numbers_B = torch.arange(len(pairs), device=scores_BB.device)
        cross_entropy = torch.nn.functional.cross_entropy
        return (cross_entropy(scores_BB, numbers_B) + cross_entropy(scores_BB.T, numbers_B)) / 2

    def _pairs(self, step: int) -> list[Pair]:
        pairs = self._replicas.shared(self._batches.pairs(step) if self._batches is not None else None)
        return [Pair(*pair) for pair in pairs]

    def _vectors(self, texts: Mapping[Side, Sequence[str]]) -> torch.Tensor:
        """Return the vectors of the texts of both sides in turn, with the gradients of this process, (R, D)."""
        import torch

        device = self._model.device
        at_once = min(TEXTS_AT_ONCE * device.chips, max(map(len, texts.values())))
        parts = [*self._parts(texts, at_once)]
        seeds = torch.randint(1 << 62, (len(parts),)).tolist()  # equal in all processes
        share = self._replicas.share_of([part.cost for part in parts])
        tokens = dict.fromkeys(texts, 0)
        for number in share:
            tokens[parts[number].side] += sum(map(len, parts[number].items))
        vectors = [
            device.vectors(
                partial(self._part_vectors, parts[number], seeds[number], at_once),
                kept=tokens[parts[number].side] <= self._max_tokens,
            )
            for number in share
        ]
        count = sum(map(len, texts.values()))
        # One more, for the vectors of no text.
        vectors_RD = torch.zeros((count + 1, self._model.dimensions), device=device.name, requires_grad=True)
        if share:
            rows: list[int] = []
            for number, part_BD in zip(share, vectors, strict=True):
                empty = len(part_BD) - len(parts[number].rows)
                rows += [*parts[number].rows, *[count] * empty]
            numbers = torch.tensor(rows).to(device.name)
            vectors_RD = vectors_RD.index_copy(0, numbers, torch.cat(vectors))
        return self._replicas.sum(vectors_RD[:count])

    def _parts(self, texts: Mapping[Side, Sequence[str]], at_once: int) -> Iterator[_Part]:
        """Yield texts of similar length, side by side."""
        first = 0
        for side, some in texts.items():
            items = self._model.prepare(some, side)
            order = sorted(range(len(items)), key=lambda number: len(items[number]))
            for start in range(0, len(order), at_once):
                numbers = order[start : start + at_once]
                yield _Part(
                    side, [first + number for number in numbers], [items[number] for number in numbers]
                )
            first += len(items)

    def _part_vectors(self, part: _Part, seed: int, rows: int) -> torch.Tensor:
        """Return the vectors of a part, with the dropout of a seed; on a device of fixed shapes, so many rows."""
        import torch

        self._model.device.seed(seed)
        if self._dtype == "float32":
            return self._model.vectors(part.items, part.side, rows=rows)
        # Of each part by itself: copies of weights in the lower type would add up the gradients of parts in that type.
        with torch.autocast(self._model.device.kind, getattr(torch, self._dtype)):
            return self._model.vectors(part.items, part.side, rows=rows)

    def _similarities(self, queries_BD: torch.Tensor, passages_BD: torch.Tensor) -> torch.Tensor:
        """Return the scores of all passages for all queries, as of a search, (B, B)."""
        import torch

        if self._distance == "squared_l2":
            return -torch.cdist(queries_BD, passages_BD).square()
        if self._distance == "cosine":
            queries_BD = torch.nn.functional.normalize(queries_BD, dim=1)
            passages_BD = torch.nn.functional.normalize(passages_BD, dim=1)
        return queries_BD @ passages_BD.T
