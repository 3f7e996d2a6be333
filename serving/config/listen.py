"""Options of every server, and what a worker gets from its supervisor."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from scannery.runtime.errors import ConfigError
from scannery.runtime.shared_blobs import SharedBlobs
from scannery.runtime.shared_marks import SharedMarks
from scannery.runtime.shared_table import SharedTable
from scannery.serving.config.addresses import is_loopback, joined_address, split_address
from scannery.serving.security.config import SecurityConfig

__all__ = ["CACHED_QUERIES", "ListenConfig", "WorkerContext"]

_ORIGIN = re.compile(r"https?://[^/\s,*]+")
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

CACHED_QUERIES = 4096
MIN_BUFFER_BYTES, MAX_BUFFER_BYTES = 1 << 28, 1 << 30
"""Of the default of `memory_budget`."""


def _default_threads() -> int:
    return max(4, 2 * (os.cpu_count() or 1))


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    """Options of every server. Raises ConfigError, which names the field."""

    listen: str = "127.0.0.1:7077"
    """`host:port`; port 0 takes a free one."""

    insecure: bool = False
    """Allow addresses beyond loopback without authentication."""

    security: SecurityConfig = field(default_factory=SecurityConfig)
    """TLS and authentication."""

    threads: int = field(default_factory=_default_threads)
    """Limit of requests that run at once in a process, besides one of each of as many callers that
    have none running."""

    queue: int = 256
    """Limit of queued requests; further ones are refused at once with RESOURCE_EXHAUSTED. Admission adapts the limit
    to the load, mostly to less."""

    max_request_bytes: int = 64 << 20
    """Largest accepted message; the default holds 1,000 query vectors of 16,384 dimensions."""

    memory_budget: int = 0
    """Bytes of requests that arrive and of answers that are not read yet, of all callers of a process together. A
    caller may have half of what the others leave; further requests are refused with RESOURCE_EXHAUSTED. 0: an eighth of
    the machine's memory for a worker on each core, from 256 MiB to 1 GiB for each."""

    max_request_s: float = 300.0
    """Time limit of a request, in seconds; longer timeouts of callers are reduced to it."""

    body_timeout_s: float = 20.0
    """The body of a request must arrive within this many seconds after its headers."""

    check_every_s: float = 1.0
    """Interval of checks for new versions, in seconds."""

    http: str = "off"
    """Address of Connect over HTTP/1.1: `host:port`; `auto`: a free port of `listen`'s host, if that is loopback or
    callers are authenticated; `off`: no HTTP."""

    http_cors: tuple[str, ...] = ()
    """Origins (`https://host`) whose pages may call over HTTP (CORS)."""

    http_hosts: tuple[str, ...] = ()
    """Accepted `Host` names, in addition to `localhost`, IP addresses, and the hosts of `listen` and `http`. Empty: any
    name, if callers need tokens or the server has a certificate."""

    metrics_listen: str = ""
    """`host:port` for metrics in Prometheus format, without authentication; empty: none."""

    drain_s: float = 10.0
    """Time that running requests get to finish after a stop, in seconds."""

    device: str = "auto"
    """Device of the encoders: `auto`, `cpu`, `cuda` (each worker takes the GPU that the fewest processes use), `cuda:1`
    or `xla`."""

    cached_queries: int = CACHED_QUERIES
    """Query vectors that each encoder caches, by caller and text; 0: none."""

    def __post_init__(self) -> None:
        self._check_address("listen")
        if self.metrics_listen:
            split_address(self.metrics_listen, field="metrics_listen")
        if self.http not in ("auto", "off"):
            self._check_address("http")
        for origin in self.http_cors:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"http_cors: must be an origin like https://example.org, got {origin!r}",
                    field="http_cors",
                )
        for name in self.http_hosts:
            if not _HOST_NAME.fullmatch(name):
                raise ConfigError(
                    f"http_hosts: must be a host name like search.example.org, without scheme and port, got {name!r}",
                    field="http_hosts",
                )
        for name, least, most in (
            ("threads", 1, 1024),
            ("queue", 0, 65536),
            ("max_request_bytes", 1 << 16, (1 << 31) - 1),
            ("memory_budget", 0, 1 << 50),
            ("max_request_s", 0.001, 86400),
            ("body_timeout_s", 0.1, 3600),
            ("check_every_s", 0.01, 3600),
            ("drain_s", 0, 3600),
            ("cached_queries", 0, 1 << 20),
        ):
            self._check(name, least, most)

    @property
    def buffer_bytes(self) -> int:
        """Bytes of `memory_budget`."""
        if self.memory_budget:
            return self.memory_budget
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min(MAX_BUFFER_BYTES, max(MIN_BUFFER_BYTES, machine // 8 // (os.cpu_count() or 1)))

    @property
    def http_address(self) -> str:
        """Address of HTTP, `host:port`; port 0 takes a free one. Empty: no HTTP."""
        if self.http == "off":
            return ""
        if self.http != "auto":
            return self.http
        host, _ = split_address(self.listen)
        allowed = is_loopback(host) or self.security.authenticates
        return joined_address(host, 0) if allowed else ""

    def check_workers(self, workers: int) -> None:
        """Check that the device can be used by `workers` processes.

        Raises:
            ConfigError: it is XLA, whose chips one process holds.

        """
        if workers > 1 and self.device == "xla":
            raise ConfigError(
                f"workers: must be 1 with device xla, got {workers}: one process holds all chips of a host. Start "
                "`scannery encoder --device xla`, and give its address to the workers (--encoder)",
                field="workers",
            )

    @property
    def about(self) -> str:
        """What callers of a method that is not there are told of this process."""
        return ""

    def check_reload(self) -> None:
        """Check that new workers can start while the old ones run.

        Raises:
            ConfigError: they encode on XLA, whose chips the old worker holds.

        """
        if self.device == "xla":
            raise ConfigError(
                "device: a server on xla cannot reload: its worker holds all chips of the host until it ends, so that "
                "a new one could not start. Restart the server",
                field="device",
            )

    def _check_address(self, name: str) -> None:
        address = getattr(self, name)
        host, _ = split_address(address, field=name)
        if is_loopback(host):
            return
        if self.security.in_the_clear:
            raise ConfigError(
                f"{name}: {address} can be reached from other machines, and keys and tokens would be sent there in the "
                "clear; give a certificate (--tls-cert, --tls-key), or declare that a proxy in front of this server "
                "ends TLS (--behind-tls)",
                field=name,
            )
        if not self.insecure and not self.security.authenticates:
            raise ConfigError(
                f"{name}: {address} can be reached from other machines, and this server does not authenticate callers; "
                "listen on 127.0.0.1, require credentials (--keys, --jwks, --client-ca), or allow it with --insecure",
                field=name,
            )

    def _check(self, name: str, least: float, most: float) -> None:
        value = getattr(self, name)
        if not least <= value <= most:
            raise ConfigError(f"{name}: must be {least} to {most}, got {value}", field=name)


@dataclass(frozen=True, kw_only=True)
class WorkerContext:
    """Runtime state that a supervisor passes to a worker; the defaults are for a process without a supervisor."""

    core: int | None = None
    """Core to which request threads are bound; None: any."""

    workers: int = 1
    """Number of processes at the same address, including this one."""

    share_port: bool = False
    """Listen with SO_REUSEPORT, so that several processes can share the port."""

    http_port: int = 0
    """Port reserved for HTTP, for an address with port 0; 0: none."""

    server_id: str = field(default_factory=lambda: secrets.token_hex(8))
    """Distinguishes successive servers at the same port."""

    publish: Callable[[bytes], object] | None = None
    """Called with the serialised metrics every second; None: this process serves `metrics_listen` itself."""

    counted: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Metrics of the replaced worker, from which counters continue."""

    drops: SharedMarks = field(default_factory=SharedMarks)
    """Changed by the worker that drops an index, so that the others do not answer from it."""

    alters: SharedMarks = field(default_factory=SharedMarks)
    """Changed by the worker that alters an index, so that the others open the new version before they use it."""

    documents: SharedMarks = field(default_factory=SharedMarks)
    """Changed by the worker that changes a document of a facade, so that the others read it before they answer."""

    recall: SharedTable = field(default_factory=SharedTable)
    """What the workers have found about the recall of each index, and the settings that follow from it."""

    kept_queries: SharedBlobs | None = None
    """The queries that the workers keep; None: none, or there are no other workers."""

    slot: int = 0
    """Number of this worker in `recall` and `kept_queries`."""
