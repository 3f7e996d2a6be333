"""A model with gradients, on the same token ids that an encoder makes of texts.

Encoders run lean modules and kernels, which have neither gradients nor dropout; here the library's own modules run.

Shapes: B texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scannery.embed.library_imports import quiet
from scannery.embed.models.loading import ModelOptions, Side, prompt_of, vector_dimensions
from scannery.embed.models.model_files import load_modules
from scannery.embed.tokenization import Tokens, tokens_for

if TYPE_CHECKING:
    import torch

__all__ = ["TrainableModel"]

TEXTS_AT_ONCE = 64
"""Texts that are encoded together without gradients."""


class TrainableModel:
    """A sentence-transformers model as it encodes queries and documents, with gradients."""

    def __init__(self, folder: Path, options: ModelOptions, device: str) -> None:
        """Load a model.

        Args:
            folder: of the model; its weights are computed with in float32.
            options: of the encoder.
            device: as torch names it.

        Raises:
            InvalidModelError: as `load_modules`.

        """
        self.modules: Any = load_modules(folder)
        if options.max_tokens is not None:
            self.modules.max_seq_length = options.max_tokens
        self.modules.to(device).requires_grad_(True)
        self.device = device
        """Device, as torch names it."""
        self.dimensions = vector_dimensions(self.modules, options.dimensions)
        """Components of vectors."""
        prompts: dict[Side, str | None] = {
            "query": options.query_prompt, "document": options.document_prompt,
        }  # fmt: skip
        self._tokens: dict[Side, Tokens] = {
            side: tokens_for(self.modules, prompt_of(self.modules, side, prompt) or None, side)
            for side, prompt in prompts.items()
        }

    @property
    def device_type(self) -> str:
        """Kind of the device, as torch names it: `cpu`, `cuda`."""
        return self.device.partition(":")[0]

    def prepare(self, texts: Sequence[str], side: Side = "query") -> list[Any]:
        """Return the tokens of texts, as `vectors` takes them."""
        return list(self._tokens[side].prepare(texts).items)

    def vectors(self, items: Sequence[Any], side: Side = "query") -> torch.Tensor:
        """Return the vectors of prepared texts with their gradients, float32 (B, D); dropout as the modules' mode."""
        import torch

        features = {
            name: value.to(self.device) if torch.is_tensor(value) else value
            for name, value in self._tokens[side].collate(items).items()
        }
        vectors_BD: torch.Tensor = self.modules(features, task=side)["sentence_embedding"]
        return vectors_BD[:, : self.dimensions].float()

    def encoded(self, items: Sequence[Any], side: Side = "query") -> torch.Tensor:
        """Return the vectors of prepared texts without gradients and dropout, float32 (B, D), on the CPU."""
        import torch

        # By length: texts of a batch are padded to its longest.
        order = sorted(range(len(items)), key=lambda number: len(items[number]))
        parts = []
        with self._evaluating(), torch.inference_mode():
            for start in range(0, len(order), TEXTS_AT_ONCE):
                some = [items[number] for number in order[start : start + TEXTS_AT_ONCE]]
                parts.append(self.vectors(some, side).cpu())
        vectors_BD = torch.cat(parts)
        return vectors_BD[torch.argsort(torch.tensor(order))]

    def mix(self, folder: Path, share: float) -> None:
        """Set the weights to a share of theirs, and the remainder of those of a model with equal modules in a folder.

        Raises:
            InvalidModelError: as `load_modules`.

        """
        import torch

        with torch.no_grad():
            for mixed, base in zip(self.modules.parameters(), load_modules(folder).parameters(), strict=True):
                mixed.lerp_(base.to(mixed.device), 1 - share)

    def save(self, folder: Path) -> None:
        """Write the model to a folder that `Encoder.load` reads."""
        with quiet():
            self.modules.save_pretrained(str(folder), create_model_card=False)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        training = self.modules.training
        self.modules.eval()
        try:
            yield
        finally:
            self.modules.train(training)
