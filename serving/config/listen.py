"""Options of every server, and what a worker gets from its supervisor.

Addresses, `host:port`.

Where other processes of ours are, and the credentials for them.
"""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from scannery.runtime.errors import ConfigError
from scannery.runtime.options import check_ranges, option
from scannery.runtime.paths import make_absolute
from scannery.runtime.sharing import SharedBlobs, SharedBuckets, SharedMarks, SharedTable, SharedTime
from scannery.serving.security.config import SecurityConfig

__all__ = [
    "CACHED_QUERIES",
    "DNS",
    "FILE",
    "LeavesConfig",
    "ListenConfig",
    "RemoteConfig",
    "WorkerContext",
    "is_loopback",
    "joined_address",
    "split_address",
]


_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5})")


def split_address(listen: str, *, field: str = "listen") -> tuple[str, int]:
    """Return host and port of `host:port`; raises ConfigError, which names `field`."""
    match = _ADDRESS.fullmatch(listen)
    if not match or int(match["port"]) > 65535:
        raise ConfigError(f"{field}: must be host:port, got {listen!r}", field=field)
    return match["host"].strip("[]"), int(match["port"])


def joined_address(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine's loopback."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        # Any other name may resolve to anything.
        return False


_ORIGIN = re.compile(r"https?://[^/\s,*]+")
_DEVICE = re.compile(r"auto|cpu|cuda(:\d{1,3})?|xla")
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

CACHED_QUERIES = 4096
MIN_BUFFER_BYTES, MAX_BUFFER_BYTES = 1 << 28, 1 << 30
"""Bounds of the default of `memory_budget`."""


def _default_threads() -> int:
    return max(4, 2 * (os.cpu_count() or 1))


@dataclass(frozen=True, kw_only=True)
class ListenConfig:
    """Options of every server. Raises ConfigError, which names the field."""

    listen: str = option("127.0.0.1:7077", "Where to listen; port 0 takes a free one.", metavar="HOST:PORT")

    insecure: bool = option(
        False, "Allow an address beyond loopback without authentication.", panel="Security"
    )

    security: SecurityConfig = field(default_factory=SecurityConfig)
    """TLS and authentication."""

    threads: int = field(default_factory=_default_threads)
    """Limit of requests that run at once in a process, besides one of each of as many callers that
    have none running."""

    queue: int = option(256, maximum=65536)
    """Limit of queued requests; further ones are refused at once with RESOURCE_EXHAUSTED. Admission adapts the limit
    to the load, mostly to less."""

    max_request_bytes: int = option(64 << 20, minimum=1 << 16, maximum=(1 << 31) - 1)
    """Largest accepted message; the default holds 1,000 query vectors of 16,384 dimensions."""

    memory_budget: int = option(
        0,
        "Memory of a worker for requests that arrive and answers that are not read yet; a caller has half of what "
        "the others leave. 0: an eighth of the machine's for a worker on each core, 256 to 1024 for each.",
        metavar="MIB",
        unit=1 << 20,
        maximum=1 << 50,
    )
    """Bound of the memory of requests, in bytes. Requests above it are refused with RESOURCE_EXHAUSTED."""

    max_request_s: float = option(300.0, minimum=0.001, maximum=86400)
    """Time limit of a request, in seconds; longer timeouts of callers are reduced to it."""

    body_timeout_s: float = option(20.0, minimum=0.1, maximum=3600)
    """The body of a request must arrive within this many seconds after its headers."""

    check_every_s: float = option(1.0, minimum=0.01, maximum=3600)
    """Interval of checks for new versions, in seconds."""

    http: str = option(
        "off",
        "Answer Connect over HTTP/1.1 here; `auto`: at a free port, if only this machine is served or callers are "
        "authenticated; `off`: not at all.",
        metavar="HOST:PORT",
    )

    http_cors: tuple[str, ...] = option(
        (),
        "Let pages of this origin call over HTTP; may be given several times.",
        metavar="ORIGIN",
    )

    http_hosts: tuple[str, ...] = option(
        (),
        "A name by which HTTP is reached, through a proxy say; may be given several times.",
        "--http-host",
        metavar="NAME",
    )
    """Accepted `Host` names, in addition to `localhost`, IP addresses, and the hosts of `listen` and `http`. Empty: any
    name, if callers need tokens or the server has a certificate."""

    metrics_listen: str = option("", "Serve Prometheus metrics here, at /metrics.", metavar="HOST:PORT")
    """Address of the metrics, without authentication; empty: none."""

    bridges: str = option(
        "all",
        "Bridges to load, APIs of others on this server (docs/bridges.md): `all` that are installed, `none`, or names "
        "with commas.",
        metavar="NAMES",
    )

    drain_s: float = option(
        10.0, "Time for running requests to finish after a stop.", "--drain", metavar="SECONDS", maximum=3600
    )

    device: str = option(
        "auto",
        "Where texts are encoded. `cuda`: of several GPUs, each worker takes the one that is used least.",
        metavar="auto|cpu|cuda|cuda:N|xla",
    )

    cached_queries: int = option(
        CACHED_QUERIES,
        "Query vectors to cache. 0: none, so that response times reveal no earlier query.",
        maximum=1 << 20,
    )
    """Query vectors that each encoder caches, by caller and text."""

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
        if not _DEVICE.fullmatch(self.device):
            raise ConfigError(
                f"device: must be auto, cpu, cuda, cuda:N or xla, got {self.device!r:.80}", field="device"
            )
        if not 1 <= self.threads <= 1024:
            raise ConfigError(f"threads: must be 1 to 1024, got {self.threads}", field="threads")
        check_ranges(self)

    @property
    def local_target(self) -> str:
        """Address by which this machine reaches the server, also one that listens on all addresses."""
        host, port = split_address(self.listen)
        return joined_address({"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), port)

    @property
    def bridge_names(self) -> frozenset[str] | None:
        """Names of the bridges to load; None: all that are installed."""
        if self.bridges == "all":
            return None
        names = {name.strip() for name in self.bridges.split(",")}
        return frozenset(names - {"", "none"})

    def request_bytes(self, workers: int) -> int:
        """Return the bound of the memory of requests of each of some workers, in bytes."""
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
    """Called with the serialised metrics every second while they are read; None: there are no other workers, and this
    process serves `metrics_listen` itself."""

    published: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """Returns what the other workers have published."""

    metrics_read: SharedTime = field(default_factory=SharedTime)
    """Time of the last call that read the metrics of all workers."""

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

    buckets: SharedBuckets = field(default_factory=SharedBuckets)
    """What callers with limits have asked for lately."""

    kept_queries: SharedBlobs | None = None
    """The queries that the workers keep; None: none, or there are no other workers."""

    slot: int = 0
    """Number of this worker in `recall` and `kept_queries`."""


_encoder_file = partial(option, "", metavar="FILE", panel="Encoder process")
_leaves_file = partial(option, "", metavar="FILE", panel="Cluster")
DNS, FILE = "dns:///", "file://"
"""What targets of leaves begin with that are no list of addresses."""


@dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    """Address and credentials of an encoder process. Raises ConfigError."""

    address: str
    """`host:port`."""

    key_file: str = _encoder_file("File with the API key for the encoder process.", "--encoder-key")
    """Read again when the key is refused."""

    ca: str = _encoder_file(
        "Connect to it with TLS; file with the authority of its certificate.", "--encoder-ca"
    )
    """Empty: the authorities of the system if a key is sent to another machine, and no TLS otherwise."""

    def __post_init__(self) -> None:
        split_address(self.address, field="encoder")
        for name in ("key_file", "ca"):
            path = getattr(self, name)
            if path and not Path(path).is_file():
                raise ConfigError(f"encoder_{name}: there is no file {path}", field=f"encoder_{name}")
        make_absolute(self, "key_file", "ca")

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return bool(self.ca) or (bool(self.key_file) and not is_loopback(split_address(self.address)[0]))


@dataclass(frozen=True, kw_only=True)
class LeavesConfig:
    """Where the leaves of a cluster are, and the credentials for them. Raises ConfigError."""

    target: str
    """`dns:///name:port`: all addresses of the name; `file:///path`: one `host:port` a line; or `host:port,host:port`.
    Names are looked up, and the file is read, every few seconds."""

    key_file: str = _leaves_file("File with the API key for the leaves.", "--leaves-key")
    """Read again when the key is refused."""

    ca: str = _leaves_file(
        "Connect to them with TLS; file with the authority of their certificates.", "--leaves-ca"
    )
    """Empty: the authorities of the system if a key is sent to other machines, and no TLS otherwise. With `dns:///` the
    certificates must have the name of the target."""

    cert: str = _leaves_file("Certificate for leaves that ask for one.", "--leaves-cert")
    """A chain, PEM (`--client-ca` of a leaf). Files are read again when a leaf cannot be reached."""

    cert_key: str = _leaves_file("Private key of this certificate.", "--leaves-cert-key")

    def __post_init__(self) -> None:
        if self.target.startswith(FILE):
            path = self.target.removeprefix(FILE)
            if not Path(path).is_absolute():
                raise ConfigError(
                    f"leaves: must be file:///path, from the root, got {self.target}", field="leaves"
                )
            if not Path(path).is_file():
                raise ConfigError(f"leaves: there is no file {path}", field="leaves")
        elif self.target.startswith(DNS):
            # A list has no names to be looked up together, and no one name for certificates.
            self._check_addresses([self.target.removeprefix(DNS)])
        else:
            self._check_addresses(self.target.split(","))
        if bool(self.cert) != bool(self.cert_key):
            raise ConfigError("leaves_cert: needs a certificate and its key, both", field="leaves_cert")
        names = {"key_file": "key", "ca": "ca", "cert": "cert", "cert_key": "cert_key"}
        for name, flag in names.items():
            path = getattr(self, name)
            if path and not Path(path).is_file():
                raise ConfigError(f"leaves_{flag}: there is no file {path}", field=f"leaves_{flag}")
        make_absolute(self, *names)

    def _check_addresses(self, addresses: Sequence[str]) -> None:
        """Raise ConfigError if one is not `host:port`, or is there twice."""
        for number, address in enumerate(addresses):
            try:
                port = split_address(address, field="leaves")[1]
            except ConfigError as error:
                raise ConfigError(
                    f"leaves: must be host:port,host:port, dns:///name:port, or file:///path, got {self.target!r:.200}",
                    field="leaves",
                ) from error
            if port == 0:
                raise ConfigError(f"leaves: {address} must have the port of a leaf, not 0", field="leaves")
            if address in addresses[:number]:
                raise ConfigError(f"leaves: {address} is there twice", field="leaves")

    @property
    def tls(self) -> bool:
        """Whether the connections are encrypted."""
        return bool(self.ca or self.cert) or (bool(self.key_file) and not self._is_local)

    @property
    def _is_local(self) -> bool:
        if self.target.startswith(FILE):
            return False
        addresses = self.target.removeprefix(DNS).split(",")
        return all(is_loopback(split_address(address)[0]) for address in addresses)
