"""The systems that can be read, by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Literal, TypeAlias, get_args

from scannery.pipelines.errors import PeerError
from scannery.pipelines.peers.collection import PeerCollection
from scannery.pipelines.peers.options import PeerOptions

__all__ = ["PEERS", "Peer", "open_peer"]

Peer: TypeAlias = Literal["qdrant", "chroma", "lancedb", "pgvector", "faiss"]
PEERS: tuple[Peer, ...] = get_args(Peer)


@contextmanager
def open_peer(peer: str, source: str, options: PeerOptions) -> Iterator[PeerCollection]:
    """Yield a collection of another system; its connection is closed afterwards.

    Args:
        peer: one of PEERS.
        source: a folder, a file, a URL or a connection string, as the system has it.
        options: what to read there.

    Raises:
        MissingPackageError: the system's own package is not installed.
        InputNotFoundError: there is nothing at the source.
        PeerError: it cannot become an index; tells what to do.

    """
    if peer not in PEERS:
        raise PeerError(f"--from: must be one of {', '.join(PEERS)}, got {peer!r:.80}")
    module = import_module(f"scannery.pipelines.peers.{peer}")
    with ExitStack() as stack:
        yield getattr(module, f"open_{peer}")(source, options, stack)
