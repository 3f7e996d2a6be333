"""OpenAI's own client, and LangChain's and LlamaIndex' way of asking, against `/v1/embeddings`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openai
import pytest

import scannery
from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from tests.served import MINILM, serving

TEXTS = ["a volcano erupts", "bees make honey"]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys.json")
    return str(file.path), file.create("reader")[1]


@pytest.fixture(scope="module")
def server(texts: Path, key: tuple[str, str]) -> Iterator[Server]:
    with serving(texts, security=SecurityConfig(keys_file=key[0]), device="cpu") as server:
        yield server


@pytest.fixture(scope="module")
def wanted(server: Server, key: tuple[str, str]) -> np.ndarray:
    with scannery.connect(server.address, token=key[1]) as client:
        return client.embed(TEXTS, kind="document", model=MINILM)


def options(server: Server, key: str) -> dict[str, object]:
    return {"base_url": f"http://127.0.0.1:{server.http_port}/v1", "api_key": key, "max_retries": 0}


@pytest.fixture(scope="module")
def client(server: Server, key: tuple[str, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(**options(server, key[1])) as client:
        yield client


@pytest.mark.parametrize("encoding", [{}, {"encoding_format": "float"}, {"encoding_format": "base64"}])
def test_the_client_gets_vectors(client: openai.OpenAI, wanted: np.ndarray, encoding: dict[str, str]) -> None:
    found = client.embeddings.create(model=MINILM, input=TEXTS, **encoding)
    assert found.model == MINILM
    assert found.usage.prompt_tokens == found.usage.total_tokens == 8
    if encoding.get("encoding_format") != "base64":
        assert np.allclose([one.embedding for one in found.data], wanted, atol=1e-6)
    single = client.embeddings.create(model=MINILM, input=TEXTS[1], dimensions=384)
    assert np.allclose(single.data[0].embedding, wanted[1], atol=1e-5)


async def test_the_asynchronous_client_gets_vectors(
    server: Server, key: tuple[str, str], wanted: np.ndarray
) -> None:
    async with openai.AsyncOpenAI(**options(server, key[1])) as client:
        found = await client.embeddings.create(
            model=MINILM, input=TEXTS, extra_body={"input_type": "document"}
        )
        assert np.allclose([one.embedding for one in found.data], wanted, atol=1e-6)


def test_the_client_lists_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MINILM]
    assert client.models.retrieve(MINILM).owned_by == "scannery"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt")


def test_the_client_raises_its_own_errors(client: openai.OpenAI, server: Server) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="lists of tokens") as tokens:
        client.embeddings.create(model=MINILM, input=[[1, 2], [3]])
    assert tokens.value.param == "input"
    with pytest.raises(openai.BadRequestError, match="must be 384"):
        client.embeddings.create(model=MINILM, input="a", dimensions=256)
    with (
        openai.OpenAI(**options(server, "wrong")) as stranger,
        pytest.raises(openai.AuthenticationError) as found,
    ):
        stranger.embeddings.create(model=MINILM, input="a")
    assert found.value.code == "invalid_api_key"
