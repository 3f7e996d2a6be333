"""Leaves and roots in this process, on ports of loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from scannery.serving import LeavesConfig, Server, ServerConfig

__all__ = ["leaf_server", "root_server", "started_cluster"]

CHECK_EVERY_S = 0.2


def leaf_server(store: Path, group: int, groups: int, **options: Any) -> Server:
    """Return a leaf, not yet started."""
    options = {"listen": "127.0.0.1:0", "check_every_s": CHECK_EVERY_S, **options}
    return Server(ServerConfig(store=str(store), role="leaf", group=f"{group}/{groups}", **options))


def root_server(store: Path, leaves: str, **options: Any) -> Server:
    """Return a root, not yet started."""
    return Server(
        ServerConfig(
            store=str(store), listen="127.0.0.1:0", role="root", leaves=LeavesConfig(target=leaves),
            check_every_s=CHECK_EVERY_S, **options,
        )
    )  # fmt: skip


@contextmanager
def started_cluster(
    store: Path, groups: int, *, rows: int = 1, log: str = "", **options: Any
) -> Iterator[tuple[Server, list[list[Server]]]]:
    """Give a root, with further options, and its leaves, by row and group; all of them use one log."""
    with ExitStack() as stack:
        leaves = [
            [stack.enter_context(leaf_server(store, group, groups, log=log)) for group in range(groups)]
            for _ in range(rows)
        ]
        target = ",".join(leaf.address for row in leaves for leaf in row)
        yield stack.enter_context(root_server(store, target, log=log, **options)), leaves
