"""A local cache of fingerprints of models that were loaded before, and of notes to load them faster (models/lean.py).

Parts of a fingerprint (prompts, limits, module classes) are only known once a model is in memory. A build with nothing
to embed reads them from this cache instead. The key is a hash of all that a fingerprint depends on: the files of the
model, the options, and the versions of the libraries. If an entry is missing or unreadable, the model is loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import uuid
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scannery.embed.cache_folders import cache_folder, is_ours, make_cache_folder
from scannery.embed.errors import EmbedError
from scannery.embed.fingerprint import Fingerprint, hash_model_folder
from scannery.embed.models.model_files import DATA_FILES, module_folders

__all__ = ["CachedModel", "recalled"]

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
