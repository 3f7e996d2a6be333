"""The console as an ASGI application, and its server."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress

from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import scannery
from scannery.client.errors import ScanneryError
from scannery.client.request.calls import LIST_INDEXES
from scannery.client.transport.base import AsyncTransport
from scannery.console.browsers import Browsers
from scannery.console.config import ConsoleConfig
from scannery.console.files.calls import FileCalls
from scannery.console.files.formats import FileFormats
from scannery.console.files.uploads import Uploads
from scannery.console.gateway.calls import DEFAULT_TIMEOUT_S, Gateway, json_answer, json_object
from scannery.console.gateway.messages import METHODS, error_answer
from scannery.console.history.calls import History
from scannery.console.judging.endpoints import Judging
from scannery.console.map.calls import MapCalls
from scannery.console.pages import HEADERS, index_page, web_file
from scannery.console.sessions import Session, Sessions
from scannery.runtime.asgi_server import listener_on, serve_asgi

__all__ = ["application", "serve_console"]

SESSION_HEADER = "scannery-session"
"""Header of a call: the proof of its session."""

_NO_SESSION = json.dumps(
    {
        "code": "unauthenticated",
        "message": "open the address that the console printed when it started; it can be used once, for a minute: "
        "start the console again for another one",
    }
).encode()


async def serve_console(
    transport: AsyncTransport, config: ConsoleConfig, formats: FileFormats, ready: Callable[[str], None]
) -> None:
    """Serve the console until SIGTERM or Ctrl-C.

    Args:
        transport: to the server or the store; to a server, with `sessions.caller_secret` as its token.
        config: of the console.
        formats: read and write files.
        ready: called with the address to open in a browser when requests are answered. With `needs_session`, it has a
            code that is exchanged for a session once.

    Raises:
        OSError: the address is in use, or is none of this machine.

    """
    with listener_on(config.host, config.port) as listener, Uploads() as uploads:
        port = listener.getsockname()[1]
        sessions = Sessions(config, port)
        host = f"[{config.host}]" if ":" in config.host else config.host
        url = f"{'https' if config.tls_cert else 'http'}://{host}:{port}/"

        def tell() -> None:
            ready(f"{url}#code={sessions.code()}" if config.needs_session else url)

        files, history, maps = FileCalls(transport, formats, uploads), History(transport), MapCalls(transport)
        further = [*files.routes(), Route("/history", history.answer, methods=["POST"]), *maps.routes()]
        app = application(transport, config, sessions, further)
        try:
            await serve_asgi(
                app, listener, config.limits, tell, tls_cert=config.tls_cert, tls_key=config.tls_key
            )
        finally:
            await history.close()
            await files.jobs.close()
            await maps.maps.close()


def application(
    transport: AsyncTransport, config: ConsoleConfig, sessions: Sessions, further: Sequence[Route]
) -> ASGIApp:
    """Return the application; `further` routes are those of its rooms."""
    gateway = Gateway(transport, config)
    login = _Login(transport, config, sessions)
    routes = [
        Route("/session", login.show, methods=["GET"]),
        Route("/session", login.begin, methods=["POST"]),
        Route("/session", login.end, methods=["DELETE"]),
        Route("/filter", gateway.filter, methods=["POST"]),
        Route("/update", gateway.update, methods=["POST"]),
        *further,
        *(Route(path, gateway.call, methods=["POST"]) for path in METHODS),
        *Judging(transport, config.judgements).routes(),
        Route("/web/{path:path}", web_file),
        Route("/", index_page),
        Route("/ops", index_page),
        Route("/i/{index}/{page:path}", index_page),
    ]
    return _Guard(Starlette(routes=routes), config, sessions)


def session_of(request: Request, sessions: Sessions) -> Session | None:
    """Return the session of a request; None: it has none."""
    return sessions.of(request.cookies.get(sessions.cookie), request.headers.get(SESSION_HEADER, ""))


class _Guard:
    """What holds for every request: where it comes from, who sends it, and the headers of the answer."""

    def __init__(self, app: ASGIApp, config: ConsoleConfig, sessions: Sessions) -> None:
        self._app = app
        self._browsers = Browsers(config)
        self._needs_session = config.needs_session
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def bound(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        app = self._refusal(scope) or self._app
        with suppress(ConnectionError):  # the caller has gone before its request was whole
            await app(scope, receive, bound)

    def _refusal(self, scope: Scope) -> Response | None:
        headers, method = Headers(scope=scope), scope["method"]
        if (reason := self._browsers.refusal(method, headers)) is not None:
            return json_answer(403, json.dumps({"code": "permission_denied", "message": reason}).encode())
        session = session_of(Request(scope), self._sessions)
        (session or Session("", 0.0, 0.0)).enter()
        is_open = method in ("GET", "HEAD") or scope["path"] == "/session"
        if session is None and self._needs_session and not is_open:
            return json_answer(401, _NO_SESSION)
        return None


class _Login:
    """Sessions begin and end."""

    def __init__(self, transport: AsyncTransport, config: ConsoleConfig, sessions: Sessions) -> None:
        self._transport = transport
        self._config = config
        self._sessions = sessions

    async def show(self, request: Request) -> Response:
        """Answer what the page shows before any call."""
        session = session_of(request, self._sessions)
        answer = {
            "target": self._config.title,
            "version": scannery.__version__,
            "needsSession": self._config.needs_session,
            "takesKeys": self._config.takes_keys,
            "session": session is not None,
        }
        return json_answer(200, json.dumps(answer).encode())

    async def begin(self, request: Request) -> Response:
        """Begin a session with a printed code, or with a key or token that the target takes."""
        try:
            body = await json_object(request)
            code, secret = (str(body.get(name, "")) for name in ("code", "secret"))
            code.encode()
        except ValueError:
            return json_answer(400, b'{"code": "invalid_argument", "message": "give a code or a secret"}')
        if code:
            cookie = self._sessions.exchange(code)
        elif not (self._config.takes_keys and secret):
            cookie = None
        else:
            Session(secret, 0.0, 0.0).enter()
            try:
                await self._transport.call(LIST_INDEXES, LIST_INDEXES.request(page_size=1), DEFAULT_TIMEOUT_S)
            except ScanneryError as error:
                # A key without the scope `read` is a key.
                if error.code != "PERMISSION_DENIED":
                    return json_answer(*error_answer(error))
            cookie = self._sessions.begin(secret)
        if cookie is None:
            return json_answer(401, _NO_SESSION)
        return self._with_cookie(cookie)

    async def end(self, request: Request) -> Response:
        """End the session."""
        self._sessions.end(request.cookies.get(self._sessions.cookie))
        return self._with_cookie("")

    def _with_cookie(self, cookie: str) -> Response:
        answer = json_answer(
            200, json.dumps({"proof": self._sessions.proof(cookie)} if cookie else {}).encode()
        )
        answer.set_cookie(
            self._sessions.cookie,
            cookie,
            max_age=None if cookie else 0,
            httponly=True,
            samesite="strict",
            secure=self._config.is_encrypted,
        )
        return answer
