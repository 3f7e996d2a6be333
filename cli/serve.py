"""`scannery serve`: answer over gRPC."""

from __future__ import annotations

import logging
from typing import Annotated, Literal

import typer

__all__ = ["serve"]


def serve(
    store: Annotated[
        str, typer.Option("--store", "-s", metavar="URI", help="Folder or bucket with the indexes.")
    ],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where to listen; port 0 takes a free one.")
    ] = "127.0.0.1:7077",
    workers: Annotated[int, typer.Option(help="Processes that share the port.")] = 1,
    index: Annotated[
        list[str] | None, typer.Option(help="Serve only this index; may be given several times.")
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow an address beyond loopback without authentication.")
    ] = False,
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
) -> None:
    """Serve the indexes of a store until SIGTERM or Ctrl-C; new versions are picked up by themselves."""
    from scannery.serving import ServerConfig
    from scannery.serving import serve as run

    # A server says what it does; tools say only what goes wrong.
    logging.getLogger("scannery").setLevel(logging.INFO)
    config = ServerConfig(
        store=store,
        listen=listen,
        indexes=tuple(index or ()),
        insecure=insecure,
        device=device,
        reranker=reranker,
        drain_s=drain,
    )
    run(config, workers=workers, ready=_announce)


def _announce(address: str) -> None:
    typer.echo(f"Serving on {address}; Ctrl-C stops.")
