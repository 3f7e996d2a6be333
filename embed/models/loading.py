"""Load a model, with sentence-transformers or from notes, and compute its fingerprint.

A local cache has the fingerprints of models that were loaded before, and notes to load them faster (models/lean.py).
Parts of a fingerprint (prompts, limits, module classes) are only known once a model is in memory. A build with nothing
to embed reads them from this cache instead. The key is a hash of all that a fingerprint depends on: the files of the
model, the options, and the versions of the libraries. If an entry is missing or unreadable, the model is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal, TypeAlias

from scannery.embed.cache_folders import cache_folder, is_ours, make_cache_folder
from scannery.embed.devices.cores import on_one_core
from scannery.embed.devices.factory import device_kind
from scannery.embed.errors import EmbedError, InvalidArgumentError
from scannery.embed.fingerprint import Fingerprint, hash_model_folder, require_files, require_match
from scannery.embed.models.lean import lean_model, lean_notes
from scannery.embed.models.model_files import (
    DATA_FILES,
    check_model_folder,
    find_model,
    load_modules,
    module_folders,
)
from scannery.embed.tokenization import Tokens, tokens_for

__all__ = ["ModelOptions", "Side", "load_model", "prompt_of", "recalled", "tokens_of", "vector_dimensions"]

Side: TypeAlias = Literal["query", "document"]
"""What texts are encoded as."""


_LIBRARIES = ("sentence-transformers", "transformers", "tokenizers", "safetensors", "torch")


class CachedModel:
    """The cache entries of the model in a folder, loaded with some options of `Encoder.load`."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        """Read and hash the files of the model.

        Args:
            folder: folder of the model.
            options: the options of `Encoder.load` that affect the vectors, JSON-ready.

        Raises:
            EmbedError, OSError: a file cannot be read.

        """
        self.weights_sha256, self.config_sha256 = hash_model_folder(folder, module_folders(folder))
        hashes = (self.weights_sha256, self.config_sha256)
        self._path = _cache_path(folder, hashes, options)

    def fingerprint(self, label: str) -> Fingerprint | None:
        """Return the cached fingerprint with `label` as its model, or None."""
        try:
            return Fingerprint.from_dict({**json.loads(_read(self._path)), "model": label})
        except (OSError, ValueError, TypeError, EmbedError):
            return None

    def notes(self) -> dict[str, Any] | None:
        """Return the cached notes of models/lean.py, or None."""
        try:
            checksum, _, text = _read(self._notes_path).partition("\n")
            # A truncated vocabulary would still be valid.
            if hashlib.sha256(text.encode()).hexdigest() != checksum:
                return None
            notes: dict[str, Any] = json.loads(text)
            return notes
        except (OSError, ValueError):
            return None

    def remember(self, fingerprint: Fingerprint) -> None:
        """Cache the fingerprint; errors of writing are ignored."""
        _write(self._path, json.dumps(fingerprint.to_dict()))

    def remember_notes(self, notes: Mapping[str, Any]) -> None:
        """Cache the notes; errors of writing are ignored."""
        text = json.dumps(notes)
        _write(self._notes_path, f"{hashlib.sha256(text.encode()).hexdigest()}\n{text}")

    @property
    def _notes_path(self) -> Path:
        return self._path.parent.with_name("lean") / self._path.name


def recalled(folder: Path, label: str, options: Mapping[str, Any]) -> Fingerprint | None:
    """Return the cached fingerprint of the model in `folder` with these options of `Encoder.load`, or None."""
    try:
        return CachedModel(folder, options).fingerprint(label)
    except (OSError, EmbedError):
        return None


def _read(path: Path) -> str:
    if not is_ours(path.parent):
        raise PermissionError(f"{path.parent} can be written by others")
    return path.read_text()


def _write(path: Path, text: str) -> None:
    with contextlib.suppress(OSError):
        make_cache_folder(path.parent)
        draft = path.with_name(f"draft-{uuid.uuid4().hex}")
        draft.write_text(text)
        draft.replace(path)


def _cache_path(folder: Path, hashes: tuple[str, str], options: Mapping[str, Any]) -> Path:
    small = {path for pattern in DATA_FILES[:3] for path in folder.rglob(pattern) if path.is_file()}
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in small
    }
    recipe = [hashes, files, dict(options), [_version(name) for name in _LIBRARIES]]
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    return cache_folder() / "fingerprints" / f"{key}.json"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


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
    cap_tokens: int | None = None

    @property
    def identity(self) -> dict[str, Any]:
        """The options by name, for keys of caches; without `cap_tokens` they are those of earlier releases."""
        options = asdict(self)
        if self.cap_tokens is None:
            del options["cap_tokens"]
        return options


def load_model(
    model: str | Path,
    options: ModelOptions,
    device: str,
    expected: Fingerprint | None = None,
    *,
    label: str | None = None,
) -> tuple[Any, Fingerprint]:
    """Return the modules of a model, float32 on the CPU, and its fingerprint.

    Args:
        model: name or folder, as for `Encoder.load`.
        options: options that affect the vectors.
        device: name of the device it will run on; models are loaded from notes only for those of LEAN_DEVICES.
        expected: fingerprint that it must have. The hashes of its files are compared before any is loaded.
        label: what the fingerprint and errors call it; None: `model`.

    Raises:
        EmbedError: as `Encoder.load`.

    """
    label = label or str(model)
    folder = find_model(model)
    check_model_folder(folder)
    with ThreadPoolExecutor(1) as background:
        known_soon = background.submit(CachedModel, folder, options.identity)
        kind = device_kind(device)  # imports torch meanwhile
        cached = known_soon.result()
    if expected is not None:
        require_files(expected, cached.weights_sha256, cached.config_sha256, label)
    modules, fingerprint = _loaded(folder, label, options, cached, kind)
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
    _limit_tokens(modules, options)
    fingerprint = Fingerprint(
        model=label,
        weights_sha256=cached.weights_sha256,
        config_sha256=cached.config_sha256,
        modules=tuple(type(module).__name__ for module in modules),
        dimensions=vector_dimensions(modules, options.dimensions),
        max_tokens=_max_tokens(modules),
        query_prompt=prompt_of(modules, "query", options.query_prompt),
        document_prompt=prompt_of(modules, "document", options.document_prompt),
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


def _limit_tokens(model: Any, options: ModelOptions) -> None:
    limit, max_tokens = _max_tokens(model), options.max_tokens
    if options.cap_tokens is not None:
        max_tokens = min(limit, options.cap_tokens)
    if max_tokens is None:
        return
    if not 3 <= max_tokens <= limit:
        raise InvalidArgumentError(
            f"max_tokens must be from 3 to {limit}, got {max_tokens}", field="max_tokens"
        )
    model.max_seq_length = max_tokens


def _max_tokens(model: Any) -> int:
    limit = model.max_seq_length
    # Tokenizers without a limit give 10^30, static models infinity.
    return 1 << 30 if limit is None or limit > 1 << 30 else int(limit)


def vector_dimensions(model: Any, dimensions: int | None) -> int:
    """Return the components of a model's vectors, of which an option may keep the first.

    Raises:
        InvalidArgumentError: the option is out of range.

    """
    ask = getattr(model, "get_embedding_dimension", None) or model.get_sentence_embedding_dimension
    size = int(ask())
    if dimensions is None:
        return min(size, model.truncate_dim or size)
    if not 1 <= dimensions <= size:
        raise InvalidArgumentError(
            f"dimensions must be from 1 to {size}, got {dimensions}", field="dimensions"
        )
    return dimensions


_PROMPTS: dict[Side, tuple[str, ...]] = {"query": ("query",), "document": ("document", "passage", "corpus")}


def prompt_of(model: Any, side: Side, prompt: str | None) -> str:
    """Return the given prompt, else the one that SentenceTransformer.encode_query or encode_document would use."""
    if prompt is not None:
        return prompt
    name = next((name for name in _PROMPTS[side] if name in model.prompts), model.default_prompt_name)
    return str(model.prompts.get(name) or "")
