"""`scannery serve | encoder | maintain`: processes that serve, encode texts, or seal, merge and collect garbage."""

from __future__ import annotations

import os
import signal
import sys
from typing import Annotated, Any, NoReturn

import typer

from scannery.cli import options
from scannery.cli.declared_options import configured, option_values, with_options
from scannery.cli.lazy_commands import uncollected
from scannery.cli.options import LogOption
from scannery.live.log.location import LOG_VARIABLE
from scannery.serving.config import (
    AuditConfig,
    EncoderConfig,
    LeavesConfig,
    MaintainConfig,
    RemoteConfig,
    ServerConfig,
    TrafficConfig,
    VertexConfig,
)
from scannery.serving.security.config import SecurityConfig

__all__ = ["encoder", "maintain", "serve"]


_CLUSTER = "Cluster"
_ENCODER = "Encoder process"


@with_options(
    "store listen workers index cold compact memory log role group leaves leaves_key leaves_ca leaves_cert "
    "leaves_cert_key device encoder encoder_key encoder_ca reranker model drain http http_cors http_host "
    "metrics_listen recall_share hold_recall keep_queries traffic_share traffic_text traffic_vectors traffic_days "
    "traffic_client_ids shadow shadow_interleave audit audit_lenient audit_otlp audit_file_size cached_queries "
    "memory_budget log_json keys jwks jwt_issuer jwt_audience jwt_access_claim groups tls_cert tls_key "
    "behind_tls client_ca limit public_health reflection insecure bridges mcp console vertex vertex_address "
    "vertex_contents vertex_private vertex_model tls_dev",
    ServerConfig,
    SecurityConfig,
    RemoteConfig,
    LeavesConfig,
    TrafficConfig,
    AuditConfig,
    VertexConfig,
)
def serve(
    store: options.ServedStoreOption,
    workers: options.WorkersOption = "1",
    log: LogOption = "",
    leaves: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="Leaves of a root: `host:port,host:port`, `dns:///name:port`, or `file:///path` with one a line.",
            rich_help_panel=_CLUSTER,
        ),
    ] = "",
    encoder: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Encode texts in this process (scannery encoder) instead.",
            rich_help_panel=_ENCODER,
        ),
    ] = "",
    log_json: options.LogJsonOption = False,
    vertex: options.VertexOption = False,
    vertex_model: options.ModelOption = None,
    tls_dev: options.TlsDevOption = "",
    **settings: Any,
) -> None:
    """Serve the indexes of a store until SIGTERM or Ctrl-C; new versions are served without a restart."""
    with uncollected():
        from scannery.indexer.local.needless_imports import leave_needless_imports_out

        leave_needless_imports_out()
        from scannery.serving import serve as run

    options.become_server(log_json)
    if not encoder and any(option_values(RemoteConfig, settings).values()):
        raise typer.BadParameter("--encoder-key and --encoder-ca need --encoder")
    if not leaves and any(option_values(LeavesConfig, settings).values()):
        raise typer.BadParameter("--leaves-key, --leaves-ca and --leaves-cert need --leaves")
    if tls_dev:
        settings |= options.development_certificate(tls_dev, **settings)
    config = configured(
        ServerConfig,
        settings,
        store=store,
        leaves=configured(LeavesConfig, settings, target=leaves) if leaves else None,
        security=configured(SecurityConfig, settings),
        traffic=configured(TrafficConfig, settings),
        audit=configured(AuditConfig, settings),
        log=log or os.environ.get(LOG_VARIABLE, ""),
        encoder=configured(RemoteConfig, settings, address=encoder) if encoder else None,
        vertex=options.vertex_config(vertex_model, settings, vertex=vertex),
    )
    run(config, workers=options.worker_count(workers), ready=options.announce)


@with_options(
    "store index model listen workers device drain http metrics_listen cached_queries memory_budget bridges log_json "
    "keys jwks jwt_issuer jwt_audience tls_cert tls_key behind_tls client_ca limit public_health reflection insecure",
    EncoderConfig,
    SecurityConfig,
)
def encoder(
    workers: options.WorkersOption = "1", log_json: options.LogJsonOption = False, **settings: Any
) -> None:
    """Encode texts until SIGTERM or Ctrl-C, for `serve --encoder` and for callers of EmbeddingService."""
    with uncollected():
        from scannery.indexer.local.needless_imports import leave_needless_imports_out

        leave_needless_imports_out()
        from scannery.serving import serve_encoders

    options.become_server(log_json)
    config = configured(EncoderConfig, settings, security=configured(SecurityConfig, settings))
    serve_encoders(config, workers=options.worker_count(workers), ready=options.announce)


@with_options("store index log once fill_cache metrics_listen log_json", MaintainConfig)
def maintain(
    store: options.ServedStoreOption,
    log: LogOption = "",
    once: Annotated[
        bool,
        typer.Option("--once", help="Seal all mutations, merge what is due, collect garbage, and end."),
    ] = False,
    log_json: options.LogJsonOption = False,
    **settings: Any,
) -> None:
    """Seal, merge and collect garbage as it becomes due, until SIGTERM or Ctrl-C; several processes may run."""
    with uncollected():
        from scannery.indexer.local.needless_imports import leave_needless_imports_out

        leave_needless_imports_out()
        from scannery.serving import maintain as run
        from scannery.serving.process.maintain import maintain_once

    options.become_server(log_json)
    config = configured(MaintainConfig, settings, store=store, log=log or os.environ.get(LOG_VARIABLE, ""))
    if once:
        before = signal.signal(signal.SIGTERM, _exit)
        try:
            maintain_once(config)
        finally:
            signal.signal(signal.SIGTERM, before)
    else:
        run(config, ready=_announce)


def _announce(metrics: str) -> None:
    typer.echo(f"Maintaining{f', metrics on {metrics}' if metrics else ''}; Ctrl-C stops.")


def _exit(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)  # an exception, which removes temporary folders
