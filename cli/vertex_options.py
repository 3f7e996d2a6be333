"""Options of `scannery serve` for clients of the managed service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from scannery.indexer.contents import ContentsReader
    from scannery.serving.config import VertexConfig

__all__ = [
    "AddressOption",
    "ContentsOption",
    "ModelOption",
    "PrivateOption",
    "TlsDevOption",
    "VertexOption",
    "development_certificate",
    "vertex_config",
]

_PANEL = "Clients of the managed service"


def _option(*names: str, **options: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_PANEL, **options)


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
