"""Finds where a server that is reached over gRPC answers HTTP.

1. The second call of a client asks, by the metadata `scannery-http: ask`: a program of one call, as a command is, gains
   nothing. A server that answers HTTP says its port and its id in trailing metadata. Where the port was configured, the
   id is empty: several servers may share it, as they share the gRPC port.
2. A thread connects to that port of the same host and asks for health, without credentials. The endpoint is used only
   if the same id answers; if it is empty, any server of Scannery.
3. While that is not so, calls go over gRPC. After a failure the next call asks again, with waits that double.
"""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from scannery.client.transport.credentials import Credentials
from scannery.client.transport.http.connections import dial
from scannery.client.transport.http.pool import Endpoint

__all__ = ["ASK", "Discovery"]

PROBE_TIMEOUT_S = 1.0
ASK = (("scannery-http", "ask"),)

_FIRST_CALL = 2
_FIRST_WAIT_S, _MAX_WAIT_S = 5.0, 300.0
_MAX_ADDRESSES = 4
"""Addresses of a host: which of several servers by one name answered over gRPC is not known."""
_TARGET = re.compile(
    r"(?:dns:(?:///)?|ipv4:|ipv6:)?(?!(?:dns|ipv4|ipv6|unix|unix-abstract|xds):)"
    r"(\[[0-9A-Za-z:.%]+\]|[A-Za-z0-9_.-]+):[0-9]+"
)


class Discovery:
    """The search for the HTTP endpoint of one gRPC target. Safe to use from several threads; pickled, it begins anew.

    Args:
        target: of gRPC.
        credentials: decide whether connections are encrypted, as for gRPC.
        on: False: never look.
        clock: seconds.

    """

    def __init__(
        self,
        target: str,
        credentials: Credentials,
        *,
        on: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        match = _TARGET.fullmatch(target) if on else None
        self._target = target
        self._credentials = credentials
        self._host = match[1].strip("[]") if match else None
        """None: the target is not a single host with a port."""
        self._clock = clock
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._calls = 0
        self._looking = False
        self._next_s = 0.0
        self._wait_s = _FIRST_WAIT_S
        self._unserved: int | None = None
        self._proved = False
        self.endpoint: Endpoint | None = None
        """Where the server answers HTTP; None: not known."""
        self.breaks = 0
        """How many gRPC calls found no connection or lost it: another server may be there since."""

    def asks(self) -> bool:
        """Return whether this call is to ask for the endpoint; then call `told` or `failed` once."""
        if self._host is None or self.endpoint is not None:
            return False
        if self._pid != os.getpid():
            # Another thread may have held the lock when the process was forked.
            self._reset()
        with self._lock:
            self._calls += 1
            if self._looking or self._calls < _FIRST_CALL or self._unserved == self.breaks:
                return False
            self._looking = self._clock() >= self._next_s
            return self._looking

    def told(self, metadata: Iterable[Any] | None) -> None:
        """Look where the server says; `metadata` is the trailing metadata of its answer."""
        said = {key: value for key, value in metadata or () if key in ("scannery-http", "scannery-server")}
        port, server = said.get("scannery-http", ""), said.get("scannery-server")
        if server is None or not re.fullmatch(r"[1-9][0-9]{0,4}", port):
            with self._lock:
                self._looking, self._unserved = False, self.breaks
            return
        try:
            threading.Thread(
                target=self._look, args=(int(port), server), name="scannery-http-discovery", daemon=True
            ).start()
        except RuntimeError:  # no more threads, or the program is ending
            self.failed()

    def _look(self, port: int, server: str) -> None:
        try:
            endpoint = self._found(port, server)
        except Exception:  # noqa: BLE001  whatever it is, calls go over gRPC
            self.failed()
            return
        with self._lock:
            self._looking, self._proved, self._unserved = False, False, None
            self.endpoint = endpoint

    def _found(self, port: int, server: str) -> Endpoint:
        """Return the first address of the host at which the server answers; raise an OSError if there is none."""
        assert self._host is not None
        tls = self._credentials.tls_context(self._target)
        resolved = socket.getaddrinfo(self._host, port, type=socket.SOCK_STREAM)
        addresses = list(dict.fromkeys(str(where[0]) for *_, where in resolved))[:_MAX_ADDRESSES]
        for address in addresses:
            endpoint = Endpoint(self._host, port, tls is not None, address, server)
            with suppress(OSError):
                dial(endpoint, tls, time.monotonic() + PROBE_TIMEOUT_S).close()
                return endpoint
        raise ConnectionError(f"the server does not answer HTTP at {self._host}:{port}")

    def failed(self) -> None:
        """Look again after a wait."""
        with self._lock:
            self._looking = False
            self._put_off()

    def proved(self) -> None:
        """Note that the endpoint answered a call."""
        self._proved = True

    def lost(self, endpoint: Endpoint) -> None:
        """Use the endpoint no more, and look again: at once, unless it never answered a call."""
        if self._pid != os.getpid():
            self._reset()
        with self._lock:
            if self.endpoint is not endpoint:
                return
            self.endpoint = None
            if self._proved:
                self._next_s, self._wait_s = 0.0, _FIRST_WAIT_S
            else:
                self._put_off()

    def _put_off(self) -> None:
        self._next_s = self._clock() + self._wait_s
        self._wait_s = min(2 * self._wait_s, _MAX_WAIT_S)

    def __getstate__(self) -> dict[str, Any]:
        return {name: vars(self)[name] for name in ("_target", "_credentials", "_host", "_clock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()
