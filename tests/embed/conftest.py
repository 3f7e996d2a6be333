from __future__ import annotations

from pathlib import Path

import pytest

from scannery.embed import Encoder
from scannery.embed.models import find_model

MINILM = "sentence-transformers/all-MiniLM-L6-v2"


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    return find_model(MINILM)


@pytest.fixture(scope="session")
def minilm() -> Encoder:
    """The real model, in fp32 on the CPU."""
    return Encoder.load(MINILM, device="cpu", dtype="float32")
