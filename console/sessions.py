"""Sessions: a browser holds a random cookie, and this process the key or token that it stands for.

The key is never in a URL, in a log, or in JavaScript after the login. A console that has credentials of its own, or a
store, prints a code that is exchanged for a session once.

Browsers send a cookie to all ports of a host, so whoever serves a page on this machine could read it there. A call
therefore also shows a proof, which the page keeps in the storage of its origin: that is of one port.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass

from scannery.console.config import ConsoleConfig

__all__ = ["Session", "Sessions", "caller_secret"]

IDLE_S, MAX_S = 8 * 3600.0, 24 * 3600.0
"""How long a session lasts without a call, and at most."""
CODE_S = 60.0
"""How long a printed code can be exchanged."""
MAX_SESSIONS = 256

_SECRET: ContextVar[str] = ContextVar("_SECRET", default="")


def caller_secret() -> str:
    """Return the key or token of the request that is answered; empty: it has none."""
    return _SECRET.get()


@dataclass(slots=True)
class Session:
    """Who calls."""

    secret: str
    """Key or token; empty: none."""
    made_s: float
    used_s: float

    def enter(self) -> None:
        """Make the calls of this task with its secret."""
        _SECRET.set(self.secret)


class Sessions:
    """The sessions of a console, by cookie.

    Args:
        config: of the console.
        port: of the console, which the name of the cookie has: browsers share cookies between ports.

    """

    def __init__(self, config: ConsoleConfig, port: int) -> None:
        self.cookie = f"scannery_{port}"
        self._config = config
        self._sessions: dict[str, Session] = {}
        self._codes: dict[str, float] = {}
        self._key = secrets.token_bytes(32)

    def code(self) -> str:
        """Return a new code that can be exchanged once."""
        self._codes[code := secrets.token_urlsafe(32)] = time.monotonic() + CODE_S
        return code

    def exchange(self, code: str) -> str | None:
        """Return the cookie of a new session with the console's credentials; None: the code is used, old, or none."""
        now_s = time.monotonic()
        for each, until_s in list(self._codes.items()):
            if until_s < now_s or hmac.compare_digest(each.encode(), code.encode()):
                del self._codes[each]
                if until_s >= now_s:
                    return self.begin(self._config.secret)
        return None

    def begin(self, secret: str) -> str:
        """Return the cookie of a new session; of the key with most sessions, the one idle longest makes room."""
        now_s = time.monotonic()
        if len(self._sessions) >= MAX_SESSIONS:
            counts = Counter(each.secret for each in self._sessions.values())
            ages = {name: (-counts[each.secret], each.used_s) for name, each in self._sessions.items()}
            del self._sessions[min(ages, key=ages.__getitem__)]
        self._sessions[cookie := secrets.token_urlsafe(32)] = Session(secret, now_s, now_s)
        return cookie

    def proof(self, cookie: str) -> str:
        """Return what shows that a caller has been given the cookie by this console."""
        return hmac.new(self._key, cookie.encode(), "sha256").hexdigest()

    def of(self, cookie: str | None, proof: str) -> Session | None:
        """Return the session of a cookie; None: there is none, it has ended, or the proof is that of another one."""
        if not hmac.compare_digest(proof.encode(), self.proof(cookie or "").encode()):
            return None
        session = self._sessions.get(cookie or "")
        now_s = time.monotonic()
        if session is None or now_s - session.used_s > IDLE_S or now_s - session.made_s > MAX_S:
            self.end(cookie)
            return None
        session.used_s = now_s
        return session

    def end(self, cookie: str | None) -> None:
        """Forget a session."""
        self._sessions.pop(cookie or "", None)
