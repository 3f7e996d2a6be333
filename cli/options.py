"""Options that several commands share: of a client's target, of servers, of the leaves of a cluster, and of the log."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scannery.cli.declared_options import configured, option_values
from scannery.client import Client, connect
from scannery.client.transport.credentials import ConnectOptions
from scannery.live.log.location import LOG_VARIABLE, LogRoot, log_root_of

if TYPE_CHECKING:
    from scannery.serving.config import VertexConfig

__all__ = [
    "ClusterNameOption",
    "FieldsOption",
    "IndexOption",
    "JsonOption",
    "LogJsonOption",
    "LogOption",
    "ModelOption",
    "ModelStoreOption",
    "PrefixOption",
    "RayOption",
    "ServedStoreOption",
    "StoreOption",
    "TargetOption",
    "TimeoutOption",
    "TlsDevOption",
    "TyposOption",
    "VectorsOption",
    "VertexOption",
    "WhereOption",
    "WorkersOption",
    "announce",
    "become_server",
    "chosen_target",
    "connected",
    "development_certificate",
    "given_log_root",
    "parsed_json",
    "remote_options",
    "vector_choices",
    "vertex_config",
    "worker_count",
]


IndexOption = Annotated[str, typer.Option("--index", "-i", help="Name of the index.")]
TargetOption = Annotated[
    str | None, typer.Option("--target", "-t", metavar="HOST:PORT", help="Address of a server.")
]
ServedStoreOption = Annotated[
    str,
    typer.Option(
        "--store", "-s", envvar="SCANNERY_STORE", metavar="URI", help="Folder or bucket with the indexes."
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", metavar="URI", help="A store, opened in this process: a folder, gs://, s3://, az://."
    ),
]
ModelStoreOption = Annotated[
    str | None,
    typer.Option("--store", "-s", metavar="URI", help="Store of models that a spec names as store:NAME@N."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
FieldsOption = Annotated[
    list[str] | None,
    typer.Option("--field", help="Return only this field or attribute; may be given several times."),
]
WhereOption = Annotated[
    str | None, typer.Option("--where", metavar="JSON", help='Filter, such as {"year": {"$gte": 2020}}.')
]
VectorModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL",
        help="The model that made given vectors: its name, its digest, or the first 8 digits of that or more. An error "
        "where the index has vectors of another model.",
    ),
]
VectorsOption = Annotated[
    str | None,
    typer.Option(
        "--vectors",
        metavar="NAME[=WEIGHT],...",
        help="Named vectors to compare; several are fused. An empty name is the unnamed vector.",
    ),
]
TyposOption = Annotated[
    bool | None,
    typer.Option(
        "--typos/--no-typos",
        help="Take a word that no text has for similar ones. Default: the index's own.",
        show_default=False,
    ),
]
PrefixOption = Annotated[bool, typer.Option("--prefix", help="The last word may be the beginning of a word.")]
RankingOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|EXPRESSION",
        help="Order hits by a ranking of the index, or by an expression of `score` and attributes.",
    ),
]
BoostOption = Annotated[
    str | None,
    typer.Option(
        metavar="JSON",
        help="Signals with weights that are added to the score, a list of objects; --ranking takes the same as text.",
    ),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="Deadline of a call.")]


def connected(target: str | None, store: str | None, *, timeout_s: float, create: bool = False) -> Client:
    """Return the client for --target or --store; exactly one of them must be given.

    Credentials for a server come from the environment (`remote_options`). `create`: whether a store's folder is created
    if it does not exist.
    """
    location = chosen_target(target, store)
    if target is not None:
        return connect(location, timeout_s=timeout_s, **remote_options())
    from scannery.indexer.local.needless_imports import leave_needless_imports_out

    leave_needless_imports_out()
    return connect(location, timeout_s=timeout_s, create=create)


def chosen_target(target: str | None, store: str | None) -> str | Path:
    """Return what `connect` takes for --target or --store; exactly one of them must be given."""
    if (target is None) == (store is None):
        raise typer.BadParameter("give either --target HOST:PORT or --store URI")
    if target is not None:
        if "://" not in target and ":" not in target:
            raise typer.BadParameter(f"--target must be HOST:PORT, got {target!r}; for a folder, use --store")
        return target
    assert store is not None
    # A path that looks like a server is a folder here, because the option names a store.
    return store if "://" in store else Path(store)


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


def vector_choices(text: str) -> list[str] | dict[str, float]:
    """Return the vectors that --vectors names, with weights if one is given: those without one have 1.

    In the values of a sweep, between which commas are, `+` is between names.
    """
    choices: dict[str, float] = {}
    for item in text.replace("+", ",").split(","):
        name, equals, weight = (part.strip() for part in item.partition("="))
        if name in choices:
            raise typer.BadParameter(f"--vectors names {name!r} twice")
        try:
            choices[name] = float(weight) if equals else 1.0
        except ValueError as error:
            raise typer.BadParameter(f"--vectors must be NAME or NAME=WEIGHT, got {item!r}") from error
    return choices if "=" in text else list(choices)


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


RayOption = Annotated[
    str,
    typer.Option("--ray", metavar="ADDRESS", help="Head of Ray, `host:port`, or `auto` on one of its nodes."),
]
ClusterNameOption = Annotated[str, typer.Option("--name", help="Name of the cluster; Ray may have several.")]
VertexOption = Annotated[
    bool,
    _option("--vertex", help="Answer the managed service's gRPC APIs on the same port (docs/vertex.md)."),
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


def vertex_config(
    models: list[str] | None, arguments: Mapping[str, Any], *, vertex: bool
) -> VertexConfig | None:
    """Return the configuration from the values of flags; None without --vertex."""
    from scannery.serving.config import VertexConfig

    values = option_values(VertexConfig, arguments)
    if not vertex:
        for name, value in (values | {"model": models}).items():
            if value:
                raise typer.BadParameter(f"--vertex-{name} needs --vertex")
        return None
    readers = _readers() if values["contents"] else {}
    return configured(VertexConfig, arguments, models=_models(models or []), **readers)


def development_certificate(folder: str, **settings: Any) -> dict[str, str]:
    """Return the options of TLS with the certificate in a folder, which is made if it is absent or expires soon."""
    from scannery.serving.security.development_certificate import made_certificate

    for name in ("tls_cert", "tls_key", "behind_tls"):
        if settings[name]:
            raise typer.BadParameter(f"--tls-dev cannot be combined with --{name.replace('_', '-')}")
    certificate, key = made_certificate(folder)
    return {"tls_cert": str(certificate), "tls_key": str(key)}


def _readers() -> dict[str, Any]:
    # Servers do not import pipelines: what they read of them is given to them here.
    from scannery.pipelines.sources.managed.managed_contents import read_contents, read_json_lines

    return {"reader": read_contents, "object_reader": read_json_lines}


def _models(items: list[str]) -> dict[str, str]:
    models: dict[str, str] = {}
    for item in items:
        name, equals, model = item.partition("=")
        if not (name and equals and model):
            raise typer.BadParameter(f"--vertex-model must be NAME=MODEL, got {item!r}")
        models[name] = model
    return models


WorkersOption = Annotated[
    str, typer.Option(metavar="N", help="Processes that share the port; `auto`: one per core.")
]


LogJsonOption = Annotated[bool, typer.Option("--log-json", help="Log one JSON object per line.")]


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
