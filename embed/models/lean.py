"""BERT encoders without the library that defines them.

Importing sentence-transformers takes five seconds, and most of these models are the same few layers. They are loaded
here with torch alone, from their own files, by what `lean_notes` writes down when the library loads the model: how
texts become tokens, and the sizes of the layers. It writes that down only for a model whose vectors came out the same
both ways. Notes are kept by everything that they follow from (known_models.py), the versions of the libraries among it.

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
"""Of the notes, and of the layers: others are forgotten."""
SAME = 1e-5
"""How far a component of a vector of length 1 may be off. Rounding alone makes 1e-7."""
PROBES = (
    "one",
    "Numbers: 3.14159 and 2,718; a text that is longer than the one before, with padding behind that.",
    "Grüße aus Zürich 日本語 привет 🎙️",
    "",
    "Longer than any limit. " * 200,
)

Forward = Callable[[Any, Features], Any]


def lean_notes(model: Any, folder: Path, documents: Tokens, queries: Tokens) -> dict[str, Any] | None:
    """Return what `lean_model` needs to load `model` again; None if it cannot, or not with the same vectors.

    Args:
        model: as sentence-transformers loaded it, in float32 on the CPU.
        folder: of its files.
        documents: how it is given documents.
        queries: how it is given queries.

    Raises:
        Exception: any, for a model that is unlike all that were thought of; it cannot be loaded by notes either.

    """
    shape = _shape(model)
    if shape is None or not (isinstance(documents, FastTokens) and isinstance(queries, FastTokens)):
        return None
    tokens = {"document": documents.to_dict(), "query": queries.to_dict()}
    # The tokenizer is the same but for the prompt, and long.
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
    # As it will be read: what JSON cannot hold must not be found out later.
    notes = json.loads(json.dumps(notes))
    lean = lean_model(folder, notes)
    same = all(_same(model, lean, tokens) for tokens in (documents, queries))
    return notes if same else None


def lean_model(folder: Path, notes: Mapping[str, Any]) -> LeanModel:
    """Return the model in `folder`, float32 on the CPU, by its notes.

    Raises:
        Exception: the notes are not of this model, or not notes.

    """
    from safetensors.torch import load_file

    from scannery.embed.models.lean_modules import LeanModel

    if notes["version"] != VERSION:
        raise ValueError("notes of another version")
    [weights] = [file for file in weight_files(folder) if file.suffix == ".safetensors"]
    return LeanModel(notes, load_file(weights))


def _shape(model: Any) -> dict[str, Any] | None:
    """Return the sizes of a model that is nothing but BERT, pooling and perhaps normalisation; else None."""
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
    """Return whether both give padded and unpadded texts, and those with all masks left out, the same vectors."""
    import torch

    items = tokens.prepare(PROBES)[0]
    batches = [tokens.collate(items), tokens.collate(items[:1])]
    with torch.inference_mode():
        pairs = [(model(dict(batch), task=batch["task"]), lean(dict(batch))) for batch in batches]
        unmasked = {name: value for name, value in batches[1].items() if name != "attention_mask"}
        pairs.append((pairs[1][0], lean(unmasked)))
    return all(
        np.allclose(one["sentence_embedding"], two["sentence_embedding"], rtol=0, atol=_tolerance(one))
        for one, two in pairs
    )


def _tolerance(features: Features) -> float:
    return SAME * max(1.0, float(features["sentence_embedding"].norm(dim=1).max()))
