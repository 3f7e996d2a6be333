"""Answers calls of the page: a message in, a message out."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from google.protobuf import json_format
from google.protobuf.message import Message
from starlette.requests import Request
from starlette.responses import Response

from scannery.client.errors import InvalidArgumentError, ScanneryError
from scannery.client.request.calls import UPSERT, Method
from scannery.client.request.filters import build_filter
from scannery.client.transport.base import AsyncTransport
from scannery.console.config import ConsoleConfig
from scannery.console.gateway.messages import METHODS, decoded, encoded, error_answer
from scannery.console.gateway.typed_searches import OvertakenError, TypedSearches
from scannery.runtime.asgi_server import read_body

__all__ = ["Gateway", "json_answer", "json_body"]

DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S = 30.0, 300.0
MAX_BODY_BYTES = 8 << 20
TYPED_HEADER = "scannery-typed"
"""Header of a search as one types: the view that shows its answer."""
MAX_VIEW_CHARS = 64

_LOG = logging.getLogger(__name__)


class Gateway:
    """Passes calls on.

    Args:
        transport: to the server or the store.
        config: of the console.

    """

    def __init__(self, transport: AsyncTransport, config: ConsoleConfig) -> None:
        self._transport = transport
        self._typed = TypedSearches(config.typed_searches)
        self._running = asyncio.Semaphore(config.calls)

    async def call(self, request: Request) -> Response:
        """Answer `POST /SERVICE/METHOD`, which is as a server answers it (docs/http.md)."""
        method = METHODS.get(request.url.path)
        if method is None:
            return json_answer(404, b'{"code": "unimplemented", "message": "there is no such method"}')
        try:
            message = decoded(method, await json_body(request))
            view = request.headers.get(TYPED_HEADER, "")[:MAX_VIEW_CHARS]
            timeout_s = _timeout_s(request)
            if view:
                answer = await self._typed.run(view, lambda: self._answer(method, message, timeout_s))
            else:
                async with self._running:
                    answer = await self._answer(method, message, timeout_s)
            return json_answer(200, encoded(answer))
        except OvertakenError:
            return json_answer(409, b'{"code": "aborted", "message": "a later text has taken its turn"}')
        except ScanneryError as error:
            return json_answer(*error_answer(error))
        except Exception:  # noqa: BLE001  a defect of one call ends neither it without an answer nor the console
            _LOG.exception("%s failed", request.url.path)
            return json_answer(
                500, b'{"code": "internal", "message": "the console has a defect; see its log"}'
            )

    async def _answer(self, method: Method[Message, Message], message: Message, timeout_s: float) -> Message:
        return await self._transport.call(method, message, timeout_s)

    async def filter(self, request: Request) -> Response:
        """Answer `POST /filter`: the message of a filter in the form of the SDK, `{"year": {"$gte": 2020}}`."""
        try:
            body = json.loads(await json_body(request))
            if not isinstance(body, dict):
                raise InvalidArgumentError("where: must be an object", field="where")
            return json_answer(200, json.dumps(json_format.MessageToDict(build_filter(body))).encode())
        except ValueError as error:
            wrong = (
                error
                if isinstance(error, ScanneryError)
                else InvalidArgumentError(f"where: {error}", field="where")
            )
            return json_answer(*error_answer(wrong))

    async def update(self, request: Request) -> Response:
        """Answer `POST /update`: change fields of datapoints.

        The body is an UpsertRequest, with the `paths` of all of its update masks beside it: the JSON of a FieldMask
        cannot have names of attributes with capital letters.
        """
        try:
            body = json.loads(await json_body(request))
            paths = body.pop("paths", None) if isinstance(body, dict) else None
            if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
                raise InvalidArgumentError("paths: must be a list of fields", field="paths")
            message = decoded(UPSERT, json.dumps(body).encode())
            for upsert in message.upserts:
                upsert.update_mask.paths.extend(paths)
            answer = await self._transport.call(UPSERT, message, _timeout_s(request))
            return json_answer(200, encoded(answer))
        except ScanneryError as error:
            return json_answer(*error_answer(error))
        except ValueError as error:
            return json_answer(*error_answer(InvalidArgumentError(f"the request is wrong: {error}")))


async def json_body(request: Request) -> bytes:
    """Return the body of a request; raises InvalidArgumentError if it is too long."""
    try:
        return await read_body(request.receive, MAX_BODY_BYTES)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error


def json_answer(status: int, body: bytes, headers: dict[str, Any] | None = None) -> Response:
    """Return an answer that nobody keeps."""
    return Response(
        body,
        status,
        headers={**(headers or {}), "content-type": "application/json", "cache-control": "no-store"},
    )


def _timeout_s(request: Request) -> float:
    wish = request.headers.get("connect-timeout-ms", "")
    return min(max(int(wish), 1) / 1000, MAX_TIMEOUT_S) if wish.isdecimal() else DEFAULT_TIMEOUT_S
