"""`scannery mcp`: tools for agents over the Model Context Protocol."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from scannery.cli.options import StoreOption, TargetOption, TimeoutOption, chosen_target, remote_options
from scannery.client import FailedPreconditionError, UnauthenticatedError
from scannery.client.packages import needed_for, with_extra
from scannery.serving.config import is_loopback

if TYPE_CHECKING:
    from scannery.bridges.mcp.http import HttpConfig
    from scannery.client.aio import AsyncClient

__all__ = ["mcp"]


def mcp(
    target: TargetOption = None,
    store: StoreOption = None,
    http: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Serve streamable HTTP at http://HOST:PORT/mcp, not standard input and output. Each caller sends "
            "its own key, as the header `Authorization: Bearer KEY`.",
        ),
    ] = None,
    http_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name that callers may use besides those of this machine; may be given several times.",
        ),
    ] = None,
    behind_tls: Annotated[
        bool,
        typer.Option(
            "--behind-tls",
            help="Something in front ends TLS: allows an address beyond loopback, if the target requires keys.",
        ),
    ] = False,
    timeout: TimeoutOption = 30.0,
) -> None:
    """Let agents search and read indexes, over the Model Context Protocol; nothing can be changed by it."""
    with needed_for("scannery mcp", with_extra("mcp")):
        from scannery.bridges.mcp.server import caller_secret, serve_stdio

    from scannery.client import aio

    location = chosen_target(target, store)
    if http is None:
        if http_host or behind_tls:
            raise typer.BadParameter("--http-host and --behind-tls need --http")
        options = remote_options() if target is not None else {}
        asyncio.run(serve_stdio(aio.connect(location, timeout_s=timeout, **options)))
        return
    config = _http_config(http, http_host or [], behind_tls=behind_tls)
    if behind_tls and store is not None:
        raise typer.BadParameter("--behind-tls needs --target: a store checks no keys")
    options = {}
    if target is not None:
        # The caller's own key in the place of this process's: nobody may do more here than at the server.
        options = {**remote_options(), "api_key": None, "token": caller_secret}
    asyncio.run(_serve(aio.connect(location, timeout_s=timeout, **options), config))


async def _serve(client: AsyncClient, config: HttpConfig) -> None:
    from scannery.bridges.mcp.http import serve_http

    if config.needs_secret:
        try:
            await client.indexes()
        except UnauthenticatedError:
            pass
        else:
            raise FailedPreconditionError(
                "--behind-tls: the target answers without a key, so everybody could read it here; serve it with --keys "
                "or --jwks"
            )
    async with client:
        await serve_http(client, config, lambda url: typer.echo(f"Serving on {url}; Ctrl-C stops."))


def _http_config(address: str, names: list[str], *, behind_tls: bool) -> HttpConfig:
    from scannery.bridges.mcp.http import HttpConfig

    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(f"--http must be HOST:PORT, got {address!r}")
    if not is_loopback(host) and not behind_tls:
        raise typer.BadParameter(
            "--http beyond loopback would carry keys and texts unencrypted: put something in front that ends TLS, and "
            "give --behind-tls"
        )
    return HttpConfig(host=host, port=int(port), names=tuple(names), needs_secret=behind_tls)
