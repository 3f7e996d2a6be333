"""OpenAI's API of embeddings: `POST /v1/embeddings`, `GET /v1/models` and `GET /v1/models/NAME`.

Many tools know no other way to ask for vectors. The requests become calls of EmbeddingService, with the same
authentication, scopes, admission and limits. What the API has and this server does not is refused, never ignored.
"""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import unquote

import numpy as np
from grpc import StatusCode

from scannery.indexer.strict_json import strict_json
from scannery.runtime.errors import EncoderUnavailableError, InvalidRequestError
from scannery.serving.bridging import HttpCall, HttpHead, RefusedError
from scannery.serving.contract import EMBED, LIST_ENCODERS
from scannery.v1 import embedding_pb2 as pb

__all__ = ["EMBEDDINGS", "MODELS", "EmbeddingsApi"]

EMBEDDINGS = "/v1/embeddings"
MODELS = "/v1/models"
_JSON = "application/json"

_KINDS = {"query": pb.TEXT_KIND_QUERY, "document": pb.TEXT_KIND_DOCUMENT, "passage": pb.TEXT_KIND_DOCUMENT}
_FORMATS = ("float", "base64")
_KEYS = ("input", "model", "encoding_format", "dimensions", "user", "input_type", "index")
_TOKENS = (
    "input: must be a text or a list of texts; lists of tokens depend on a tokenizer of OpenAI. LangChain sends texts "
    "with check_embedding_ctx_length=False"
)


class EmbeddingsApi:
    """The paths of the API; all that begin with `/v1/` are answered in its form."""

    prefix = "/v1/"

    def methods(self, path: str) -> tuple[str, ...]:
        """Return the HTTP methods that a path of this API has; empty: the server does not have it."""
        if path == EMBEDDINGS:
            return ("POST",)
        return ("GET", "HEAD") if path == MODELS or path.startswith(f"{MODELS}/") else ()

    def call(self, head: HttpHead) -> HttpCall:
        """Return the call for a head with a method that its path has.

        Raises:
            RefusedError: the body is not JSON.

        """
        if head.path != EMBEDDINGS:
            return _Models(unquote(head.path[len(MODELS) + 1 :]))
        if not head.json:
            raise RefusedError(415, StatusCode.INVALID_ARGUMENT, f"content-type: must be {_JSON}")
        return _Embeddings()

    def error(self, status: int, code: StatusCode, message: str, field: str) -> tuple[int, bytes]:
        """Return the HTTP status and the body of an error.

        Args:
            status: that of this server.
            code: of the error.
            message: of the error; it begins with the field of the call, if it is about one.
            field: of the call; empty: none.

        """
        param = f"input{field[len('texts') :]}" if field.startswith("texts") else field
        if param != field:
            message = f"{param}{message.removeprefix(field)}"
        kind, name = "invalid_request_error", None
        if code is StatusCode.FAILED_PRECONDITION and field == "model":
            status, name = 404, "model_not_found"
        elif code is StatusCode.UNAUTHENTICATED:
            name = "invalid_api_key"
        elif status == 429:
            kind, name = "rate_limit_error", "rate_limit_exceeded"
        elif status >= 500:
            kind = "server_error"
        error = {"message": message, "type": kind, "param": param or None, "code": name}
        return status, _json({"error": error})


class _Embeddings:
    """Texts to vectors."""

    path, content_type = EMBED, _JSON

    def __init__(self) -> None:
        self._model, self._format = "", "float"

    def request(self, data: bytes) -> pb.EmbedRequest:
        body = _body(data)
        self._model, self._format = (
            _text(body, "model", required=True),
            body.get("encoding_format") or "float",
        )
        if self._format not in _FORMATS:
            raise InvalidRequestError.at("encoding_format", "must be float or base64")
        kind = _KINDS.get(_text(body, "input_type") or "document")
        if kind is None:
            raise InvalidRequestError.at("input_type", "must be query or document")
        request = pb.EmbedRequest(
            texts=_input(body.get("input")),
            model=self._model,
            index=_text(body, "index"),
            kind=kind,
            count_tokens=True,
        )
        if body.get("dimensions") is not None:
            request.dimensions = _dimensions(body["dimensions"])
        return request

    def answer(self, response: bytes) -> bytes:
        reply = pb.EmbedResponse.FromString(response)
        vectors_ND = np.frombuffer(reply.vectors.packed, "<f4").reshape(-1, reply.vectors.dimensions)
        data = [
            {"object": "embedding", "index": number, "embedding": self._encoded(vector_D)}
            for number, vector_D in enumerate(vectors_ND)
        ]
        usage = {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens}
        return _json({"object": "list", "data": data, "model": self._model, "usage": usage})

    def _encoded(self, vector_D: np.ndarray) -> str | list[float]:
        if self._format == "base64":
            return base64.b64encode(vector_D.tobytes()).decode("ascii")
        values: list[float] = vector_D.tolist()
        return values


class _Models:
    """The encoders that the caller can see, by the names of their models, or one of them."""

    path, content_type = LIST_ENCODERS, _JSON

    def __init__(self, name: str) -> None:
        self._name = name

    def request(self, data: bytes) -> pb.ListEncodersRequest:
        return pb.ListEncodersRequest()

    def answer(self, response: bytes) -> bytes:
        encoders = pb.ListEncodersResponse.FromString(response).encoders
        models = {
            encoder.model: {"id": encoder.model, "object": "model", "created": 0, "owned_by": "scannery"}
            for encoder in encoders
        }
        if not self._name:
            return _json({"object": "list", "data": list(models.values())})
        if self._name not in models:
            raise EncoderUnavailableError(f"there is no model {self._name!r:.100}", field="model")
        return _json(models[self._name])


def _body(data: bytes) -> dict[str, Any]:
    try:
        body = strict_json(data.decode())
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidRequestError("the body must be an object")
    for name in body:
        if name not in _KEYS:
            what = f"there is no such field; there are {', '.join(_KEYS)}"
            raise InvalidRequestError.at(_valid(name)[:100], what)
    return body


def _input(value: object) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        raise InvalidRequestError("input: must be a text or a list of texts", field="input")
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequestError(_TOKENS, field="input")
        field_path = f"input[{number}]"
        if not text.strip():
            raise InvalidRequestError.at(field_path, "the text must not be empty")
        if text != _valid(text):
            raise InvalidRequestError.at(field_path, "is not valid Unicode")
    return texts


def _text(body: dict[str, Any], name: str, *, required: bool = False) -> str:
    value = body.get(name)
    if value is None and not required:
        return ""
    if not isinstance(value, str) or (required and not value) or value != _valid(value):
        raise InvalidRequestError.at(name, "must be a string")
    return value


def _dimensions(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 1 << 31:
        raise InvalidRequestError.at("dimensions", "must be an integer from 1")
    return value


def _valid(text: str) -> str:
    """Return a text with escapes in place of lone surrogates, which JSON can have and a message cannot."""
    return text.encode(errors="backslashreplace").decode()


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
