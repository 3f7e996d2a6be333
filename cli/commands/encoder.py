"""`scannery encoder`: encode texts in a separate process, for servers and other callers."""

from __future__ import annotations

from typing import Annotated

import typer

from scannery.cli import options
from scannery.cli.lazy_commands import uncollected

__all__ = ["encoder"]


def encoder(
    store: Annotated[
        str,
        typer.Option(
            "--store",
            "-s",
            metavar="URI",
            help="Folder or bucket; the encoders of its indexes are served.",
        ),
    ] = "",
    index: Annotated[
        list[str] | None,
        typer.Option(help="Only the encoder of this index; may be given several times."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL",
            help="Serve this model: a name, or a local folder; may be given several times.",
        ),
    ] = None,
    listen: options.ListenOption = "127.0.0.1:7078",
    workers: options.WorkersOption = "1",
    device: options.DeviceOption = "auto",
    drain: options.DrainOption = 10.0,
    http: options.HttpOption = "off",
    metrics_listen: options.MetricsOption = "",
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
) -> None:
    """Encode texts until SIGTERM or Ctrl-C, for `serve --encoder` and for callers of EmbeddingService."""
    given = dict(locals())
    with uncollected():
        from scannery.indexer.local.needless_imports import leave_needless_imports_out

        leave_needless_imports_out()
        from scannery.serving import EncoderConfig, serve_encoders

    options.become_server(log_json)
    config = EncoderConfig(
        store=store,
        indexes=tuple(index or ()),
        models=tuple(model or ()),
        listen=listen,
        insecure=insecure,
        security=options.security(**given),
        device=device,
        metrics_listen=metrics_listen,
        cached_queries=cached_queries,
        memory_budget=memory_budget << 20,
        drain_s=drain,
        http=http,
    )
    serve_encoders(config, workers=options.worker_count(workers), ready=options.announce)
