"""Options of servers and encoder processes, validated on construction."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from scannery.indexer.contents import ContentsReader
from scannery.indexer.shard_groups import NO_SHARDS, ShardGroup, Shards
from scannery.runtime.errors import ConfigError
from scannery.runtime.paths import make_absolute, overlap
from scannery.runtime.shared_blobs import SharedBlobs
from scannery.runtime.shared_marks import SharedMarks
from scannery.runtime.shared_table import SharedTable
from scannery.serving.security.config import SecurityConfig

__all__ = [
    "DNS",
    "FILE",
    "EncoderConfig",
    "LeavesConfig",
    "ListenConfig",
    "RemoteConfig",
    "ServerConfig",
    "VertexConfig",
    "WorkerContext",
    "is_loopback",
    "joined_address",
    "split_address",
]

_ADDRESS = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.-]+):(?P<port>[0-9]{1,5})")

_ORIGIN = re.compile(r"https?://[^/\s,*]+")
_ROLES = ("all", "leaf", "root")
_HOST_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")

CACHED_QUERIES = 4096
DNS, FILE = "dns:///", "file://"
"""What targets of leaves begin with that are no list of addresses."""


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
    """Limit of requests that run at once in a process; half as many streams may be open."""

    queue: int = 256
    """Limit of queued requests; further ones are refused at once with RESOURCE_EXHAUSTED. Admission adapts the limit
    to the load, mostly to less."""

    max_request_bytes: int = 64 << 20
    """Largest accepted message; the default holds 1,000 query vectors of 16,384 dimensions."""

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
            ("max_request_s", 0.001, 86400),
            ("body_timeout_s", 0.1, 3600),
            ("check_every_s", 0.01, 3600),
            ("drain_s", 0, 3600),
            ("cached_queries", 0, 1 << 20),
        ):
            self._check(name, least, most)

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

    recall: SharedTable = field(default_factory=SharedTable)
    """What the workers have found about the recall of each index, and the settings that follow from it."""

    kept_queries: SharedBlobs | None = None
    """The queries that the workers keep; None: none, or there are no other workers."""

    slot: int = 0
    """Number of this worker in `recall` and `kept_queries`."""


@dataclass(frozen=True, kw_only=True)
class RemoteConfig:
    """Address and credentials of an encoder process. Raises ConfigError."""

    address: str
    """`host:port`."""

    key_file: str = ""
    """File with the API key; read again when the key is refused."""

    ca: str = ""
    """File with the authorities for its certificate, PEM. Empty: those of the system if a key is sent to another
    machine, and no TLS otherwise."""

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

    key_file: str = ""
    """File with the API key; read again when the key is refused."""

    ca: str = ""
    """File with the authorities for their certificates, PEM. Empty: those of the system if a key is sent to other
    machines, and no TLS otherwise. With `dns:///` the certificates must have the name of the target."""

    def __post_init__(self) -> None:
        if self.target.startswith(FILE):
            path = self.target.removeprefix(FILE)
            if not Path(path).is_absolute() or not Path(path).is_file():
                raise ConfigError(f"leaves: there is no file {path}", field="leaves")
        else:
            self._check_addresses(self.target.removeprefix(DNS).split(","))
        for name in ("key_file", "ca"):
            path = getattr(self, name)
            if path and not Path(path).is_file():
                raise ConfigError(f"leaves_{name}: there is no file {path}", field=f"leaves_{name}")
        make_absolute(self, "key_file", "ca")

    @staticmethod
    def _check_addresses(addresses: Sequence[str]) -> None:
        """Raise ConfigError if one is not `host:port`, or is there twice."""
        for place, address in enumerate(addresses):
            if split_address(address, field="leaves")[1] == 0:
                raise ConfigError(f"leaves: {address} must have the port of a leaf, not 0", field="leaves")
            if address in addresses[:place]:
                raise ConfigError(f"leaves: {address} is there twice", field="leaves")

    @property
    def tls(self) -> bool:
        """Whether the connections are encrypted."""
        return bool(self.ca) or (bool(self.key_file) and not self._is_local)

    @property
    def _is_local(self) -> bool:
        if self.target.startswith(FILE):
            return False
        addresses = self.target.removeprefix(DNS).split(",")
        return all(is_loopback(split_address(address)[0]) for address in addresses)


@dataclass(frozen=True, kw_only=True)
class VertexConfig:
    """Options of the managed service's APIs. Raises ConfigError."""

    address: str = ""
    """`host:port` that clients are told for queries; empty: that of the server."""

    private: str = ""
    """`host:port` of the private endpoint, without TLS; clients use port 10000. Empty: none."""

    contents: tuple[str, ...] = ()
    """Folders and bucket prefixes below which requests may name folders of contents, and folders for results."""

    models: Mapping[str, str] = field(default_factory=dict)
    """The encoder that each of the service's models stands for: a name, or a local folder."""

    reader: ContentsReader | None = None
    """Reads folders of contents; None: none are read."""

    object_reader: ContentsReader | None = None
    """Reads folders of data objects in JSON lines; None: none are read."""

    def __post_init__(self) -> None:
        for name in ("address", "private"):
            if getattr(self, name):
                split_address(getattr(self, name), field=f"vertex_{name}")
        if self.contents and self.reader is None:
            raise ConfigError("vertex_contents: needs a reader", field="vertex_contents")


@dataclass(frozen=True, kw_only=True)
class ServerConfig(ListenConfig):
    """The options of a server."""

    store: str
    """Folder or URI of the store."""

    http: str = "auto"

    indexes: tuple[str, ...] = ()
    """Names of the indexes to serve; empty: all."""

    recall_share: float = 0.05
    """Share of queries that are repeated with exact search in the background, to estimate recall; all while the
    estimate is uncertain. 0: none. The work is bounded by a share of a core (services/recall_sampler.py)."""

    hold_recall: bool = True
    """Whether the estimate moves the settings of searches, so that live queries reach the target recall."""

    keep_queries: int = 0
    """Query vectors that each worker keeps of each index, a uniform sample in memory, so that administrators can read
    them to tune the index. They can be personal data. 0: none."""

    log: str = field(default="", repr=False)
    """Local folder for the mutation logs, or the URL of a database of PostgreSQL, which may have a password; empty:
    inside the store, if it is a local folder."""

    encoder: RemoteConfig | None = None
    """The encoder process; None: encode in this process."""

    reranker: str | None = None
    """The cross-encoder of all indexes, in place of those in their specs: a name, or a local folder."""

    models: tuple[str, ...] = ()
    """Models that requests may name for new indexes, besides those of the served indexes: names, or local folders."""

    vertex: VertexConfig | None = None
    """The managed service's APIs on the gRPC port; None: they are not served."""

    role: Literal["all", "leaf", "root"] = "all"
    """Part of this process in a cluster. A leaf opens the shards of its group, and answers roots (docs/cluster.md)."""

    group: str = ""
    """The group of a leaf, such as `3/8`: the shards s with s mod 8 = 3."""

    leaves: LeavesConfig | None = None
    """Of a root: its leaves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_role()
        _ = self.private  # checks its address
        self._check_told_address()
        self._check("recall_share", 0, 1)
        self._check("keep_queries", 0, 10_000)
        make_absolute(self, "store", "log")
        self._check_contents()

    @property
    def shards(self) -> Shards | None:
        """The shards that this process opens; None: all."""
        return NO_SHARDS if self.role == "root" else self.shard_group

    @property
    def shard_group(self) -> ShardGroup | None:
        """The group of a leaf; None: this process is none."""
        return ShardGroup.parse(self.group) if self.role == "leaf" else None

    def _check_role(self) -> None:
        """Raise ConfigError if options do not fit the role."""
        if self.role not in _ROLES:
            raise ConfigError(f"role: must be {', '.join(_ROLES)}, got {self.role!r:.80}", field="role")
        if self.role != "leaf" and self.group:
            raise ConfigError(f"group: is for the role leaf, the role is {self.role}", field="group")
        if self.role != "root" and self.leaves is not None:
            raise ConfigError(f"leaves: are for the role root, the role is {self.role}", field="leaves")
        if self.role == "leaf":
            self._check_group()
        if self.role == "root" and self.leaves is None:
            raise ConfigError("leaves: a root needs its leaves (--leaves)", field="leaves")
        if self.role != "all":
            self._check_cluster()

    def _check_group(self) -> None:
        if not self.group:
            raise ConfigError("group: a leaf needs a group, such as 0/2 (--group)", field="group")
        try:
            ShardGroup.parse(self.group)
        except ValueError as error:
            raise ConfigError(f"group: {error}", field="group") from error
        if self.keep_queries:
            raise ConfigError(
                "keep_queries: is not for a leaf, which does not see callers", field="keep_queries"
            )

    def _check_cluster(self) -> None:
        """Raise ConfigError if options are not for roots and leaves."""
        if self.log:
            raise ConfigError(
                f"log: a {self.role} serves versions without live updates, and reads no log yet; leave out --log",
                field="log",
            )
        if self.vertex is not None:
            raise ConfigError(f"vertex: is not served by a {self.role} yet", field="vertex")

    def _check_contents(self) -> None:
        """Raise ConfigError if requests could read or write files of the server as contents."""
        security = self.security
        own = (
            self.store,
            self.log,
            security.keys_file,
            security.jwks_file,
            security.tls_cert,
            security.tls_key,
        )
        for root in self.vertex.contents if self.vertex is not None else ():
            if found := next((place for place in own if overlap(root, place)), ""):
                raise ConfigError(
                    f"vertex_contents: {root} and {found} overlap, so that requests could read there what callers "
                    "must not see; give a folder of its own",
                    field="vertex_contents",
                )

    def _check_told_address(self) -> None:
        """Raise ConfigError if clients of the managed service would be told an address that no other machine has."""
        host, port = split_address(self.listen)
        if self.vertex is not None and not self.vertex.address and host in ("0.0.0.0", "::"):
            raise ConfigError(
                f"vertex_address: {self.listen} cannot be reached by clients, which are told it for queries; "
                f"give the server's own, such as search.example.com:{port} (--vertex-address)",
                field="vertex_address",
            )

    @property
    def private(self) -> ServerConfig | None:
        """The options of the private endpoint, which has no TLS; None: there is none.

        Raises:
            ConfigError: credentials would be sent to other machines in the clear, or none be asked for there.

        """
        if self.vertex is None or not self.vertex.private:
            return None
        if self.security.client_ca and not self.security.tokens:
            raise ConfigError(
                "vertex_private: has no TLS, so no caller would be asked for a certificate there (--client-ca); "
                "require keys or tokens, too (--keys, --jwks)",
                field="vertex_private",
            )
        plain = replace(self.security, tls_cert="", tls_key="", client_ca="")
        return replace(self, listen=self.vertex.private, security=plain, vertex=None)

    def with_private_port(self, port: int) -> ServerConfig:
        """Return these options with the actual port of the private endpoint."""
        assert self.vertex is not None
        host, _ = split_address(self.vertex.private)
        return replace(self, vertex=replace(self.vertex, private=joined_address(host, port)))

    def check_reload(self) -> None:
        """As `ListenConfig.check_reload`; with an encoder process, workers hold no chips."""
        if self.encoder is None:
            super().check_reload()


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ListenConfig):
    """The options of an encoder process."""

    listen: str = "127.0.0.1:7078"
    """`host:port`; port 0 takes a free one."""

    store: str = ""
    """Folder or URI of a store, whose encoders are served; empty: none."""

    indexes: tuple[str, ...] = ()
    """Names of the indexes whose encoders are served; empty: all."""

    models: tuple[str, ...] = ()
    """Further models to serve: names, or local folders."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.store and not self.models:
            raise ConfigError("store: give a store (--store), a model (--model), or both", field="store")
        if self.indexes and not self.store:
            raise ConfigError("indexes: need a store (--store)", field="indexes")
        make_absolute(self, "store")


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
