"""Fingerprints of models that were loaded before, so that a build with nothing to embed need not load its model.

Some of a fingerprint (prompts, limits, the classes of modules) is only known of a model in memory. What it follows
from is all on disk: the files of the model, the options, and the versions of the libraries. Their hash names a small
file in the local cache. A file that is missing or unreadable only costs loading the model.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from scannery.embed.errors import EmbedError
from scannery.embed.fingerprint import Fingerprint, hash_model_folder
from scannery.embed.models import DATA_FILES, module_folders

__all__ = ["recalled", "remember"]

_LIBRARIES = ("sentence-transformers", "transformers", "torch")


def recalled(folder: Path, label: str, options: Mapping[str, Any]) -> Fingerprint | None:
    """Return the fingerprint of the model in `folder` with these options of `Encoder.load`, or None if unknown."""
    try:
        hashes = hash_model_folder(folder, module_folders(folder))
        data = json.loads(_place(folder, hashes, options).read_text())
        return Fingerprint.from_dict({**data, "model": label})
    except (OSError, ValueError, TypeError, EmbedError):
        return None


def remember(folder: Path, options: Mapping[str, Any], fingerprint: Fingerprint) -> None:
    """Keep the fingerprint for `recalled`; a cache that cannot be written is no error."""
    with contextlib.suppress(OSError):
        place = _place(folder, (fingerprint.weights_sha256, fingerprint.config_sha256), options)
        place.parent.mkdir(parents=True, exist_ok=True)
        draft = place.with_name(f"draft-{uuid.uuid4().hex}")
        draft.write_text(json.dumps(fingerprint.to_dict()))
        draft.replace(place)


def _place(folder: Path, hashes: tuple[str, str], options: Mapping[str, Any]) -> Path:
    small = {path for pattern in DATA_FILES[:3] for path in folder.rglob(pattern) if path.is_file()}
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in small
    }
    known = [hashes, files, dict(options), [_version(name) for name in _LIBRARIES]]
    key = hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()
    return _cache_folder() / "fingerprints" / f"{key}.json"


def _cache_folder() -> Path:
    # As indexer/cache.py has it; rooms do not import each other for this.
    named = os.environ.get("SCANNERY_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else Path(base or Path.home() / ".cache") / "scannery"


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
