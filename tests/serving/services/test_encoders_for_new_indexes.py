"""The models that an operator names for new indexes: listed, and used for texts, before an index uses them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.indexer import Store
from scannery.serving import EncoderConfig, EncoderServer, SecurityConfig
from scannery.serving.config import VertexConfig
from scannery.serving.security.api_keys import KeyFile
from tests.embed.tiny_models import make_model
from tests.served import MINILM, copied, serving


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    Store.open(tmp_path / "empty", create=True)
    return tmp_path / "empty"


def models_of(client: scannery.Client) -> list[str]:
    return [encoder.model for encoder in client.encoders()]


def test_a_model_of_the_operator_is_listed_and_encodes_without_an_index(empty: Path) -> None:
    with (
        serving(empty, device="cpu", models=(MINILM,)) as server,
        scannery.connect(server.address, timeout_s=120) as client,
    ):
        vector_1D = client.embed(["a volcano"])
        assert vector_1D.shape == (1, 384)
        assert np.array_equal(client.embed(["a volcano"], model=MINILM), vector_1D)
        [listed] = client.encoders()
        assert (listed.model, listed.dimensions) == (MINILM, 384)
        created = client.create_index("first", encoder=listed.model).stats()
        assert created.encoder is not None and created.encoder.fingerprint == listed.fingerprint
        # It is the same encoder, so there is still one.
        assert client.encoders() == [listed]
        assert np.array_equal(client.embed(["a volcano"]), vector_1D)


def test_a_model_that_was_never_loaded_is_listed_without_its_dimensions(empty: Path, tmp_path: Path) -> None:
    model = str(make_model("static", tmp_path / "model"))
    options = {"models": ("no/such-model",), "vertex": VertexConfig(models={"mine": model})}
    with (
        serving(empty, device="cpu", **options) as server,
        scannery.connect(server.address, timeout_s=120) as client,
    ):
        [listed] = client.encoders()  # one that cannot be loaded is not listed
        assert (listed.model, listed.dimensions, listed.fingerprint) == (model, None, "")
        vectors = client.embed(["a"], model=model)
        [listed] = client.encoders()
        assert listed.dimensions == vectors.shape[1] and listed.fingerprint


def test_a_model_for_new_indexes_makes_no_request_ambiguous(texts: Path, tmp_path: Path) -> None:
    model = str(make_model("static", tmp_path / "model"))
    with (
        serving(copied(texts, tmp_path), device="cpu", models=(model,)) as server,
        scannery.connect(server.address, timeout_s=120) as client,
    ):
        assert sorted(models_of(client)) == sorted([MINILM, model])
        assert client.embed(["a volcano"]).shape == (1, 384)  # that of the index
        assert client.index("texts").embed(["a volcano"]).shape == (1, 384)
        assert client.embed(["a volcano"], model=model).shape[1] != 384


def test_the_encoder_of_an_index_is_that_of_its_unnamed_vector(empty: Path) -> None:
    small = {"encoder": {"model": MINILM, "dimensions": 8}, "from": "title"}
    with scannery.connect(empty) as client:
        both = client.create_index("both", encoder=MINILM, named_vectors={"title": small})
        client.create_index("alone", named_vectors={"title": small})
        several = client.create_index(
            "several", named_vectors={"title": small, "body": {"encoder": MINILM, "from": "text"}}
        )
        assert both.embed(["a volcano"]).shape == (1, 384)
        assert client.index("alone").embed(["a volcano"]).shape == (1, 8)
        with pytest.raises(scannery.FailedPreconditionError, match="several encoders"):
            several.embed(["a volcano"])
    process = EncoderServer(EncoderConfig(store=str(empty), listen="127.0.0.1:0", device="cpu"))
    with process, scannery.connect(process.address) as client:
        assert client.index("both").embed(["a volcano"]).shape == (1, 384)
        assert client.index("alone").embed(["a volcano"]).shape == (1, 8)


def test_who_sees_some_indexes_and_creates_none_sees_their_encoders_only(empty: Path, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    readers = [
        keys.create("reader", indexes=["mine"])[1],
        keys.create("entries", access=[{"index": "mine"}])[1],
    ]
    _, creator = keys.create("creator", scopes=["read", "admin"], indexes=["mine"])
    security = SecurityConfig(keys_file=str(keys.path))
    with serving(empty, device="cpu", models=(MINILM,), security=security) as server:
        for reader in readers:
            with scannery.connect(server.address, api_key=reader) as client:
                assert models_of(client) == []
                with pytest.raises(scannery.FailedPreconditionError, match="there is none"):
                    client.embed(["a"], model=MINILM)
        with scannery.connect(server.address, api_key=creator) as client:
            assert models_of(client) == [MINILM]
