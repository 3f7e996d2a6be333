"""Options that several commands share: of a client's target, of servers, of the leaves of a cluster, and of the log."""

from __future__ import annotations

import json
import logging
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scannery.client import Client, connect
from scannery.client.transport.credentials import ConnectOptions
from scannery.live.log.location import LOG_VARIABLE, LogRoot, log_root_of

if TYPE_CHECKING:
    from scannery.indexer.contents import ContentsReader
    from scannery.serving import SecurityConfig
    from scannery.serving.config import VertexConfig

__all__ = [
    "AddressOption",
    "BehindTlsOption",
    "CachedQueriesOption",
    "ClientCaOption",
    "ContentsOption",
    "DeviceOption",
    "DrainOption",
    "FieldsOption",
    "HttpCorsOption",
    "HttpHostOption",
    "HttpOption",
    "IndexOption",
    "InsecureOption",
    "JsonOption",
    "JwksOption",
    "JwtAudienceOption",
    "JwtIssuerOption",
    "KeysOption",
    "LeavesCaOption",
    "LeavesCertKeyOption",
    "LeavesCertOption",
    "LeavesKeyOption",
    "ListenOption",
    "LogJsonOption",
    "LogOption",
    "MemoryBudgetOption",
    "MetricsOption",
    "ModelOption",
    "PrivateOption",
    "PublicHealthOption",
    "ReflectionOption",
    "StoreOption",
    "TargetOption",
    "TimeoutOption",
    "TlsCertOption",
    "TlsDevOption",
    "TlsKeyOption",
    "VertexOption",
    "WhereOption",
    "WorkersOption",
    "announce",
    "become_server",
    "connected",
    "development_certificate",
    "given_log_root",
    "parsed_json",
    "remote_options",
    "security",
    "vertex_config",
    "worker_count",
]


IndexOption = Annotated[str, typer.Option("--index", "-i", help="Name of the index.")]
TargetOption = Annotated[
    str | None, typer.Option("--target", "-t", metavar="HOST:PORT", help="Address of a server.")
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", metavar="URI", help="A store, opened in this process: a folder, gs://, s3://, az://."
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FieldsOption = Annotated[
    list[str] | None,
    typer.Option("--field", help="Return only this field or attribute; may be given several times."),
]
WhereOption = Annotated[
    str | None, typer.Option("--where", metavar="JSON", help='Filter, such as {"year": {"$gte": 2020}}.')
]
TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Deadline of a call.")]


def connected(target: str | None, store: str | None, *, timeout_s: float, create: bool = False) -> Client:
    """Return the client for --target or --store; exactly one of them must be given.

    Credentials for a server come from the environment (`remote_options`). `create`: whether a store's folder is created
    if it does not exist.
    """
    if (target is None) == (store is None):
        raise typer.BadParameter("give either --target HOST:PORT or --store URI")
    if target is not None:
        if "://" not in target and ":" not in target:
            raise typer.BadParameter(f"--target must be HOST:PORT, got {target!r}; for a folder, use --store")
        return connect(target, timeout_s=timeout_s, **remote_options())
    from scannery.indexer.local.needless_imports import leave_needless_imports_out

    leave_needless_imports_out()
    assert store is not None
    # A path that looks like a server is a folder here, because the option names a store.
    return connect(store if "://" in store else Path(store), timeout_s=timeout_s, create=create)


def remote_options() -> ConnectOptions:
    """Return the connection options from the environment variables.

    Secrets have no options: every process of the machine can read a command line.
    """
    value = {name: os.environ.get(variable) or None for name, variable in _ENVIRONMENT.items()}
    options = ConnectOptions(
        api_key=value["api_key"],
        token=value["token"],
        ca=value["ca"],
        cert=value["cert"],
        key=value["key"],
    )
    if (tls := value["tls"]) is not None:
        options["tls"] = tls.lower() in ("1", "true", "yes", "on")
    return options


_ENVIRONMENT = {
    "api_key": "SCANNERY_API_KEY",
    "token": "SCANNERY_TOKEN",
    "tls": "SCANNERY_TLS",
    "ca": "SCANNERY_CA",
    "cert": "SCANNERY_CERT",
    "key": "SCANNERY_KEY",
}
"""Variable by option of `connect`."""


def parsed_json(text: str | None, option: str) -> Any:
    """Return the parsed JSON of an option; None if the option was not given."""
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} is not valid JSON: {error}") from error


_PANEL = "Cluster"

LeavesKeyOption = Annotated[
    str,
    typer.Option(
        "--leaves-key", metavar="FILE", help="File with the API key for the leaves.", rich_help_panel=_PANEL
    ),
]
LeavesCaOption = Annotated[
    str,
    typer.Option(
        "--leaves-ca",
        metavar="FILE",
        help="Connect to them with TLS; file with the authority of their certificates.",
        rich_help_panel=_PANEL,
    ),
]
LeavesCertOption = Annotated[
    str,
    typer.Option(
        "--leaves-cert",
        metavar="FILE",
        help="Certificate for leaves that ask for one.",
        rich_help_panel=_PANEL,
    ),
]
LeavesCertKeyOption = Annotated[
    str,
    typer.Option(
        "--leaves-cert-key",
        metavar="FILE",
        help="Private key of this certificate.",
        rich_help_panel=_PANEL,
    ),
]


LogOption = Annotated[
    str,
    typer.Option(
        "--log",
        metavar="PLACE",
        help="Logs of live updates: a folder, or the URL of a PostgreSQL database; default: $SCANNERY_LOG, or in the "
        "store, if it is a folder.",
        show_default=False,
    ),
]


def given_log_root(log: str) -> LogRoot | None:
    """Return the place that `--log` names, or the environment; None: neither does."""
    return log_root_of(log or os.environ.get(LOG_VARIABLE, ""))


_VERTEX_PANEL = "Clients of the managed service"


def _option(*names: str, **options: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_VERTEX_PANEL, **options)


VertexOption = Annotated[
    bool,
    _option("--vertex", help="Answer the managed service's gRPC APIs on the same port (docs/vertex.md)."),
]
AddressOption = Annotated[
    str,
    _option(metavar="HOST:PORT", help="The address that its clients are told; default: that of the server."),
]
ContentsOption = Annotated[
    list[str] | None,
    _option(
        metavar="URI",
        help="Folder below which requests may name folders to read and to write; may be given several times.",
    ),
]
PrivateOption = Annotated[
    str,
    _option(
        metavar="HOST:PORT",
        help="Answer the API of private endpoints here, without TLS; its clients use port 10000.",
    ),
]
ModelOption = Annotated[
    list[str] | None,
    _option(
        metavar="NAME=MODEL",
        help="The encoder that one of the service's models stands for; may be given several times.",
    ),
]
TlsDevOption = Annotated[
    str,
    _option(
        metavar="DIR",
        help="Use TLS with a certificate for localhost, made here if it is absent; clients need DIR/ca.pem.",
    ),
]


def vertex_config(**given: Any) -> VertexConfig | None:
    """Return the configuration from the options, by their names; None without --vertex."""
    from scannery.serving.config import VertexConfig

    names = ("vertex_address", "vertex_contents", "vertex_private", "vertex_model")
    if not given["vertex"]:
        for name in names:
            if given[name]:
                raise typer.BadParameter(f"--{name.replace('_', '-')} needs --vertex")
        return None
    contents = tuple(given["vertex_contents"] or ())
    return VertexConfig(
        address=given["vertex_address"],
        private=given["vertex_private"],
        contents=contents,
        models=_models(given["vertex_model"] or []),
        **(_readers() if contents else {}),
    )


def development_certificate(folder: str, **given: Any) -> dict[str, str]:
    """Return the options of TLS with the certificate in a folder, which is made if it is absent or expires soon."""
    from scannery.serving.security.development_certificate import made_certificate

    for name in ("tls_cert", "tls_key", "behind_tls"):
        if given[name]:
            raise typer.BadParameter(f"--tls-dev cannot be combined with --{name.replace('_', '-')}")
    certificate, key = made_certificate(folder)
    return {"tls_cert": str(certificate), "tls_key": str(key)}


def _readers() -> dict[str, ContentsReader]:
    # Servers do not import pipelines: what they read of them is given to them here.
    from scannery.pipelines.sources.managed.managed_contents import read_contents, read_json_lines

    return {"reader": read_contents, "object_reader": read_json_lines}


def _models(given: list[str]) -> dict[str, str]:
    models: dict[str, str] = {}
    for item in given:
        name, equals, model = item.partition("=")
        if not (name and equals and model):
            raise typer.BadParameter(f"--vertex-model must be NAME=MODEL, got {item!r}")
        models[name] = model
    return models


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
        from scannery.serving.telemetry.tracing import JsonFormatter

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
