"""Targets of the frameworks' stores: a folder, and a server over each of its wires."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from scannery.indexer import Store
from tests.served import serving

__all__ = ["TARGETS", "fresh_name", "target_of"]

TARGETS = ("embedded", "gRPC", "HTTP")
_NUMBERS = count()


@contextmanager
def target_of(kind: str, folder: Path) -> Iterator[str]:
    """Give the target of a new store in a folder; a server of it runs meanwhile."""
    if kind == "embedded":
        yield str(folder)
        return
    Store.open(folder, create=True)
    with serving(folder, device="cpu") as server:
        yield server.address if kind == "gRPC" else f"http://127.0.0.1:{server.http_port}"


def fresh_name() -> str:
    """Return the name of an index that no other test has."""
    return f"index-{next(_NUMBERS)}"
