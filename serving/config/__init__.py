"""Options of servers and encoder processes, validated on construction."""

from __future__ import annotations

from scannery.serving.config.audit import AuditConfig
from scannery.serving.config.listen import (
    CACHED_QUERIES,
    DNS,
    FILE,
    LeavesConfig,
    ListenConfig,
    RemoteConfig,
    WorkerContext,
    is_loopback,
    joined_address,
    split_address,
)
from scannery.serving.config.server import (
    ALL_INDEXES,
    EncoderConfig,
    MaintainConfig,
    ServerConfig,
    VertexConfig,
)
from scannery.serving.config.traffic import TrafficConfig

__all__ = [
    "ALL_INDEXES",
    "CACHED_QUERIES",
    "DNS",
    "FILE",
    "AuditConfig",
    "EncoderConfig",
    "LeavesConfig",
    "ListenConfig",
    "MaintainConfig",
    "RemoteConfig",
    "ServerConfig",
    "TrafficConfig",
    "VertexConfig",
    "WorkerContext",
    "is_loopback",
    "joined_address",
    "split_address",
]
