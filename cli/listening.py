"""Options of the commands that serve, and what they mean."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

if TYPE_CHECKING:
    from scannery.serving import SecurityConfig

__all__ = [
    "BehindTlsOption",
    "CachedQueriesOption",
    "ClientCaOption",
    "DeviceOption",
    "DrainOption",
    "HttpCorsOption",
    "HttpHostOption",
    "HttpOption",
    "InsecureOption",
    "JwksOption",
    "JwtAudienceOption",
    "JwtIssuerOption",
    "KeysOption",
    "ListenOption",
    "LogJsonOption",
    "MetricsOption",
    "PublicHealthOption",
    "ReflectionOption",
    "TlsCertOption",
    "TlsKeyOption",
    "WorkersOption",
    "announce",
    "become_server",
    "security",
    "worker_count",
]

_SECURITY = "Security"


def _secured(*names: str, **options: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_SECURITY, **options)


ListenOption = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
]
WorkersOption = Annotated[
    str, typer.Option(metavar="N", help="Processes that share the port; `auto`: one per core.")
]
DeviceOption = Annotated[Literal["auto", "cpu", "cuda", "xla"], typer.Option(help="Where texts are encoded.")]
DrainOption = Annotated[
    float, typer.Option(metavar="SECONDS", help="How long running requests may finish after a stop.")
]
CachedQueriesOption = Annotated[
    int,
    typer.Option(
        help="Vectors of queries to remember. 0: none, so that times of answers reveal no earlier query."
    ),
]
MetricsOption = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Serve Prometheus metrics here, at /metrics.")
]
HttpOption = Annotated[
    str,
    typer.Option(
        metavar="HOST:PORT",
        help="Answer Connect over HTTP/1.1 here; `auto`: at a free port, if only this machine is served or callers are "
        "authenticated; `off`: not at all.",
    ),
]
HttpCorsOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="ORIGIN", help="Let pages of this origin call over HTTP; may be given several times."
    ),
]
HttpHostOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A name by which HTTP is reached, through a proxy say; may be given several times.",
    ),
]
LogJsonOption = Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")]
KeysOption = Annotated[str, _secured(metavar="FILE", help="Ask for an API key (scannery keys).")]
JwksOption = Annotated[str, _secured(metavar="FILE", help="Ask for a JSON Web Token; the issuer's keys.")]
JwtIssuerOption = Annotated[str, _secured(metavar="ISS", help="Issuer of the tokens.")]
JwtAudienceOption = Annotated[str, _secured(metavar="AUD", help="Audience of the tokens.")]
TlsCertOption = Annotated[str, _secured(metavar="FILE", help="Certificate chain, PEM.")]
TlsKeyOption = Annotated[str, _secured(metavar="FILE", help="Its private key, PEM.")]
BehindTlsOption = Annotated[
    bool,
    _secured(
        "--behind-tls", help="Something in front of this server ends TLS: take keys in the clear from it."
    ),
]
ClientCaOption = Annotated[
    str, _secured(metavar="FILE", help="Ask callers for a certificate of this authority.")
]
PublicHealthOption = Annotated[bool, _secured(help="Answer health probes without credentials.")]
ReflectionOption = Annotated[
    bool | None,
    _secured(
        help="Serve gRPC reflection; by default only where no credentials are asked for.", show_default=False
    ),
]
InsecureOption = Annotated[
    bool, _secured("--insecure", help="Allow an address beyond loopback without authentication.")
]


def security(**given: Any) -> SecurityConfig:
    """Return what the options of the security panel say, by their names."""
    from scannery.serving import SecurityConfig

    return SecurityConfig(
        keys_file=given["keys"],
        jwks_file=given["jwks"],
        **{
            name: given[name]
            for name in (
                "jwt_issuer",
                "jwt_audience",
                "tls_cert",
                "tls_key",
                "behind_tls",
                "client_ca",
                "public_health",
                "reflection",
            )
        },
    )


def become_server(log_json: bool) -> None:
    """Log what happens (tools say only what goes wrong), and have room for many connections."""
    from scannery.serving.processes import allow_open_files

    allow_open_files()
    logging.getLogger("scannery").setLevel(logging.INFO)
    if log_json:
        from scannery.serving.logs import JsonFormatter

        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())


def worker_count(text: str) -> int:
    """Return the number of processes that --workers means."""
    from scannery.serving.processes import available_cores

    if text == "auto":
        return available_cores()
    if not text.isdecimal():
        raise typer.BadParameter(f"--workers must be a number or `auto`, got {text!r}")
    return int(text)


def announce(address: str) -> None:
    """Say that requests are answered, and where."""
    typer.echo(f"Serving on {address}; Ctrl-C stops.")
