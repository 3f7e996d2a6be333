"""Calls of the page about files: send them, look at what they have, write it, watch the job; and rows as a file."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scannery.client.aio import AsyncClient
from scannery.client.errors import InvalidArgumentError, PermissionDeniedError
from scannery.client.request.calls import SCAN
from scannery.client.response.decoding import parse_page
from scannery.client.transport.base import AsyncTransport
from scannery.console.files.formats import FileFormats
from scannery.console.files.jobs import Jobs
from scannery.console.files.uploads import Uploads
from scannery.console.gateway.calls import DEFAULT_TIMEOUT_S, json_answer, json_body, json_object, translated
from scannery.console.gateway.messages import decoded, error_answer
from scannery.console.sessions import caller_secret
from scannery.runtime.errors import CodedError
from scannery.v1.search_pb2 import ScanResponse

__all__ = ["FileCalls"]

EXPORT_ROWS = 2000
"""Rows of a part of an export."""


class FileCalls:
    """The calls.

    Args:
        transport: to the server or the store.
        formats: read and write the files.
        uploads: hold the files.

    """

    def __init__(self, transport: AsyncTransport, formats: FileFormats, uploads: Uploads) -> None:
        self._transport = transport
        self._client = client = AsyncClient(transport, timeout_s=DEFAULT_TIMEOUT_S)
        self._formats = formats
        self._uploads = uploads
        self.jobs = Jobs(client, formats)

    def routes(self) -> Sequence[Route]:
        """Return what answers which path."""
        calls = {
            "begin": self._begin,
            "discard": self._discard,
            "check": self._check,
            "draft": self._draft,
            "write": self._write,
            "jobs": self._list_jobs,
            "stop": self._stop,
            "letters": self._letters,
        }
        return [
            Route("/files/add", _answered(self._add), methods=["POST"]),
            Route("/files/export", _answered(self._export), methods=["POST"]),
            *(
                Route(f"/files/{name}", _answered(_with_body(call)), methods=["POST"])
                for name, call in calls.items()
            ),
        ]

    async def _begin(self, _body: Mapping[str, Any]) -> Any:
        # A disk is not filled by those who could write nothing.
        if "write" not in (await self._client.whoami()).scopes:
            raise PermissionDeniedError("files are written to an index: the scope `write` is missing")
        return {"upload": self._uploads.begin(caller_secret())}

    async def _add(self, request: Request) -> Any:
        """Append a part of a file: `upload`, `name` and `offset` in the query, the bytes as body."""
        query = request.query_params
        offset = query.get("offset", "")
        if not (offset.isascii() and offset.isdigit() and len(offset) < 12):
            raise InvalidArgumentError("offset: must be a number from 0", field="offset")
        content = await json_body(request)
        upload, name = query.get("upload", ""), query.get("name", "")
        return {"name": self._uploads.add(caller_secret(), upload, name, int(offset), content)}

    async def _discard(self, body: Mapping[str, Any]) -> Any:
        self._uploads.discard(caller_secret(), _text(body, "upload"))
        return {}

    async def _check(self, body: Mapping[str, Any]) -> Any:
        """Return what the spec of an index makes of a sample of the files."""
        folder = self._uploads.folder(caller_secret(), _text(body, "upload"))
        info = await self._client.index(_text(body, "index")).stats()
        return await asyncio.to_thread(self._formats.check, folder, info.spec)

    async def _draft(self, body: Mapping[str, Any]) -> Any:
        """Return a spec that fits the files."""
        folder = self._uploads.folder(caller_secret(), _text(body, "upload"))
        return await asyncio.to_thread(self._formats.draft, folder)

    async def _write(self, body: Mapping[str, Any]) -> Any:
        """Begin a job that writes the files to an index."""
        upload, index = _text(body, "upload"), _text(body, "index")
        # The name that it has, whatever alias it was called by, and whether the caller may see it.
        name = (await self._client.index(index).stats()).name
        folder = self._uploads.read(caller_secret(), upload)
        return self.jobs.start(caller_secret(), name, folder, lambda: self._uploads.remove(upload)).to_json()

    async def _list_jobs(self, body: Mapping[str, Any]) -> Any:
        return {"jobs": [job.to_json() for job in self.jobs.of_index(caller_secret(), _text(body, "index"))]}

    async def _stop(self, body: Mapping[str, Any]) -> Any:
        job = self.jobs.of(caller_secret(), _text(body, "job"))
        job.is_stopping = True
        return job.to_json()

    async def _letters(self, body: Mapping[str, Any]) -> Any:
        """Return all refused records that are kept."""
        return {"letters": self.jobs.of(caller_secret(), _text(body, "job")).letters}

    async def _export(self, request: Request) -> Response:
        """Return a page of a ScanRequest as JSON lines, with the token of the next page and the number of all rows."""
        body = await json_body(request)
        message = await translated(len(body), decoded, SCAN, body)
        message.page_size = EXPORT_ROWS
        answer = await self._transport.call(SCAN, message, DEFAULT_TIMEOUT_S)
        headers = {
            "content-type": "application/x-ndjson",
            "cache-control": "no-store",
            "scannery-index": answer.index,
            "scannery-next": answer.next_page_token,
            "scannery-total": str(answer.total),
        }
        return Response(await asyncio.to_thread(self._lines, answer), headers=headers)

    def _lines(self, answer: ScanResponse) -> bytes:
        return "".join(f"{self._formats.line(point)}\n" for point in parse_page(answer).points).encode()


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidArgumentError(f"{name}: is required, a string", field=name)
    return value


def _with_body(call: Callable[[Mapping[str, Any]], Awaitable[Any]]) -> Callable[[Request], Awaitable[Any]]:
    async def with_body(request: Request) -> Any:
        return await call(await json_object(request))

    return with_body


def _answered(call: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def answered(request: Request) -> Response:
        try:
            # Excerpts of broken records may have lone surrogates, which UTF-8 cannot.
            answer = await call(request)
            return answer if isinstance(answer, Response) else json_answer(200, json.dumps(answer).encode())
        except CodedError as error:
            return json_answer(*error_answer(error))

    return answered
