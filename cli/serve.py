"""`scannery serve`: answer over gRPC."""

from __future__ import annotations

from typing import Annotated

import typer

from scannery.cli import listening as options

__all__ = ["serve"]

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
    log: Annotated[
        str,
        typer.Option(
            metavar="DIR",
            help="Logs of live updates; a store that is a folder has them in itself by default.",
        ),
    ] = "",
    device: options.DeviceOption = "auto",
    encoder: Annotated[
        str,
        typer.Option(
            metavar="HOST:PORT",
            help="Have texts encoded by this process (scannery encoder), not here.",
            rich_help_panel=_ENCODER,
        ),
    ] = "",
    encoder_key: Annotated[
        str, typer.Option(metavar="FILE", help="File with the API key for it.", rich_help_panel=_ENCODER)
    ] = "",
    encoder_ca: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Reach it by TLS; who may sign its certificate.", rich_help_panel=_ENCODER
        ),
    ] = "",
    reranker: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Cross-encoder for all indexes: a name, or a local folder."),
    ] = None,
    drain: options.DrainOption = 10.0,
    http: options.HttpOption = "auto",
    http_cors: options.HttpCorsOption = None,
    http_host: options.HttpHostOption = None,
    metrics_listen: options.MetricsOption = "",
    recall_share: Annotated[
        float, typer.Option(help="Share of the queries asked again exactly, to estimate the recall.")
    ] = 0.001,
    cached_queries: options.CachedQueriesOption = 4096,
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
) -> None:
    """Serve the indexes of a store until SIGTERM or Ctrl-C; new versions are picked up by themselves."""
    given = dict(locals())
    from scannery.serving import RemoteConfig, ServerConfig
    from scannery.serving import serve as run

    options.become_server(log_json)
    if (encoder_key or encoder_ca) and not encoder:
        raise typer.BadParameter("--encoder-key and --encoder-ca need --encoder")
    config = ServerConfig(
        store=store,
        listen=listen,
        indexes=tuple(index or ()),
        insecure=insecure,
        security=options.security(**given),
        log=log,
        device=device,
        encoder=RemoteConfig(address=encoder, key_file=encoder_key, ca=encoder_ca) if encoder else None,
        http=http,
        http_cors=tuple(http_cors or ()),
        http_hosts=tuple(http_host or ()),
        metrics_listen=metrics_listen,
        cached_queries=cached_queries,
        recall_share=recall_share,
        reranker=reranker,
        drain_s=drain,
    )
    run(config, workers=options.worker_count(workers), ready=options.announce)
