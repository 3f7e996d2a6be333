"""Fetch a file over HTTP from a host that the operator allows: bounded in size and time, and not from private networks.

Only addresses that were checked are connected to.
"""

from __future__ import annotations

import contextlib
import http.client
import ipaddress
import math
import socket
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from urllib.parse import SplitResult, urljoin, urlsplit

__all__ = ["FetchError", "fetch"]

FETCH_S = 30.0
"""Most seconds for a file, redirects included."""
CONNECT_S = 10.0
MOST_REDIRECTS = 3
CACHED_BYTES = 64 * 2**20
"""Files are read twice, to plan a build and to run it."""

FAILED_FOR_S = 600.0
"""How long a URL that failed is not tried again: about a build, each unit of which would wait for it."""
MOST_FAILURES = 3
"""Failures of a host, one after the other, after which none of its URLs is tried again for that time."""
MOST_KNOWN = 10_000
"""URLs that are remembered as failed."""

_CACHE: dict[str, bytes] = {}
_CACHE_LOCK = threading.Lock()


class FetchError(Exception):
    """A file could not be fetched, or must not be."""


class _UnreachableError(FetchError):
    """The host cannot be reached, or is too slow: other URLs of it will fail, too."""


class _Failures:
    """What failed lately, so that it is not waited for again. Safe to use from several threads.

    Args:
        clock: returns a time in seconds.

    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._urls: dict[str, tuple[float, str]] = {}
        self._hosts: dict[str, tuple[float, str, int]] = {}

    def check(self, url: str, host: str) -> None:
        """Raise FetchError as before if the URL failed lately, or its host failed several times."""
        now = self._clock()
        with self._lock:
            at, message = self._urls.get(url, (-math.inf, ""))
            host_at, host_message, count = self._hosts.get(host, (-math.inf, "", 0))
        if now - at < FAILED_FOR_S:
            raise FetchError(message)
        if count >= MOST_FAILURES and now - host_at < FAILED_FOR_S:
            raise FetchError(host_message)

    def add(self, url: str, host: str, error: FetchError) -> None:
        """Note a failure."""
        now = self._clock()
        with self._lock:
            while len(self._urls) >= MOST_KNOWN:
                del self._urls[next(iter(self._urls))]
            self._urls[url] = now, f"{error}"
            if isinstance(error, _UnreachableError):
                self._hosts[host] = now, f"{error}", self._hosts.get(host, (0.0, "", 0))[2] + 1

    def forget(self) -> None:
        """Forget all failures."""
        with self._lock:
            self._urls.clear()
            self._hosts.clear()

    def clear(self, url: str, host: str) -> None:
        """Note a success."""
        with self._lock:
            self._urls.pop(url, None)
            self._hosts.pop(host, None)


_FAILED = _Failures()


def fetch(url: str, allowed: Sequence[str], most_bytes: int) -> bytes:
    """Return the content of an `http` or `https` URL.

    A host is allowed by its name, or by `name:port` for another than the scheme's own port. Its addresses must be
    public, unless the host is allowed as an address or as `localhost`.

    Raises:
        FetchError: the host is not allowed, or has a private address; the server refuses, is too slow, or sends too
            much; or it redirects elsewhere. For ten minutes after a failure, the URL is not tried again; nor is any URL
            of a host that could not be reached three times.

    """
    parts = _split(url)
    try:
        is_allowed = _is_allowed(parts, allowed)
    except ValueError as error:  # of a port that is no number
        raise FetchError(f"not a URL: {error}") from error
    if not is_allowed:
        raise FetchError(f"{parts.netloc} is not in source.fetch")
    with _CACHE_LOCK:
        cached = _CACHE.get(url)
    data = _fetched_once(url, parts, allowed, most_bytes) if cached is None else cached
    with _CACHE_LOCK:
        _CACHE[url] = data
        while sum(map(len, _CACHE.values())) > CACHED_BYTES:
            _CACHE.pop(next(iter(_CACHE)))
    return data


def _fetched_once(url: str, parts: SplitResult, allowed: Sequence[str], most_bytes: int) -> bytes:
    """Return the content of a URL, without waiting again for one that failed lately."""
    host = parts.netloc.lower()
    _FAILED.check(url, host)
    try:
        data = _fetched(url, allowed, most_bytes)
    except FetchError as error:
        _FAILED.add(url, host, error)
        raise
    _FAILED.clear(url, host)
    return data


def _fetched(url: str, allowed: Sequence[str], most_bytes: int) -> bytes:
    until = time.monotonic() + FETCH_S
    first = _split(url)
    for _ in range(MOST_REDIRECTS + 1):
        parts = _split(url)
        if parts.hostname != first.hostname:
            raise FetchError(f"{first.hostname} redirects to {parts.hostname}")
        try:
            location, data = _get(parts, allowed, most_bytes, until)
        except (OSError, http.client.HTTPException, ValueError) as error:
            _check_time(parts, until)
            raise _UnreachableError(f"{parts.hostname} cannot be reached: {error}") from error
        if location is None:
            return data
        url = urljoin(url, location)
    raise FetchError(f"{first.hostname} redirects more than {MOST_REDIRECTS} times")


def _get(
    parts: SplitResult, allowed: Sequence[str], most_bytes: int, until: float
) -> tuple[str | None, bytes]:
    """Return the location of a redirect, or None, and the body."""
    if parts.scheme not in ("http", "https") or not _is_allowed(parts, allowed):
        raise FetchError(f"{parts.netloc} is not in source.fetch")
    connection = _connected(parts, allowed, until)
    # A handshake or the head of a response may come byte by byte, each in time.
    alarm = threading.Timer(max(0.0, until - time.monotonic()), _shut, [connection.sock])
    alarm.start()
    try:
        if isinstance(connection.sock, ssl.SSLSocket):
            connection.sock.do_handshake()
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"User-Agent": "scannery", "Accept-Encoding": "identity"})
        response = connection.getresponse()
        _check_time(parts, until)
        if response.status in (301, 302, 303, 307, 308):
            return response.getheader("Location") or "", b""
        if response.status != 200:
            raise FetchError(f"{parts.hostname} answers {response.status}")
        pieces: list[bytes] = []
        size = 0
        # One piece at a time, so that a slow server cannot hold on beyond the deadline.
        while piece := response.read1(1 << 16):
            pieces.append(piece)
            size += len(piece)
            if size > most_bytes:
                raise FetchError(f"{parts.hostname} sends more than {most_bytes >> 20} MiB")
            _check_time(parts, until)
        _check_time(parts, until)  # what came may have been cut off
        return None, b"".join(pieces)
    finally:
        alarm.cancel()
        connection.close()


def _shut(sock: socket.socket) -> None:
    """End what waits for a socket, in another thread."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(
            sock, socket.SHUT_RDWR
        )  # that of a TLS socket forgets its state, which is in use


def _check_time(parts: SplitResult, until: float) -> None:
    if time.monotonic() > until:
        raise _UnreachableError(f"{parts.hostname} takes more than {FETCH_S:g} s")


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:
        raise FetchError(f"not a URL: {error}") from error


def _is_allowed(parts: SplitResult, allowed: Sequence[str]) -> bool:
    host = (parts.hostname or "").lower()
    default_port = {"http": 80, "https": 443}.get(parts.scheme)
    port = parts.port or default_port
    names = {host} if port == default_port else set()
    return bool(host) and bool(({f"{host}:{port}"} | names) & {name.lower() for name in allowed})


def _connected(parts: SplitResult, allowed: Sequence[str], until: float) -> http.client.HTTPConnection:
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    timeout_s = max(0.01, min(CONNECT_S, until - time.monotonic()))
    addresses = [info[4][0] for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    if not _is_address(host) and host.lower() != "localhost":
        private = [address for address in addresses if not _is_public(str(address))]
        if private:
            raise FetchError(f"{host} has the private address {private[0]}; put the address in source.fetch")
    # To the address that was checked: another look-up could give another one.
    sock = socket.create_connection((str(addresses[0]), port), timeout_s)
    if parts.scheme == "https":
        try:
            context = ssl.create_default_context()
            sock = context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        except OSError:
            sock.close()
            raise
    connection = http.client.HTTPConnection(host, port, timeout=timeout_s)
    connection.sock = sock
    return connection


_EMBEDDED = {"64:ff9b::/96": 0, "2002::/16": 80, "::/96": 0}
"""Networks of IPv6 whose addresses stand for one of IPv4 (NAT64, 6to4, compatible), and the bits behind that."""


def _is_public(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    if isinstance(ip, ipaddress.IPv6Address):
        for network, shift in _EMBEDDED.items():
            if ip in ipaddress.ip_network(network):
                ip = ipaddress.IPv4Address(int(ip) >> shift & 0xFFFFFFFF)
                break
        else:
            if ip.is_site_local:
                return False
    return ip.is_global and not ip.is_multicast


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
