"""`scannery serve`: serve the indexes of a store."""

from __future__ import annotations

import os
from typing import Annotated, Literal

import typer

from scannery.cli import options
from scannery.cli.lazy_commands import uncollected
from scannery.cli.options import (
    LeavesCaOption,
    LeavesCertKeyOption,
    LeavesCertOption,
    LeavesKeyOption,
    LogOption,
)
from scannery.live.log.location import LOG_VARIABLE

__all__ = ["serve"]

_CLUSTER = "Cluster"
_ENCODER = "Encoder process"


def serve(
    store: Annotated[
        str,
        typer.Option(
            "--store", "-s", envvar="SCANNERY_STORE", metavar="URI", help="Folder or bucket with the indexes."
        ),
    ],
    listen: options.ListenOption = "127.0.0.1:7077",
    workers: options.WorkersOption = "1",
    index: Annotated[
        list[str] | None, typer.Option(help="Serve only this index; may be given several times.")
    ] = None,
    cold: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INDEX",
            help="Leave the vectors of this index in the store, and read those that a search needs: little memory "
            "and disk, slower searches, none by words. May be given several times; `all`: all indexes.",
        ),
    ] = None,
    log: LogOption = "",
    role: Annotated[
        Literal["all", "leaf", "root"],
        typer.Option(
            help="Part of this server in a cluster. `leaf`: answer roots for the shards of one group; `root`: answer "
            "callers by leaves of all groups.",
            rich_help_panel=_CLUSTER,
        ),
    ] = "all",
    group: Annotated[
        str,
        typer.Option(
            metavar="NUMBER/GROUPS",
            help="Group of a leaf: 3/8 has the shards s with s mod 8 = 3.",
            rich_help_panel=_CLUSTER,
        ),
    ] = "",
    leaves: Annotated[
        str,
        typer.Option(
            metavar="TARGET",
            help="Leaves of a root: `host:port,host:port`, `dns:///name:port`, or `file:///path` with one a line.",
            rich_help_panel=_CLUSTER,
        ),
    ] = "",
    leaves_key: LeavesKeyOption = "",
    leaves_ca: LeavesCaOption = "",
    leaves_cert: LeavesCertOption = "",
    leaves_cert_key: LeavesCertKeyOption = "",
    device: options.DeviceOption = "auto",
    encoder: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Encode texts in this process (scannery encoder) instead.",
            rich_help_panel=_ENCODER,
        ),
    ] = "",
    encoder_key: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="File with the API key for the encoder process.", rich_help_panel=_ENCODER
        ),
    ] = "",
    encoder_ca: Annotated[
        str,
        typer.Option(
            metavar="FILE",
            help="Connect to it with TLS; file with the authority of its certificate.",
            rich_help_panel=_ENCODER,
        ),
    ] = "",
    reranker: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Cross-encoder for all indexes: a name, or a local folder."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="A model that new indexes may use (CreateIndex), besides those of served indexes; may be given "
            "several times.",
        ),
    ] = None,
    drain: options.DrainOption = 10.0,
    http: options.HttpOption = "auto",
    http_cors: options.HttpCorsOption = None,
    http_host: options.HttpHostOption = None,
    metrics_listen: options.MetricsOption = "",
    recall_share: Annotated[
        float,
        typer.Option(
            help="Share of queries repeated as exact searches, to estimate the recall; 0: none, and it is not held."
        ),
    ] = 0.05,
    hold_recall: Annotated[
        bool,
        typer.Option(
            help="Move the settings of searches so that the sampled queries reach the target recall."
        ),
    ] = True,
    keep_queries: Annotated[
        int,
        typer.Option(
            metavar="N",
            help="Keep a sample of N query vectors per index and worker in memory, for `scannery index tune "
            "--from-server`. Queries can be personal data; callers with the scope admin can read them. 0: none.",
        ),
    ] = 0,
    cached_queries: options.CachedQueriesOption = 4096,
    memory_budget: options.MemoryBudgetOption = 0,
    log_json: options.LogJsonOption = False,
    keys: options.KeysOption = "",
    jwks: options.JwksOption = "",
    jwt_issuer: options.JwtIssuerOption = "",
    jwt_audience: options.JwtAudienceOption = "",
    tls_cert: options.TlsCertOption = "",
    tls_key: options.TlsKeyOption = "",
    behind_tls: options.BehindTlsOption = False,
    client_ca: options.ClientCaOption = "",
    public_health: options.PublicHealthOption = True,
    reflection: options.ReflectionOption = None,
    insecure: options.InsecureOption = False,
    vertex: options.VertexOption = False,
    vertex_address: options.AddressOption = "",
    vertex_contents: options.ContentsOption = None,
    vertex_private: options.PrivateOption = "",
    vertex_model: options.ModelOption = None,
    tls_dev: options.TlsDevOption = "",
) -> None:
    """Serve the indexes of a store until SIGTERM or Ctrl-C; new versions are served without a restart."""
    given = dict(locals())
    with uncollected():
        from scannery.indexer.local.needless_imports import leave_needless_imports_out

        leave_needless_imports_out()
        from scannery.serving import LeavesConfig, RemoteConfig, ServerConfig
        from scannery.serving import serve as run

    options.become_server(log_json)
    if (encoder_key or encoder_ca) and not encoder:
        raise typer.BadParameter("--encoder-key and --encoder-ca need --encoder")
    if (leaves_key or leaves_ca or leaves_cert or leaves_cert_key) and not leaves:
        raise typer.BadParameter("--leaves-key, --leaves-ca and --leaves-cert need --leaves")
    if tls_dev:
        given |= options.development_certificate(tls_dev, **given)
    config = ServerConfig(
        store=store,
        listen=listen,
        role=role,
        group=group,
        leaves=LeavesConfig(
            target=leaves, key_file=leaves_key, ca=leaves_ca, cert=leaves_cert, cert_key=leaves_cert_key
        )
        if leaves
        else None,
        indexes=tuple(index or ()),
        cold=tuple(cold or ()),
        insecure=insecure,
        security=options.security(**given),
        log=log or os.environ.get(LOG_VARIABLE, ""),
        device=device,
        encoder=RemoteConfig(address=encoder, key_file=encoder_key, ca=encoder_ca) if encoder else None,
        http=http,
        http_cors=tuple(http_cors or ()),
        http_hosts=tuple(http_host or ()),
        metrics_listen=metrics_listen,
        cached_queries=cached_queries,
        memory_budget=memory_budget << 20,
        recall_share=recall_share,
        hold_recall=hold_recall,
        keep_queries=keep_queries,
        reranker=reranker,
        models=tuple(model or ()),
        drain_s=drain,
        vertex=options.vertex_config(**given),
    )
    run(config, workers=options.worker_count(workers), ready=options.announce)
