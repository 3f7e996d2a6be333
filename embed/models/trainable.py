"""A model with gradients, on the same token ids that an encoder makes of texts.

Encoders run lean modules and kernels, which have neither gradients nor dropout; here the library's own modules run.

Shapes: B texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scannery.embed.devices.static_masks import use_static_masks
from scannery.embed.devices.training import open_training_device
from scannery.embed.errors import InvalidArgumentError
from scannery.embed.library_imports import quiet
from scannery.embed.models.loading import ModelOptions, Side, prompt_of, vector_dimensions
from scannery.embed.models.model_files import load_modules
from scannery.embed.tokenization import FastTokens, Tokens, tokens_for

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
            device: as `open_training_device` takes it.

        Raises:
            InvalidModelError: as `load_modules`.
            InvalidArgumentError: the device takes fixed shapes only, and the model chooses its own.
            DeviceError: the device is not available.

        """
        self.device = open_training_device(device)
        """Device that it is on."""
        self.modules: Any = load_modules(folder)
        if options.max_tokens is not None:
            self.modules.max_seq_length = options.max_tokens
        self.dimensions = vector_dimensions(self.modules, options.dimensions)
        """Components of vectors."""
        prompts: dict[Side, str | None] = {
            "query": options.query_prompt, "document": options.document_prompt,
        }  # fmt: skip
        self._tokens: dict[Side, Tokens] = {
            side: tokens_for(self.modules, prompt_of(self.modules, side, prompt) or None, side)
            for side, prompt in prompts.items()
        }
        if self.device.fixed_shapes:
            if not all(isinstance(tokens, FastTokens) for tokens in self._tokens.values()):
                raise InvalidArgumentError(
                    f"device {device} needs a model with a plain tokenizer; train this one on cpu or cuda",
                    field="device",
                )
            use_static_masks(self.modules)
        self.modules.to(self.device.name).requires_grad_(True)

    def prepare(self, texts: Sequence[str], side: Side = "query") -> list[Any]:
        """Return the tokens of texts, as `vectors` takes them."""
        return list(self._tokens[side].prepare(texts).items)

    def vectors(self, items: Sequence[Any], side: Side = "query", *, rows: int = 0) -> torch.Tensor:
        """Return the vectors of prepared texts with their gradients, float32 (B, D); dropout as the modules' mode.

        On a device of fixed shapes, vectors of no text may follow.

        Args:
            items: the texts, at least one.
            side: what they are encoded as.
            rows: least number of vectors on a device of fixed shapes.

        """
        import torch

        longest = max(map(len, items)) if self.device.fixed_shapes else 0
        bucket = self.device.bucket(
            max(rows, len(items)), longest, int(self.modules.max_seq_length or longest)
        )
        features = {
            name: self.device.put(value) if torch.is_tensor(value) else value
            for name, value in self._tokens[side].collate(items, bucket).items()
        }
        vectors_BD: torch.Tensor = self.modules(features, task=side)["sentence_embedding"]
        return vectors_BD[:, : self.dimensions].float()

    def encoded(self, items: Sequence[Any], side: Side = "query") -> torch.Tensor:
        """Return the vectors of prepared texts without gradients and dropout, float32 (B, D), on the CPU."""
        import torch

        # By length: texts of a batch are padded to its longest.
        order = sorted(range(len(items)), key=lambda number: len(items[number]))
        parts = []
        with self._evaluating(), torch.no_grad():
            for start in range(0, len(order), TEXTS_AT_ONCE):
                some = [items[number] for number in order[start : start + TEXTS_AT_ONCE]]
                vectors_BD = self.vectors(some, side, rows=TEXTS_AT_ONCE)
                self.device.finish(vectors_BD)
                parts.append(vectors_BD.cpu()[: len(some)])
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
            self.modules.to("cpu").save_pretrained(str(folder), create_model_card=False)
        self.modules.to(self.device.name)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        training = self.modules.training
        self.modules.eval()
        try:
            yield
        finally:
            self.modules.train(training)
