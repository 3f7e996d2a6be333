"""Answers calls of the page: a message in, a message out."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from google.protobuf import json_format
from starlette.requests import Request
from starlette.responses import Response

from scannery.client.errors import InvalidArgumentError, ScanneryError
from scannery.client.request.calls import UPSERT
from scannery.client.request.filters import build_filter
from scannery.client.transport.base import AsyncTransport
from scannery.console.config import ConsoleConfig
from scannery.console.gateway.messages import METHODS, decoded, encoded, error_answer
from scannery.console.gateway.typed_searches import OvertakenError, TypedSearches
from scannery.console.sessions import caller_secret
from scannery.runtime.asgi_server import read_body
from scannery.v1.index_pb2 import UpsertRequest

__all__ = ["Gateway", "json_answer", "json_body", "json_object", "translated"]

DEFAULT_TIMEOUT_S, MAX_TIMEOUT_S = 30.0, 300.0
MAX_BODY_BYTES = 8 << 20
MAX_OBJECT_BYTES = 64 << 10
"""Bytes of a call of the console itself: options, filters, keys."""
SHORT_BYTES = 16 << 10
"""Bytes of a message up to which it is translated where calls are answered; 8 MiB can take half a minute there."""
MAX_TRANSLATED = 2
"""Longer messages that are translated at once; further ones wait."""
TYPED_HEADER = "scannery-typed"
"""Header of a search as one types: the view that shows its answer."""
MAX_VIEW_CHARS = 64

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_LONG = ThreadPoolExecutor(MAX_TRANSLATED, thread_name_prefix="translated")


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
            body = await json_body(request)
            message = await translated(len(body), decoded, method, body)
            view = request.headers.get(TYPED_HEADER, "")[:MAX_VIEW_CHARS]
            timeout_s = _timeout_s(request)
            calling = partial(self._transport.call, method, message, timeout_s)
            if view:
                typed = self._typed.run(view, calling, owner=caller_secret())
                answer = await _while_there(request, typed)
            else:
                # A call that has begun goes on: it may write.
                await _while_there(request, self._running.acquire())
                try:
                    answer = await calling()
                finally:
                    self._running.release()
            return json_answer(200, await translated(answer.ByteSize(), encoded, answer))
        except ConnectionError:
            return Response(status_code=499)
        except OvertakenError:
            return json_answer(409, b'{"code": "aborted", "message": "a later text has taken its turn"}')
        except ScanneryError as error:
            return json_answer(*error_answer(error))
        except Exception:  # noqa: BLE001  a defect of one call ends neither it without an answer nor the console
            _LOG.exception("%s failed", request.url.path)
            return json_answer(
                500, b'{"code": "internal", "message": "the console has a defect; see its log"}'
            )

    async def filter(self, request: Request) -> Response:
        """Answer `POST /filter`: the message of a filter in the form of the SDK, `{"year": {"$gte": 2020}}`."""
        try:
            where = build_filter(await json_object(request))
            return json_answer(200, json.dumps(json_format.MessageToDict(where)).encode())
        except ScanneryError as error:
            return json_answer(*error_answer(error))

    async def update(self, request: Request) -> Response:
        """Answer `POST /update`: change fields of datapoints.

        The body is an UpsertRequest, with the `paths` of all of its update masks beside it: the JSON of a FieldMask
        cannot have names of attributes with capital letters.
        """
        try:
            body = await json_body(request)
            message = await translated(len(body), _update, body)
            answer = await self._transport.call(UPSERT, message, _timeout_s(request))
            return json_answer(200, encoded(answer))
        except ScanneryError as error:
            return json_answer(*error_answer(error))


async def json_body(request: Request, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return the body; raises InvalidArgumentError if it is too long, and ConnectionError if the caller is gone."""
    try:
        return await read_body(request.receive, max_bytes)
    except ValueError as error:
        raise InvalidArgumentError(str(error)) from error


async def json_object(request: Request) -> dict[str, Any]:
    """Return the JSON object that is the body of a call of the console itself; raises as `json_body`."""
    return _object(await json_body(request, MAX_OBJECT_BYTES))


async def translated(size: int, function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function makes of a message of `size` bytes: in a thread if that takes long for all other calls."""
    if size <= SHORT_BYTES:
        return function(*arguments)
    return await asyncio.get_running_loop().run_in_executor(_LONG, partial(function, *arguments))


def json_answer(status: int, body: bytes, headers: dict[str, Any] | None = None) -> Response:
    """Return an answer that nobody keeps."""
    return Response(
        body,
        status,
        headers={**(headers or {}), "content-type": "application/json", "cache-control": "no-store"},
    )


def _object(body: bytes) -> dict[str, Any]:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the request is wrong: {error}") from error
    if not isinstance(value, dict):
        raise InvalidArgumentError("the request is wrong: must be an object")
    return value


def _update(body: bytes) -> UpsertRequest:
    fields = _object(body)
    paths = fields.pop("paths", None)
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise InvalidArgumentError("paths: must be a list of fields", field="paths")
    message = decoded(UPSERT, json.dumps(fields).encode())
    for upsert in message.upserts:
        upsert.update_mask.paths.extend(paths)
    return message


async def _while_there(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of some work; when the caller is gone, it ends, and raises ConnectionError.

    Otherwise callers who go and come again would leave more and more calls behind that wait for their turn.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ConnectionError
        return task.result()
    finally:
        gone.cancel()
        task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _timeout_s(request: Request) -> float:
    wish = request.headers.get("connect-timeout-ms", "")
    return (
        min(max(int(wish), 1) / 1000, MAX_TIMEOUT_S)
        if re.fullmatch("[0-9]{1,9}", wish)
        else DEFAULT_TIMEOUT_S
    )
