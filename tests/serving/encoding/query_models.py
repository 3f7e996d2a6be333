"""Models for queries alone: the packaged model with weights that differ a little, as after a training."""

from __future__ import annotations

from pathlib import Path

from tests.served import MINILM

__all__ = ["make_query_model"]


def make_query_model(folder: Path, *, base: str = MINILM, seed: int = 1, share: float = 0.2) -> Path:
    """Save a model with noise in its weights, and return the folder.

    Args:
        folder: gets the files.
        base: the model.
        seed: of the noise.
        share: of the deviation of each weight matrix.

    """
    import torch
    from sentence_transformers import SentenceTransformer

    from scannery.embed.models.model_files import find_model

    model = SentenceTransformer(str(find_model(base)), device="cpu", local_files_only=True)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.add_(
                    torch.randn(weights.shape, generator=generator), alpha=share * float(weights.std())
                )
    model.save(str(folder))
    return folder
