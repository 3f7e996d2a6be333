"""Whatever the architecture, pooling, heads and prompts: the vectors are those of SentenceTransformer.encode.

`make test-xla` runs these on XLA (SCANNERY_TEST_DEVICE=xla), everybody else on the CPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.embed import Encoder
from scannery.embed.devices.protocol import cosines
from scannery.embed.tokenization import FastTokens, ModelTokens
from tests.embed.tiny_models import MODELS, make_model

pytestmark = pytest.mark.system

DEVICE = os.environ.get("SCANNERY_TEST_DEVICE", "cpu")
ATOL = 2e-6 if DEVICE == "cpu" else 1e-5
TEXTS = [
    "How do volcanoes form?",
    "one",
    "Magma rises through cracks in the crust. " * 30,
    "Grüße, русский, 日本語",
    "the dog sleeps on",
    "the fox jumps on",
    "",
    *(f"{'volcanoes ' * n}and dogs" for n in range(40)),
]


KINDS = sorted(MODELS) if DEVICE == "cpu" else sorted(set(MODELS) - {"static"})


@pytest.fixture(scope="module", autouse=True)
def small_batches() -> Iterator[None]:
    """Keep what XLA computes for a handful of texts small."""
    if DEVICE != "xla":
        yield
        return
    from scannery.embed.devices import xla

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xla, "FEW_ROWS", (8,))
        # The tiny models read no more: one program for each kind of text.
        patch.setattr(xla, "LEAST_WIDTH", 64)
        yield


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def test_vectors_equal_the_librarys(folder: Path, reference: Any) -> None:
    encoder = Encoder.load(folder, device=DEVICE, dtype="float32")
    documents = reference.encode_document(TEXTS, show_progress_bar=False)
    queries = reference.encode_query(TEXTS, show_progress_bar=False)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), documents, atol=ATOL)
    np.testing.assert_allclose(encoder.encode_queries(TEXTS), queries, atol=ATOL)
    assert encoder.dimensions == documents.shape[1]


def test_the_smaller_type_stays_faithful(folder: Path, reference: Any) -> None:
    encoder = Encoder.load(folder, device=DEVICE, dtype="bfloat16")
    expected = reference.encode_document(TEXTS, show_progress_bar=False)
    assert cosines(encoder.encode_documents(TEXTS), expected)[np.any(expected != 0, axis=1)].min() > 0.999
    assert encoder.dtype == "bfloat16"
    assert encoder.fingerprint == Encoder.load(folder, device=DEVICE, dtype="float32").fingerprint


def test_dimensions_and_limits_are_those_of_the_library(folder: Path, reference: Any) -> None:
    encoder = Encoder.load(folder, device=DEVICE, dtype="float32", dimensions=8, document_prompt="a dog ")
    expected = reference.encode(TEXTS, prompt="a dog ", truncate_dim=8, show_progress_bar=False)
    np.testing.assert_allclose(encoder.encode_documents(TEXTS), expected, atol=ATOL)


def test_fast_tokenisation_is_taken_where_it_is_proven_equal(folder: Path) -> None:
    encoder = Encoder.load(folder, device=DEVICE, dtype="float32")
    expected = ModelTokens if "static" in str(folder) else FastTokens
    assert type(encoder._documents) is expected
    if isinstance(encoder._documents, FastTokens):
        assert encoder._documents.mask_is_optional
