"""The calls of the page about judgement sets: `POST /judgements/NAME` with JSON.

Whoever may read all of an index on the target may judge it: each call first asks the target for the index and the
caller, with the key of its session. Sets name documents and questions of others, so whoever sees a part has none.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scannery.client.errors import InvalidArgumentError, PermissionDeniedError, ScanneryError
from scannery.client.request.calls import GET_INDEX
from scannery.client.transport.base import AsyncTransport
from scannery.console.gateway.callers import caller_of, sees_all_of
from scannery.console.gateway.calls import DEFAULT_TIMEOUT_S, json_answer
from scannery.console.gateway.messages import error_answer
from scannery.console.judgement_sets import JudgementSets
from scannery.runtime.asgi_server import read_body
from scannery.runtime.errors import CodedError

__all__ = ["Judging"]

MAX_BODY_BYTES = 32 << 20
"""Bytes of a call: the rankings of four columns for two thousand questions."""

_LOG = logging.getLogger(__name__)


class Judging:
    """Answers the calls.

    Args:
        transport: to the server or the store.
        sets: are read and written in threads.

    """

    def __init__(self, transport: AsyncTransport, sets: JudgementSets) -> None:
        self._transport = transport
        self._sets = sets
        # Marks of one process wait here for each other; those of several, for the lock of the file.
        self._writing = asyncio.Lock()

    def routes(self) -> list[Route]:
        """Return what answers which path."""
        calls = {
            "sets": self._list,
            "contents": self._contents,
            "marks": self._marks,
            "add": self._add,
            "mark": self._mark,
            "measure": self._measure,
        }
        return [
            Route(f"/judgements/{name}", self._answering(call), methods=["POST"])
            for name, call in calls.items()
        ]

    def _answering(
        self, call: Callable[[str, _Fields], Awaitable[Any]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def respond(request: Request) -> Response:
            try:
                fields = _Fields(await _body(request))
                message = GET_INDEX.request(index=fields.text("index"))
                answer = await self._transport.call(GET_INDEX, message, DEFAULT_TIMEOUT_S)
                if not sees_all_of(await caller_of(self._transport), answer.index.name):
                    raise PermissionDeniedError(
                        "judgements are about all of an index, and this key opens a part of it"
                    )
                # An alias has no sets of its own.
                return _json(await call(answer.index.name, fields))
            except (ScanneryError, CodedError) as error:
                return json_answer(*error_answer(error))
            except ConnectionError:  # the caller is gone
                return Response(status_code=499)
            except OSError as error:
                _LOG.warning("the folder of judgements: %s", error)
                text = f"the folder of judgements cannot be used: {error.strerror}: {error.filename}"
                return _json({"code": "failed_precondition", "message": text}, 400)
            except Exception:  # noqa: BLE001  a defect of one call does not end the console
                _LOG.exception("%s failed", request.url.path)
                return _json({"code": "internal", "message": "the console has a defect; see its log"}, 500)

        return respond

    async def _list(self, index: str, fields: _Fields) -> Any:
        sets = await asyncio.to_thread(self._sets.sets, index)
        return {"sets": sets, "who": await self._caller()}

    async def _contents(self, index: str, fields: _Fields) -> Any:
        return await asyncio.to_thread(self._sets.contents, index, fields.text("set"))

    async def _marks(self, index: str, fields: _Fields) -> Any:
        name = fields.text("set")
        if fields.get("question") is None:
            question = await asyncio.to_thread(self._sets.question_of, index, name, fields.text("text"))
        else:
            question = fields.text("question")
        documents = await asyncio.to_thread(self._sets.marks, index, name, question) if question else {}
        return {"question": question, "documents": documents}

    async def _add(self, index: str, fields: _Fields) -> Any:
        async with self._writing:
            return await asyncio.to_thread(
                self._sets.add, index, fields.text("set"), fields.text("file"), fields.text("text")
            )

    async def _mark(self, index: str, fields: _Fields) -> Any:
        # Whoever has a key is who the key says.
        by = await self._caller() or fields.text("by")
        arguments = (index, fields.text("set"), fields.text("question"), fields.text("document"))
        async with self._writing:
            return await asyncio.to_thread(self._sets.mark, *arguments, fields.get("level"), by)

    async def _measure(self, index: str, fields: _Fields) -> Any:
        rankings = fields.get("rankings")
        is_right = isinstance(rankings, dict) and all(
            isinstance(column, dict)
            and all(
                isinstance(ids, list) and all(isinstance(each, str) for each in ids)
                for ids in column.values()
            )
            for column in rankings.values()
        )
        if not rankings or not is_right:
            raise InvalidArgumentError(
                "rankings: must be lists of ids by column and question", field="rankings"
            )
        return await asyncio.to_thread(self._sets.measure, index, fields.text("set"), rankings)

    async def _caller(self) -> str:
        """Return the name of the caller's credentials; empty: the target asks for none, or does not say."""
        caller = await caller_of(self._transport)
        return caller.name if caller.asks_for_credentials else ""


class _Fields:
    """The fields of a call; a wrong one raises InvalidArgumentError."""

    def __init__(self, body: Mapping[str, Any]) -> None:
        self._body = body

    def text(self, name: str) -> str:
        value = self._body.get(name)
        if not isinstance(value, str):
            raise InvalidArgumentError(f"{name}: must be a text", field=name)
        return value

    def get(self, name: str) -> Any:
        return self._body.get(name)


async def _body(request: Request) -> Mapping[str, Any]:
    try:
        body = await asyncio.to_thread(json.loads, await read_body(request.receive, MAX_BODY_BYTES))
    except (ValueError, RecursionError) as error:
        raise InvalidArgumentError(f"the request is wrong: {error}") from error
    if not isinstance(body, dict):
        raise InvalidArgumentError("the request is wrong: must be an object")
    return body


def _json(value: Any, status: int = 200) -> Response:
    text = json.dumps(value, default=_plain, ensure_ascii=False, separators=(",", ":"))
    return json_answer(status, text.encode(errors="replace"))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise TypeError(f"{type(value).__name__} is no JSON")
