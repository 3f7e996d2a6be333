"""`scannery serve`: answer over gRPC."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

import typer

__all__ = ["serve"]

_SECURITY = "Security"


def serve(
    store: Annotated[
        str,
        typer.Option(
            "--store", "-s", envvar="SCANNERY_STORE", metavar="URI", help="Folder or bucket with the indexes."
        ),
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:7077",
    workers: Annotated[
        str, typer.Option(metavar="N", help="Processes that share the port; `auto`: one per core.")
    ] = "1",
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
    device: Annotated[
        Literal["auto", "cpu", "cuda", "xla"], typer.Option(help="Where text queries are encoded.")
    ] = "auto",
    reranker: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Cross-encoder for all indexes: a name, or a local folder."),
    ] = None,
    drain: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long running requests may finish after a stop.")
    ] = 10.0,
    metrics_listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics here, at /metrics.")
    ] = "",
    recall_share: Annotated[
        float, typer.Option(help="Share of the queries asked again exactly, to estimate the recall.")
    ] = 0.001,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")] = False,
    keys: Annotated[
        str,
        typer.Option(metavar="FILE", help="Ask for an API key (scannery keys).", rich_help_panel=_SECURITY),
    ] = "",
    jwks: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Ask for a JSON Web Token; the issuer's keys.", rich_help_panel=_SECURITY
        ),
    ] = "",
    jwt_issuer: Annotated[
        str, typer.Option(metavar="ISS", help="Issuer of the tokens.", rich_help_panel=_SECURITY)
    ] = "",
    jwt_audience: Annotated[
        str, typer.Option(metavar="AUD", help="Audience of the tokens.", rich_help_panel=_SECURITY)
    ] = "",
    tls_cert: Annotated[
        str, typer.Option(metavar="FILE", help="Certificate chain, PEM.", rich_help_panel=_SECURITY)
    ] = "",
    tls_key: Annotated[
        str, typer.Option(metavar="FILE", help="Its private key, PEM.", rich_help_panel=_SECURITY)
    ] = "",
    client_ca: Annotated[
        str,
        typer.Option(
            metavar="FILE", help="Ask callers for a certificate of this authority.", rich_help_panel=_SECURITY
        ),
    ] = "",
    public_health: Annotated[
        bool, typer.Option(help="Answer health probes without credentials.", rich_help_panel=_SECURITY)
    ] = True,
    reflection: Annotated[
        bool | None,
        typer.Option(
            help="Serve gRPC reflection [default: only where no credentials are asked for].",
            rich_help_panel=_SECURITY,
            show_default=False,
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure",
            help="Allow an address beyond loopback without authentication.",
            rich_help_panel=_SECURITY,
        ),
    ] = False,
) -> None:
    """Serve the indexes of a store until SIGTERM or Ctrl-C; new versions are picked up by themselves."""
    from scannery.serving import SecurityConfig, ServerConfig
    from scannery.serving import serve as run

    # A server says what it does; tools say only what goes wrong.
    logging.getLogger("scannery").setLevel(logging.INFO)
    if log_json:
        _log_json()
    config = ServerConfig(
        store=store,
        listen=listen,
        indexes=tuple(index or ()),
        insecure=insecure,
        security=SecurityConfig(
            keys_file=keys,
            jwks_file=jwks,
            jwt_issuer=jwt_issuer,
            jwt_audience=jwt_audience,
            tls_cert=tls_cert,
            tls_key=tls_key,
            client_ca=client_ca,
            public_health=public_health,
            reflection=reflection,
        ),
        log=log,
        device=device,
        metrics_listen=metrics_listen,
        recall_share=recall_share,
        reranker=reranker,
        drain_s=drain,
    )
    run(config, workers=_worker_count(workers), ready=_announce)


def _log_json() -> None:
    from scannery.serving.logs import JsonFormatter

    for handler in logging.getLogger().handlers:
        handler.setFormatter(JsonFormatter())


def _worker_count(text: str) -> int:
    from scannery.serving.workers import available_cores

    if text == "auto":
        return available_cores()
    if not text.isdecimal():
        raise typer.BadParameter(f"--workers must be a number or `auto`, got {text!r}")
    return int(text)


def _announce(address: str) -> None:
    typer.echo(f"Serving on {address}; Ctrl-C stops.")
