from __future__ import annotations

import os
from pathlib import Path

import pytest

from scannery.embed import Encoder
from scannery.embed.models.model_files import find_model

# The tests on XLA's CPU backend run each program a few times only: most of their time is compilation.
if os.environ.get("PJRT_DEVICE", "CPU") == "CPU":
    os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    return find_model(MINILM)


@pytest.fixture(scope="session")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Encoder:
    """The real model, in fp32 on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        # Loaded by its library, whatever ran before; test_lean.py has the other way.
        patch.setenv("SCANNERY_CACHE_DIR", str(tmp_path_factory.mktemp("no-notes")))
        patch.setenv("SCANNERY_LEAN", "0")
        return Encoder.load(MINILM, device="cpu", dtype="float32")
