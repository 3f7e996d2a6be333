"""Options of `scannery serve` and `scannery encoder`."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING, Annotated, Any

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
    "MemoryBudgetOption",
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


def _security_option(*names: str, **options: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_SECURITY, **options)


ListenOption = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
]
WorkersOption = Annotated[
    str, typer.Option(metavar="N", help="Processes that share the port; `auto`: one per core.")
]


def _checked_device(name: str) -> str:
    if not re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?|xla", name):
        raise typer.BadParameter(f"must be auto, cpu, cuda, cuda:N or xla, got {name!r}")
    return name


DeviceOption = Annotated[
    str,
    typer.Option(
        metavar="auto|cpu|cuda|cuda:N|xla",
        callback=_checked_device,
        help="Where texts are encoded. `cuda`: of several GPUs, each worker takes the one that is used least.",
    ),
]
DrainOption = Annotated[
    float, typer.Option(metavar="SECONDS", help="Time for running requests to finish after a stop.")
]
MemoryBudgetOption = Annotated[
    int,
    typer.Option(
        metavar="MIB",
        min=0,
        help="Memory of a worker for requests that arrive and answers that are not read yet; a caller has half of what "
        "the others leave. 0: an eighth of the machine's for a worker on each core, 256 to 1024 for each.",
    ),
]
CachedQueriesOption = Annotated[
    int,
    typer.Option(help="Query vectors to cache. 0: none, so that response times reveal no earlier query."),
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
KeysOption = Annotated[
    str, _security_option(metavar="FILE", help="Require an API key from this file (scannery keys).")
]
JwksOption = Annotated[
    str, _security_option(metavar="FILE", help="Require a JSON Web Token; file with the issuer's keys.")
]
JwtIssuerOption = Annotated[str, _security_option(metavar="ISS", help="Issuer of the tokens.")]
JwtAudienceOption = Annotated[str, _security_option(metavar="AUD", help="Audience of the tokens.")]
TlsCertOption = Annotated[str, _security_option(metavar="FILE", help="Certificate chain, PEM.")]
TlsKeyOption = Annotated[str, _security_option(metavar="FILE", help="Private key of the certificate, PEM.")]
BehindTlsOption = Annotated[
    bool,
    _security_option(
        "--behind-tls", help="A proxy in front of this server ends TLS: accept keys over plain connections."
    ),
]
ClientCaOption = Annotated[
    str, _security_option(metavar="FILE", help="Require client certificates of this authority.")
]
PublicHealthOption = Annotated[bool, _security_option(help="Answer health probes without credentials.")]
ReflectionOption = Annotated[
    bool | None,
    _security_option(
        help="Serve gRPC reflection; by default only without authentication.", show_default=False
    ),
]
InsecureOption = Annotated[
    bool, _security_option("--insecure", help="Allow an address beyond loopback without authentication.")
]


def security(**given: Any) -> SecurityConfig:
    """Return the security configuration from the options, by their names."""
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
    """Raise the log level to INFO (other commands log warnings), and the limit of open files for many connections."""
    from scannery.serving.process.os_calls import allow_open_files

    allow_open_files()
    logging.getLogger("scannery").setLevel(logging.INFO)
    if log_json:
        from scannery.serving.telemetry.json_logs import JsonFormatter

        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())


def worker_count(text: str) -> int:
    """Return the number of processes for --workers; `auto`: the available cores."""
    from scannery.serving.process.os_calls import available_cores

    if text == "auto":
        return available_cores()
    if not text.isdecimal():
        raise typer.BadParameter(f"--workers must be a number or `auto`, got {text!r}")
    return int(text)


def announce(address: str) -> None:
    """Print the address once requests are answered."""
    typer.echo(f"Serving on {address}; Ctrl-C stops.")
