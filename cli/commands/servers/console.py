"""`scannery console`: a web page on a server or a store."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scannery.cli.options import StoreOption, TargetOption, chosen_target, remote_options
from scannery.client import FailedPreconditionError, UnauthenticatedError
from scannery.client.packages import needed_for, with_extra
from scannery.client.transport.credentials import ConnectOptions
from scannery.serving.config import is_loopback

if TYPE_CHECKING:
    from scannery.console.config import ConsoleConfig
    from scannery.evaluation.judging.sets import JudgementSets

__all__ = ["console", "judgement_sets", "run_console"]

JUDGEMENTS = Path("judgements")
"""Folder of judgement sets, unless another is chosen."""


def console(
    target: TargetOption = None,
    store: StoreOption = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Address of the page; port 0: a free one.")
    ] = "127.0.0.1:7090",
    host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Name by which browsers call the page, besides those of this machine; may be given several times.",
        ),
    ] = None,
    typing: Annotated[
        int,
        typer.Option(
            min=1,
            max=64,
            metavar="N",
            help="Searches as people type that run at once, of all who use the page.",
        ),
    ] = 1,
    judgements: Annotated[
        Path,
        typer.Option(
            metavar="FOLDER", help="Questions and judgements of the page; made when the first is saved."
        ),
    ] = JUDGEMENTS,
    tls_cert: Annotated[str, typer.Option(metavar="FILE", help="Certificate of the page, PEM.")] = "",
    tls_key: Annotated[str, typer.Option(metavar="FILE", help="Its private key, PEM.")] = "",
    behind_tls: Annotated[
        bool,
        typer.Option("--behind-tls", help="Something in front ends TLS: allows an address beyond loopback."),
    ] = False,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
) -> None:
    """Open a web page on the indexes: search as you type, see why a hit is there, judge, manage."""
    with needed_for("scannery console", with_extra("console")):
        from scannery.console.config import ConsoleConfig

    location = chosen_target(target, store)
    name, _, port = listen.rpartition(":")
    if not name or not port.isdecimal() or int(port) > 65535:
        raise typer.BadParameter(f"--listen must be HOST:PORT, got {listen!r}")
    if bool(tls_cert) != bool(tls_key):
        raise typer.BadParameter("--tls-cert needs --tls-key, and --tls-key needs --tls-cert")
    options = remote_options() if target is not None else ConnectOptions()
    secret = str(options.pop("api_key", None) or options.pop("token", None) or "")
    config = ConsoleConfig(
        title=str(location),
        host=name.strip("[]"),
        port=int(port),
        names=tuple(host or ()),
        tls_cert=tls_cert,
        tls_key=tls_key,
        behind_tls=behind_tls,
        # Whoever opens the page would otherwise have what only this process has: a store, a key, a certificate.
        needs_session=store is not None or bool(secret or options.get("cert")),
        takes_keys=store is None and not options.get("cert"),
        secret=secret,
        typed_searches=typing,
        judgements=judgement_sets(judgements),
    )
    is_local = is_loopback(config.host)

    def tell(url: str) -> None:
        typer.echo(f"Console at {url}; Ctrl-C stops.")
        if not no_open and sys.stdout.isatty():
            webbrowser.open(url)

    if not is_local and not config.is_encrypted:
        raise typer.BadParameter(
            "--listen beyond loopback would carry keys and texts unencrypted: give --tls-cert and --tls-key, or put "
            "something in front that ends TLS, and give --behind-tls"
        )
    asyncio.run(run_console(location, options, config, tell, needs_keys=not is_local))


def judgement_sets(folder: Path = JUDGEMENTS) -> JudgementSets:
    """Return the judgement sets of a folder, which is made when the first question is saved."""
    from scannery.evaluation.judging.sets import JudgementSets

    return JudgementSets(folder)


async def run_console(
    location: str | Path,
    options: ConnectOptions,
    config: ConsoleConfig,
    ready: Callable[[str], None],
    *,
    needs_keys: bool = False,
) -> None:
    """Serve the page until SIGTERM or Ctrl-C.

    Args:
        location: target or store.
        options: of `connect`, without key and token: each call has those of its session.
        config: of the console.
        ready: called with the address to open.
        needs_keys: whether to refuse a server that answers without a key.

    """
    from scannery.cli.console_files import file_formats
    from scannery.client import aio
    from scannery.client.request.calls import LIST_INDEXES
    from scannery.console.application import serve_console
    from scannery.console.sessions import caller_secret

    if config.takes_keys:
        options = ConnectOptions(**{**options, "token": caller_secret})
    transport = aio.open_transport(location, **options)
    try:
        if needs_keys and not config.needs_session:
            try:
                await transport.call(LIST_INDEXES, LIST_INDEXES.request(page_size=1), 30.0)
            except UnauthenticatedError:
                pass
            else:
                raise FailedPreconditionError(
                    "--listen: the target answers without a key, so everybody could read and write it here; serve it "
                    "with --keys or --jwks"
                )
        await serve_console(transport, config, file_formats(), ready)
    finally:
        await transport.close()
