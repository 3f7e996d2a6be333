"""BERT encoders loaded without sentence-transformers.

Importing sentence-transformers takes five seconds, and most of its models consist of the same few layers. This module
loads them with torch alone, from their own files and from notes: tokenizer settings and layer sizes. `lean_notes` makes
the notes when the library loads a model, and only if both ways give the same vectors. They are cached under a key of
all that they depend on, library versions included (loading.py).

Legend: B texts, T tokens, D dimensions, H heads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from scannery.embed.fingerprint import weight_files
from scannery.embed.tokenization import FastTokens, Features, Tokens

if TYPE_CHECKING:
    from scannery.embed.models.lean_modules import LeanModel

__all__ = ["lean_model", "lean_notes"]

VERSION = 1
"""Version of notes and layers; notes of other versions are ignored."""
SAME = 1e-5
"""Largest difference of a component, for vectors of length 1. Rounding alone gives 1e-7."""
PROBES = (
    "one",
    "Numbers: 3.14159 and 2,718; a text that is longer than the one before, with padding behind that.",
    "Grüße aus Zürich 日本語 привет 🎙️",
    "",
    "Longer than any limit. " * 200,
)

Forward = Callable[[Any, Features], Any]


def lean_notes(model: Any, folder: Path, documents: Tokens, queries: Tokens) -> dict[str, Any] | None:
    """Return the notes that `lean_model` needs to load `model`; None if it is no BERT or the vectors would differ.

    Args:
        model: as sentence-transformers loaded it, float32 on the CPU.
        folder: folder of its files.
        documents: makes batches of documents.
        queries: makes batches of queries.

    Raises:
        Exception: of any type, for a model of an unexpected structure; it cannot be loaded from notes.

    """
    shape = _shape(model)
    if shape is None or not (isinstance(documents, FastTokens) and isinstance(queries, FastTokens)):
        return None
    tokens = {"document": documents.to_dict(), "query": queries.to_dict()}
    # Stored once: it is long, and the same for documents and queries.
    tokenizers = {kind: part.pop("tokenizer") for kind, part in tokens.items()}
    if len(set(tokenizers.values())) > 1:
        return None
    notes = {
        "version": VERSION,
        "shape": shape,
        "tokens": tokens,
        "tokenizer": tokenizers["query"],
        "special_tokens": int(model.tokenizer.num_special_tokens_to_add()),
    }
    # Compared as it will be read back, so that values which JSON changes are found now.
    notes = json.loads(json.dumps(notes))
    lean = lean_model(folder, notes)
    are_one = _but_task(tokens["document"]) == _but_task(tokens["query"])
    same = all(_same(model, lean, each) for each in ((queries,) if are_one else (documents, queries)))
    return notes if same else None


def _but_task(tokens: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes batches, but for what no layer of a shape looks at: whether texts are queries."""
    constants = {name: value for name, value in tokens["constants"].items() if name != "task"}
    return {**tokens, "constants": constants}


def lean_model(folder: Path, notes: Mapping[str, Any]) -> LeanModel:
    """Return the model in `folder`, float32 on the CPU, from the notes of `lean_notes`.

    Raises:
        Exception: of any type: the notes are invalid or belong to another model.

    """
    from safetensors.torch import load_file

    from scannery.embed.models.lean_modules import LeanModel

    if notes["version"] != VERSION:
        raise ValueError("notes of another version")
    [weights] = [file for file in weight_files(folder) if file.suffix == ".safetensors"]
    return LeanModel(notes, load_file(weights))


def _shape(model: Any) -> dict[str, Any] | None:
    """Return the sizes of a model that consists of BERT, pooling and optional normalisation; None for other models."""
    names = [type(module).__name__ for module in model]
    if names not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        return None
    if model.truncate_dim or type(model[0].auto_model).__name__ != "BertModel":
        return None
    config, pooling = model[0].auto_model.config, model[1]
    plain = (
        config.hidden_act == "gelu"
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        and not config.is_decoder
        and pooling.pooling_mode in ("mean", "cls")
        and pooling.include_prompt
    )
    if not plain:
        return None
    return {
        "layers": config.num_hidden_layers,
        "heads": config.num_attention_heads,
        "epsilon": config.layer_norm_eps,
        "pooling": pooling.pooling_mode,
        "normalize": names[-1] == "Normalize",
        "dimensions": int(pooling.pooling_output_dimension),
        "max_tokens": int(model.max_seq_length),
    }


def _same(model: Any, lean: Any, tokens: FastTokens) -> bool:
    """Return whether both models give the same vectors for texts with padding, without padding, and without a mask."""
    import torch

    items = tokens.prepare(PROBES)[0]
    batches = [tokens.collate(items), tokens.collate(items[:1])]
    with torch.inference_mode():
        pairs = [(model(dict(batch), task=batch["task"]), lean(dict(batch))) for batch in batches]
        unmasked = {name: value for name, value in batches[1].items() if name != "attention_mask"}
        pairs.append((pairs[1][0], lean(unmasked)))
    return all(
        np.allclose(first["sentence_embedding"], two["sentence_embedding"], rtol=0, atol=_tolerance(first))
        for first, two in pairs
    )


def _tolerance(features: Features) -> float:
    return SAME * max(1.0, float(features["sentence_embedding"].norm(dim=1).max()))
