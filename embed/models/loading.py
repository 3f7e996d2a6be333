"""Load a model, with sentence-transformers or from notes, and compute its fingerprint."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from scannery.embed.devices.cores import on_one_core
from scannery.embed.devices.factory import device_kind
from scannery.embed.errors import InvalidArgumentError
from scannery.embed.fingerprint import Fingerprint, require_files, require_match
from scannery.embed.models.known_models import CachedModel
from scannery.embed.models.lean import lean_model, lean_notes
from scannery.embed.models.model_files import check_model_folder, find_model, load_modules
from scannery.embed.tokenization import Tokens, tokens_for

__all__ = ["LEAN_ENVIRONMENT", "ModelOptions", "load_model", "tokens_of"]

_LOG = logging.getLogger(__name__)

LEAN_ENVIRONMENT = "SCANNERY_LEAN"
"""Environment variable: with 0, every model is loaded with sentence-transformers."""

LEAN_DEVICES = ("cpu", "cuda", "xla")


@dataclass(frozen=True)
class ModelOptions:
    """The options of `Encoder.load` that affect the vectors; None takes the model's own value."""

    dimensions: int | None = None
    query_prompt: str | None = None
    document_prompt: str | None = None
    max_tokens: int | None = None


def load_model(
    model: str | Path, options: ModelOptions, device: str, expected: Fingerprint | None = None
) -> tuple[Any, Fingerprint]:
    """Return the modules of a model, float32 on the CPU, and its fingerprint.

    Args:
        model: name or folder, as for `Encoder.load`.
        options: options that affect the vectors.
        device: name of the device it will run on; models are loaded from notes only for those of LEAN_DEVICES.
        expected: fingerprint that it must have. The hashes of its files are compared before any is loaded.

    Raises:
        EmbedError: as `Encoder.load`.

    """
    folder = find_model(model)
    check_model_folder(folder)
    with ThreadPoolExecutor(1) as background:
        known_soon = background.submit(CachedModel, folder, asdict(options))
        kind = device_kind(device)  # imports torch meanwhile
        cached = known_soon.result()
    if expected is not None:
        require_files(expected, cached.weights_sha256, cached.config_sha256, str(model))
    modules, fingerprint = _loaded(folder, str(model), options, cached, kind)
    if expected is not None:
        require_match(expected, fingerprint)
    return modules, fingerprint


def _loaded(
    folder: Path, label: str, options: ModelOptions, cached: CachedModel, kind: str
) -> tuple[Any, Fingerprint]:
    fingerprint = cached.fingerprint(label)
    if kind not in LEAN_DEVICES:
        return _load_by_library(folder, label, options, cached)
    if fingerprint and (modules := _lean(folder, cached)) is not None:
        return modules, fingerprint
    loaded, fingerprint = _load_by_library(folder, label, options, cached)
    # CPU and CUDA: it takes packed batches. XLA: its program is that of the next load, so that workers share it.
    if (modules := _lean(folder, cached)) is not None:
        return modules, fingerprint
    return loaded, fingerprint


def _load_by_library(
    folder: Path, label: str, options: ModelOptions, cached: CachedModel
) -> tuple[Any, Fingerprint]:
    modules = on_one_core(lambda: load_modules(folder))
    _limit_tokens(modules, options.max_tokens)
    fingerprint = Fingerprint(
        model=label,
        weights_sha256=cached.weights_sha256,
        config_sha256=cached.config_sha256,
        modules=tuple(type(module).__name__ for module in modules),
        dimensions=_dimensions(modules, options.dimensions),
        max_tokens=_max_tokens(modules),
        query_prompt=_prompt(modules, options.query_prompt, ("query",)),
        document_prompt=_prompt(modules, options.document_prompt, ("document", "passage", "corpus")),
    )
    cached.remember(fingerprint)
    _take_notes(modules, fingerprint, folder, cached)
    return modules, fingerprint


def tokens_of(model: Any, fingerprint: Fingerprint) -> tuple[Tokens, Tokens]:
    """Return what makes the model's batches of documents, and of queries."""
    made = getattr(model, "tokens", None)
    if made is not None:  # a lean model
        documents, queries = made
        return documents, queries
    return (
        tokens_for(model, fingerprint.document_prompt or None, "document"),
        tokens_for(model, fingerprint.query_prompt or None, "query"),
    )


def _lean(folder: Path, cached: CachedModel) -> Any:
    """Return the model loaded from notes; None if there are none, or loading fails."""
    notes = cached.notes() if _lean_wanted() else None
    if notes is None:
        return None
    try:
        return on_one_core(lambda: lean_model(folder, notes))
    except Exception as error:  # noqa: BLE001  sentence-transformers will load it
        _LOG.debug("%s cannot be loaded from notes, using sentence-transformers: %r", folder, error)
        return None


def _take_notes(model: Any, fingerprint: Fingerprint, folder: Path, cached: CachedModel) -> None:
    if not _lean_wanted():
        return
    try:
        notes = on_one_core(lambda: lean_notes(model, folder, *tokens_of(model, fingerprint)))
    except Exception as error:  # noqa: BLE001  notes are optional: the model is loaded already
        _LOG.debug("no notes for %s: %r", folder, error)
        return
    if notes is not None:
        cached.remember_notes(notes)


def _lean_wanted() -> bool:
    return os.environ.get(LEAN_ENVIRONMENT, "") != "0"


def _limit_tokens(model: Any, max_tokens: int | None) -> None:
    if max_tokens is None:
        return
    limit = _max_tokens(model)
    if not 3 <= max_tokens <= limit:
        raise InvalidArgumentError(
            f"max_tokens must be from 3 to {limit}, got {max_tokens}", field="max_tokens"
        )
    model.max_seq_length = max_tokens


def _max_tokens(model: Any) -> int:
    limit = model.max_seq_length
    # Tokenizers without a limit give 10^30, static models infinity.
    return 1 << 30 if limit is None or limit > 1 << 30 else int(limit)


def _dimensions(model: Any, dimensions: int | None) -> int:
    ask = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
    size = int(ask())
    if dimensions is None:
        return min(size, model.truncate_dim or size)
    if not 1 <= dimensions <= size:
        raise InvalidArgumentError(
            f"dimensions must be from 1 to {size}, got {dimensions}", field="dimensions"
        )
    return dimensions


def _prompt(model: Any, prompt: str | None, names: tuple[str, ...]) -> str:
    """Return the given prompt, else the one that SentenceTransformer.encode_query or encode_document would use."""
    if prompt is not None:
        return prompt
    name = next((name for name in names if name in model.prompts), model.default_prompt_name)
    return str(model.prompts.get(name) or "")
