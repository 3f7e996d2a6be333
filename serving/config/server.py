"""Options of servers and encoder processes.

Options of a process that maintains indexes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Literal

from scannery.indexer.contents import ContentsReader
from scannery.indexer.shard_groups import NO_SHARDS, ShardGroup, Shards
from scannery.live.log.location import log_root_of
from scannery.runtime.errors import ConfigError
from scannery.runtime.memory import (
    MIB,
    ProcessMemory,
    cgroup_ceiling,
    limit_of_ceiling,
    memory_text,
    parse_memory,
)
from scannery.runtime.options import option
from scannery.runtime.paths import make_absolute, overlap
from scannery.runtime.sharing import blob_bytes
from scannery.serving.config.audit import AuditConfig
from scannery.serving.config.listen import (
    LeavesConfig,
    ListenConfig,
    RemoteConfig,
    joined_address,
    split_address,
)
from scannery.serving.config.traffic import TrafficConfig

__all__ = ["ALL_INDEXES", "EncoderConfig", "MaintainConfig", "ServerConfig", "VertexConfig"]


ALL_INDEXES = ("*", "all")
"""What stands for all indexes in `ServerConfig.cold` and `ServerConfig.compact`."""

_LOG = logging.getLogger(__name__)
_ROLES = ("all", "leaf", "root")
_CLUSTER = "Cluster"
_vertex_option = partial(option, panel="Clients of the managed service")


@dataclass(frozen=True, kw_only=True)
class VertexConfig:
    """Options of the managed service's APIs. Raises ConfigError."""

    address: str = _vertex_option(
        "",
        "The address that its clients are told; default: that of the server.",
        "--vertex-address",
        metavar="HOST:PORT",
    )

    private: str = _vertex_option(
        "",
        "Answer the API of private endpoints here, without TLS; its clients use port 10000.",
        "--vertex-private",
        metavar="HOST:PORT",
    )

    contents: tuple[str, ...] = _vertex_option(
        (),
        "Folder below which requests may name folders to read and to write; may be given several times.",
        "--vertex-contents",
        metavar="URI",
    )
    """Also prefixes of buckets."""

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

    indexes: tuple[str, ...] = option((), "Serve only this index; may be given several times.", "--index")
    """Empty: all."""

    cold: tuple[str, ...] = option(
        (),
        "Leave the vectors of this index in the store, and read those that a search needs: little memory and disk, "
        "slower searches, none by words. May be given several times; `all`: all indexes but those of --compact INDEX.",
        metavar="INDEX",
    )
    """`*` is as `all`. Their recall is not sampled, since an exact search reads all vectors."""

    compact: tuple[str, ...] = option(
        (),
        "Search this index by its vectors in 8 bits a number, and leave the full ones in the store: a quarter of the "
        "memory and disk for vectors, but the log says what share of the true hits is lost. May be given several "
        "times; `all`: all indexes that are not cold.",
        metavar="INDEX",
    )
    """Vectors in answers are those that were given, read from the store."""

    memory: str = option(
        "auto",
        "Ceiling of what the indexes and processes of this server need of memory, such as 2GiB: a version that would "
        "exceed it is not opened, and new rows are refused. `auto`: the limit of the container less a tenth and 64 "
        "MiB, if it has one; `none`: no ceiling.",
        metavar="SIZE|auto|none",
    )
    """Vectors and texts are mapped, so that the kernel takes their memory back: they do not count."""

    recall_share: float = option(
        0.05,
        "Share of queries repeated as exact searches, to estimate the recall; 0: none, and it is not held.",
        maximum=1,
    )
    """Share of queries whose recall is measured in the background; all queries while the estimate is uncertain. The
    work is bounded by a share of a core (scheduling/spare_time.py).
    """

    hold_recall: bool = option(
        True, "Move the settings of searches so that the sampled queries reach the target recall."
    )

    keep_queries: int = option(
        0,
        "Keep a sample of N query vectors per index and worker in memory, for `scannery index tune --from-server`. "
        "Queries can be personal data; callers with the scope admin can read them. 0: none.",
        metavar="N",
        maximum=10_000,
    )

    log: str = field(default="", repr=False)
    """Local folder for the mutation logs, or the URL of a database of PostgreSQL, which may have a password; empty:
    inside the store, if it is a local folder."""

    encoder: RemoteConfig | None = None
    """The encoder process; None: encode in this process."""

    reranker: str | None = option(
        None, "Cross-encoder for all indexes: a name, or a local folder.", metavar="MODEL"
    )
    """Model in place of those in their specs."""

    models: tuple[str, ...] = option(
        (),
        "A model that new indexes may use (CreateIndex), besides those of served indexes; may be given several times.",
        "--model",
        metavar="MODEL",
    )

    traffic: TrafficConfig = field(default_factory=TrafficConfig)
    """The log of queries."""

    audit: AuditConfig = field(default_factory=AuditConfig)
    """The audit log."""

    vertex: VertexConfig | None = None
    """The managed service's APIs on the gRPC port; None: they are not served."""

    mcp: str = option(
        "",
        "Let agents search and read over the Model Context Protocol, at http://HOST:PORT/mcp (docs/mcp.md). Needs the "
        "extra `mcp`.",
        metavar="HOST:PORT",
    )
    """Address of the tools, which `serve` starts as a process of their own; empty: none. A `Server` that is started
    without `serve` has none."""

    console: str = option(
        "",
        "Serve a web page on the indexes at http://HOST:PORT (docs/console.md). Needs the extra `console`.",
        metavar="HOST:PORT",
    )
    """Address of the page, likewise."""

    role: Literal["all", "leaf", "root"] = option(
        "all",
        "Part of this server in a cluster. `leaf`: answer roots for the shards of one group; `root`: answer callers "
        "by leaves of all groups.",
        panel=_CLUSTER,
    )

    group: str = option(
        "", "Group of a leaf: 3/8 has the shards s with s mod 8 = 3.", metavar="NUMBER/GROUPS", panel=_CLUSTER
    )

    leaves: LeavesConfig | None = None
    """Leaves of a root: its leaves."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.ceiling_bytes  # checks the text
        self._check_role()
        self._check_companions()
        _ = self.private  # checks its address
        self._check_told_address()
        log_root_of(self.log)  # checks it, before it becomes an absolute path
        for tier, names in (("cold", self.cold), ("compact", self.compact)):
            unknown = [name for name in names if self.indexes and name not in (*self.indexes, *ALL_INDEXES)]
            if unknown:
                raise ConfigError(f"{tier}: {unknown[0]!r:.80} is not among the served indexes", field=tier)
        make_absolute(self, "store", "log")
        self._check_contents()

    @property
    def about(self) -> str:
        """As `ListenConfig.about`."""
        messages = {
            "leaf": f"; this is the leaf of group {self.group} of a cluster: call a root of it",
            "root": "; this is a root of a cluster, and no leaf",
        }
        return messages.get(self.role, "")

    @property
    def ceiling_bytes(self) -> int | None:
        """The ceiling of the memory of the server, in bytes; None: there is none. Raises ConfigError."""
        if self.memory == "none":
            return None
        return cgroup_ceiling() if self.memory == "auto" else parse_memory(self.memory)

    def process_memory(self, workers: int) -> ProcessMemory | None:
        """Return what some workers need besides indexes, and their bounds; None without a ceiling.

        There is none either where the limit of the container leaves no room beside processes, which was not asked for.
        """
        ceiling_bytes = self.ceiling_bytes
        if ceiling_bytes is None:
            return None
        from scannery.indexer.segment.cold.cold_vectors import kept_bytes  # imports numpy

        processes = ProcessMemory(
            workers=workers,
            ceiling_bytes=ceiling_bytes,
            requests_bytes=self.memory_budget,
            has_metrics=bool(self.metrics_listen),
            companions=bool(self.mcp) + bool(self.console),
            cold_bytes=kept_bytes() if self.cold else 0,
            kept_queries_bytes=blob_bytes(self.keep_queries) if self.keep_queries else 0,
        )
        if self.memory == "auto" and processes.room_bytes <= 0:
            limit = memory_text(limit_of_ceiling(processes.with_room(MIB).ceiling_bytes))
            _warn_once(
                f"the limit of this container leaves no room for indexes beside {workers} worker(s): what is opened "
                f"is not bounded. Fewer workers, or a limit of {limit} and more, do"
            )
            return None
        return processes

    def request_bytes(self, workers: int) -> int:
        """As of any server; with a ceiling, a share of it unless `memory_budget` says otherwise."""
        processes = self.process_memory(workers)
        return super().request_bytes(workers) if processes is None else processes.worker_requests_bytes

    @property
    def bridge_names(self) -> frozenset[str] | None:
        """As of any server; a leaf, which no caller reaches, loads none."""
        return frozenset() if self.role == "leaf" else super().bridge_names

    @property
    def shards(self) -> Shards | None:
        """The shards that this process opens; None: all."""
        return NO_SHARDS if self.role == "root" else self.shard_group

    @property
    def shard_group(self) -> ShardGroup | None:
        """The group of a leaf; None: this process is none."""
        return ShardGroup.parse(self.group) if self.role == "leaf" else None

    @property
    def http_address(self) -> str:
        """As of any server; a leaf, whose callers are the roots of its cluster, answers HTTP where it answers gRPC."""
        if self.role == "leaf" and self.http == "auto":
            return joined_address(split_address(self.listen)[0], 0)
        return super().http_address

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
            if self.security.limits:
                raise ConfigError("limits: are not for a leaf, whose callers are roots", field="limits")
        for tier in ("cold", "compact"):
            if self.role == "root" and getattr(self, tier):
                raise ConfigError(f"{tier}: is for leaves, which have the rows; a root has none", field=tier)
        if self.role == "root" and self.leaves is None:
            raise ConfigError("leaves: a root needs its leaves (--leaves)", field="leaves")
        if self.role != "all":
            self._check_cluster()

    def _check_companions(self) -> None:
        """Raise ConfigError if keys could be read on their way to a process beside the server, or it not reach that."""
        for name, flag in (("mcp", "--http"), ("console", "--listen")):
            if not getattr(self, name):
                continue
            self._check_address(name)
            if self.security.tls_cert:
                raise ConfigError(
                    f"{name}: has no TLS here, and cannot be combined with a certificate of the server: start "
                    f"`scannery {name} --target NAME:PORT {flag} HOST:PORT` beside it, or have a proxy end TLS "
                    "(--behind-tls)",
                    field=name,
                )
            if self.role == "leaf":
                raise ConfigError(f"{name}: is not for a leaf, whose callers are roots", field=name)

    def _check_group(self) -> None:
        if not self.group:
            raise ConfigError("group: a leaf needs a group, such as 0/2 (--group)", field="group")
        try:
            _ = self.shard_group
        except ValueError as error:
            raise ConfigError(f"group: {error}", field="group") from error
        if self.keep_queries:
            raise ConfigError(
                "keep_queries: is not for a leaf, which does not see callers", field="keep_queries"
            )
        if self.traffic.is_on:
            raise ConfigError("traffic: is not for a leaf, which does not see callers", field="traffic")

    def _check_cluster(self) -> None:
        """Raise ConfigError if options are not for roots and leaves."""
        if self.vertex is not None:
            raise ConfigError(f"vertex: is not served by a {self.role} yet", field="vertex")

    def _check_contents(self) -> None:
        """Raise ConfigError if requests could read or write files of the server as contents."""
        security = self.security
        paths = (
            self.store,
            self.log,
            self.audit.folder,
            security.keys_file,
            security.jwks_file,
            security.tls_cert,
            security.tls_key,
        )
        for root in self.vertex.contents if self.vertex is not None else ():
            if match := next((path for path in paths if overlap(root, path)), ""):
                raise ConfigError(
                    f"vertex_contents: {root} and {match} overlap, so that requests could read there what callers "
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


@cache
def _warn_once(problem: str) -> None:
    _LOG.warning("memory: %s", problem)


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(ListenConfig):
    """The options of an encoder process."""

    listen: str = "127.0.0.1:7078"
    """`host:port`; port 0 takes a free one."""

    store: str = option(
        "", "Folder or bucket; the encoders of its indexes are served.", "--store -s", metavar="URI"
    )

    indexes: tuple[str, ...] = option(
        (), "Only the encoder of this index; may be given several times.", "--index"
    )

    models: tuple[str, ...] = option(
        (),
        "Serve this model: a name, a local folder, or store:NAME@N; may be given several times.",
        "--model",
        metavar="MODEL",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.store and not self.models:
            raise ConfigError("store: give a store (--store), a model (--model), or both", field="store")
        if self.indexes and not self.store:
            raise ConfigError("indexes: need a store (--store)", field="indexes")
        make_absolute(self, "store")


@dataclass(frozen=True, kw_only=True)
class MaintainConfig:
    """The options of a process that maintains indexes. Raises ConfigError, which names the field."""

    store: str
    """Folder or URI of the store."""

    indexes: tuple[str, ...] = option((), "Maintain only this index; may be given several times.", "--index")
    """Empty: all."""

    log: str = field(default="", repr=False)
    """Local folder with the mutation logs, or the URL of a database of PostgreSQL, which may have a password; empty:
    inside the store, if it is a local folder."""

    fill_cache: bool | None = option(
        None,
        "Unpack new segments into the cache of this machine, for servers on it; by default if the store is a folder.",
    )

    metrics_listen: str = option("", "Serve Prometheus metrics here, at /metrics.", metavar="HOST:PORT")
    """Empty: none."""

    check_every_s: float = 1.0
    """Seconds between two looks at the indexes."""

    def __post_init__(self) -> None:
        if self.metrics_listen:
            split_address(self.metrics_listen, field="metrics_listen")
        if self.check_every_s <= 0:
            raise ConfigError(
                f"check_every_s: must be greater than 0, got {self.check_every_s}", field="check_every_s"
            )
        log_root_of(self.log)  # checks it, before it becomes an absolute path
        make_absolute(self, "store", "log")
