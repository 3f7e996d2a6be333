"""OpenAI's API of embeddings, by hand; tests/bridges/openai/test_official_openai.py asks with its own client."""

from __future__ import annotations

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from scannery.serving.security.limits import Limits
from tests.http1 import Http, Response
from tests.served import MINILM, copied, serving

TEXTS = ["a volcano erupts", "Zürich 東京 🌋", "x" * 40_000]
NESTED = 48


@pytest.fixture(scope="module")
def server(texts: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(copied(texts, tmp_path_factory.mktemp("openai")), device="cpu") as server:
        yield server


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[scannery.Client]:
    with scannery.connect(server.address) as client:
        yield client


@pytest.fixture
def http(server: Server) -> Iterator[Http]:
    with Http(server.http_port) as http:
        yield http


def embed(http: Http, headers: Any = (), **fields: Any) -> Response:
    return http.call("/v1/embeddings", {"model": MINILM, "input": "x", **fields}, headers)


def error(response: Response) -> dict[str, Any]:
    assert list(response.json) == ["error"]
    assert set(response.json["error"]) == {"message", "type", "param", "code"}
    return dict(response.json["error"])


@pytest.mark.system
def test_vectors_are_those_of_the_sdk(http: Http, client: scannery.Client) -> None:
    wanted = client.embed(TEXTS, kind="document", model=MINILM)
    answer = embed(http, input=TEXTS)
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["object"] == "list"
    assert answer.json["model"] == MINILM
    assert [(one["object"], one["index"]) for one in answer.json["data"]] == [
        ("embedding", n) for n in range(3)
    ]
    assert np.array_equal(np.array([one["embedding"] for one in answer.json["data"]], np.float32), wanted)
    packed = embed(http, input=TEXTS, encoding_format="base64").json["data"]
    vectors = [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in packed]
    assert np.array_equal(np.stack(vectors), wanted)
    [single] = embed(http, input=TEXTS[0]).json["data"]
    assert np.allclose(single["embedding"], wanted[0], atol=1e-5)
    queries = client.embed(TEXTS[:1], kind="query", model=MINILM)
    [query] = embed(http, input=TEXTS[0], input_type="query", index="texts", user="someone").json["data"]
    assert np.allclose(query["embedding"], queries[0], atol=1e-5)


@pytest.mark.system
def test_tokens_are_counted(http: Http) -> None:
    assert embed(http, input="a volcano erupts").json["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
    assert embed(http, input=["cat", "cat dog", "cat"]).json["usage"]["prompt_tokens"] == 4


def test_bodies_may_be_compressed(http: Http) -> None:
    body = gzip.compress(json.dumps({"model": MINILM, "input": ["a", "b"]}).encode())
    headers = [("content-encoding", "gzip"), ("accept-encoding", "gzip")]
    answer = http.post("/v1/embeddings", body, headers, kind="application/json")
    assert answer.headers["content-encoding"] == "gzip"
    assert len(json.loads(gzip.decompress(answer.body))["data"]) == 2


def test_models_are_listed(http: Http) -> None:
    model = {"id": MINILM, "object": "model", "created": 0, "owned_by": "scannery"}
    assert http.ask("GET", "/v1/models").json == {"object": "list", "data": [model]}
    for name in (MINILM, MINILM.replace("/", "%2F")):
        assert http.ask("GET", f"/v1/models/{name}").json == model
    missing = http.ask("GET", "/v1/models/gpt")
    assert missing.status == 404
    assert error(missing) == {
        "message": "there is no model 'gpt'",
        "type": "invalid_request_error",
        "param": "model",
        "code": "model_not_found",
    }


@pytest.mark.system
def test_only_models_that_are_trained_for_it_give_fewer_dimensions(
    http: Http, client: scannery.Client
) -> None:
    assert len(embed(http, dimensions=384).json["data"][0]["embedding"]) == 384
    refused = embed(http, dimensions=100)
    assert refused.status == 400
    assert error(refused)["param"] == "dimensions"
    assert "must be 384 for sentence-transformers/all-MiniLM-L6-v2, got 100" in error(refused)["message"]
    client.create_index("nested", encoder={"model": MINILM, "dimensions": NESTED})
    try:
        whole = np.array(embed(http, index="nested").json["data"][0]["embedding"])
        part = np.array(embed(http, index="nested", dimensions=16).json["data"][0]["embedding"])
        assert len(whole) == NESTED
        assert np.allclose(part / np.linalg.norm(part), whole[:16] / np.linalg.norm(whole[:16]), atol=1e-6)
        assert "must be 1 to 48" in error(embed(http, index="nested", dimensions=49))["message"]
        client.create_index("whole", encoder={"model": MINILM, "dimensions": 384})
        whole = np.array(embed(http, index="whole").json["data"][0]["embedding"])
        part = np.array(embed(http, index="whole", dimensions=16).json["data"][0]["embedding"])
        assert np.linalg.norm(whole) == pytest.approx(1, abs=1e-5)
        assert np.allclose(part, whole[:16] / np.linalg.norm(whole[:16]), atol=1e-5)
        # Now two encoders have this name: the index tells which is meant.
        assert "matches several encoders" in error(embed(http))["message"]
        assert embed(http, index="texts").status == 200
        assert len(http.ask("GET", "/v1/models").json["data"]) == 1
    finally:
        for name in ("nested", "whole"):
            client.drop_index(name, missing_ok=True)


@pytest.mark.system
@pytest.mark.parametrize(("fields", "status", "param", "code", "message"), [
    ({"model": "gpt"}, 404, "model", "model_not_found", "there is no encoder with model 'gpt'; there is sentence"),
    ({"model": ""}, 400, "model", None, "must be a string"),
    ({"model": 7}, 400, "model", None, "must be a string"),
    ({"input": []}, 400, "input", None, "input: must have 1 to 1000 items, got 0"),
    ({"input": ["x"] * 1001}, 400, "input", None, "must have 1 to 1000 items, got 1001"),
    ({"input": [1, 2, 3]}, 400, "input", None, "lists of tokens depend on a tokenizer of OpenAI"),
    ({"input": [[1, 2], [3]]}, 400, "input", None, "lists of tokens depend on a tokenizer of OpenAI"),
    ({"input": ["a", " "]}, 400, "input[1]", None, "input[1]: the text must not be empty"),
    ({"input": ["a", "x" * (2**20 + 1)]}, 400, "input[1]", None, "input[1]: the text must have at most 1048576"),
    ({"input": "\ud800"}, 400, "input[0]", None, "is not valid Unicode"),
    ({"input": None}, 400, "input", None, "must be a text or a list of texts"),
    ({"input": {"text": "a"}}, 400, "input", None, "must be a text or a list of texts"),
    ({"encoding_format": "int8"}, 400, "encoding_format", None, "must be float or base64"),
    ({"encoding_format": ["float"]}, 400, "encoding_format", None, "must be float or base64"),
    ({"dimensions": 0}, 400, "dimensions", None, "must be an integer from 1"),
    ({"dimensions": True}, 400, "dimensions", None, "must be an integer from 1"),
    ({"input_type": "image"}, 400, "input_type", None, "must be query or document"),
    ({"index": "none"}, 404, "index", None, "there is no index 'none'"),
    ({"stream": True}, 400, "stream", None, "there is no such field"),
])  # fmt: skip
def test_errors_have_the_form_of_openai(
    http: Http, fields: dict[str, Any], status: int, param: str, code: str | None, message: str
) -> None:
    answer = embed(http, **fields)
    assert answer.status == status
    found = error(answer)
    assert message in found.pop("message")
    assert found == {"type": "invalid_request_error", "param": param, "code": code}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "the body is not JSON"),
        (b"[]", "the body must be an object"),
        (b"\xff", "the body is not JSON"),
        (b'{"input": "a", "input": "b"}', "has the key 'input' twice"),
        (b"[" * 100_000, "the body is not JSON"),
    ],
)
def test_other_bodies_are_refused(http: Http, body: bytes, message: str) -> None:
    answer = http.post("/v1/embeddings", body, kind="application/json")
    assert answer.status == 400
    assert message in error(answer)["message"]


def test_a_body_has_a_limit(http: Http) -> None:
    refused = http.post("/v1/embeddings", b" " * (8 * 2**20 + 1), kind="application/json")
    assert refused.status == 413
    assert "has at most 8388608 bytes" in error(refused)["message"]
    assert error(refused)["type"] == "invalid_request_error"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/", "/v1/embeddings/x", "/v1/modelsx"])
def test_what_this_server_does_not_have_of_the_api_is_not_there(http: Http, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        headers = [("content-type", "application/json")]
        missing = http.ask(method, path, b"{}" if method == "POST" else b"", headers)
        assert missing.status == 404
        assert error(missing) == {
            "message": f"there is nothing at {path!r}",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }


def test_other_methods_and_kinds_are_refused(http: Http) -> None:
    unknown = http.post("/v1/embeddings", b"")
    assert (unknown.status, error(unknown)["type"]) == (415, "invalid_request_error")
    assert http.ask("HEAD", "/v1/models").status == 200
    foreign = embed(http, [("origin", "https://elsewhere.example")])
    assert foreign.status == 403


@pytest.mark.system
def test_callers_need_keys_as_everywhere(server: Server, texts: Path, tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    keys = {
        "reader": file.create("reader")[1],
        "writer": file.create("writer", scopes=["write"])[1],
        "other": file.create("other", indexes=["other"])[1],
        "part": file.create("part", access=[{"index": "*", "where": {"id": {"$ne": "t1"}}}])[1],
        "unfit": file.create("unfit", access=[{"index": "*", "where": {"nope": 1}}])[1],
        "limited": file.create("limited", limits=Limits(tokens_per_s=0.1, burst_s=40))[1],
    }
    with (
        serving(texts, security=SecurityConfig(keys_file=str(file.path)), device="cpu") as guarded,
        Http(guarded.http_port) as http,
    ):
        headers = {name: [("authorization", f"Bearer {key}")] for name, key in keys.items()}
        assert embed(http, headers["reader"]).status == 200
        assert http.ask("GET", "/v1/models", headers=headers["reader"]).json["data"]
        assert http.ask("GET", "/v1/models", headers=headers["other"]).json["data"] == []
        stranger = embed(http)
        assert (stranger.status, error(stranger)["code"]) == (401, "invalid_api_key")
        assert stranger.headers["www-authenticate"] == "Bearer"
        assert http.ask("GET", "/v1/models").status == 401
        denied = embed(http, headers["writer"])
        assert (denied.status, "scope 'read'" in error(denied)["message"]) == (403, True)
        assert embed(http, headers["limited"], input="x" * 16).status == 200  # four tokens, of four
        limited = embed(http, headers["limited"])
        assert (limited.status, error(limited)["type"]) == (429, "rate_limit_error")
        assert "tokens_per_s" in error(limited)["message"]
        assert 1 <= int(limited.headers["retry-after"]) <= 10
        # Vectors of a text say nothing of rows; of an index that a filter does not fit, nothing is seen.
        assert embed(http, headers["part"]).body == embed(http, headers["reader"]).body
        assert http.ask("GET", "/v1/models", headers=headers["unfit"]).json["data"] == []
        assert embed(http, headers["unfit"]).status == 404
        hidden = embed(http, headers["other"])
        assert (hidden.status, error(hidden)["code"]) == (404, "model_not_found")
        assert MINILM not in error(hidden)["message"].split("there is none")[-1]
