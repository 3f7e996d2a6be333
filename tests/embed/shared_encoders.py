"""The packaged model is loaded once by each process of tests.

A load takes half a second of processor time, most of it for the probes that choose the number type, and tests of
builds, servers and the command load hundreds of times. What they get is the real encoder, which any number of callers
may share. Tests of loading load each time, and so do all processes that tests start.
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

__all__ = ["share_encoders"]

_PACKAGED = "site-packages"
_LOADING = ("tests/embed/", "tests/pipelines/planning/test_agreed_dtype.py")
"""Tests of loading itself."""


def share_encoders(patch: pytest.MonkeyPatch) -> None:
    """Let `Encoder.load` return the same encoder for the same arguments, and hash the files of the model once."""
    from scannery.embed.encoder import Encoder
    from scannery.embed.fingerprint import hash_model_folder
    from scannery.embed.models.model_files import find_model

    load, hash_files = Encoder.load, hash_model_folder
    loaded: dict[tuple[str, ...], Encoder] = {}
    hash_once = lru_cache(hash_files)

    def shared(model: str | Path, *, expected: Any = None, **options: Any) -> Encoder:
        if not _is_shared(find_model(model)):
            return load(model, expected=expected, **options)
        key = (
            str(model),
            *(f"{name}={value}" for name, value in sorted(options.items()) if value is not None),
        )
        encoder = loaded.get(key)
        # A load with another fingerprint fails, by an error that tests compare.
        if encoder is None or (expected is not None and expected.digest != encoder.fingerprint.digest):
            encoder = loaded[key] = load(model, expected=expected, **options)
        return encoder

    def hashed(folder: Path, module_folders: Any) -> tuple[str, str]:
        return (
            hash_once(folder, tuple(module_folders))
            if _is_shared(folder)
            else hash_files(folder, module_folders)
        )

    patch.setattr(Encoder, "load", shared)
    from scannery.embed.models import loading

    patch.setattr(loading, "hash_model_folder", hashed)


def _is_shared(folder: Path) -> bool:
    return _PACKAGED in folder.parts and not os.environ.get("PYTEST_CURRENT_TEST", "").startswith(_LOADING)
