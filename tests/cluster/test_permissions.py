"""Who may see what in a cluster: callers at the root, the root at its leaves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest

import scannery
from scannery.serving import LeavesConfig, SecurityConfig, Server, ServerConfig
from scannery.serving.process import server
from scannery.serving.security.api_keys import KeyFile
from scannery.v1.leaf_pb2 import At, LeafCountRequest, LeafRowsRequest, LeafStatusRequest
from scannery.v1.leaf_pb2_grpc import LeafServiceStub
from tests.cluster.processes import wait_until
from tests.cluster.servers import CHECK_EVERY_S, leaf_server
from tests.served import make_library_store

GROUPS = 2


class Guarded:
    """A cluster whose root and leaves ask for keys."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.store = make_library_store(folder)
        callers, own = KeyFile(folder / "callers.json"), KeyFile(folder / "leaves.json")
        self.callers = callers
        self.reader = callers.create("reader", scopes=["read"])[1]
        self.narrow = callers.create("narrow", scopes=["read"], indexes=["flat"])[1]
        self.writer = callers.create("writer", scopes=["write"])[1]
        self.own = own
        self.key_file = folder / "root.key"
        self.key_file.write_text(own.create("root", scopes=["read"])[1])
        self.narrow_at_leaves = own.create("narrow", scopes=["read"], indexes=["flat"])[1]
        security = SecurityConfig(keys_file=str(folder / "leaves.json"))
        self.leaves = [
            stack.enter_context(leaf_server(self.store, group, GROUPS, security=security))
            for group in range(GROUPS)
        ]
        self.root = stack.enter_context(self.new_root(key_file=str(self.key_file)))

    @property
    def target(self) -> str:
        """The addresses of the leaves."""
        return ",".join(leaf.address for leaf in self.leaves)

    def new_root(self, **leaves: str) -> Server:
        """Return a root, not yet started."""
        return Server(
            ServerConfig(
                store=str(self.store), listen="127.0.0.1:0", role="root",
                leaves=LeavesConfig(target=self.target, **leaves),
                security=SecurityConfig(keys_file=str(self.callers.path)), check_every_s=CHECK_EVERY_S,
            )
        )  # fmt: skip

    def client(self, key: str) -> scannery.Client:
        """Return a client of the root."""
        return scannery.connect(self.root.address, api_key=key)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with ExitStack() as stack:
        yield Guarded(tmp_path_factory.mktemp("guarded"), stack)


@pytest.mark.system
def test_a_key_of_one_index_sees_no_other(guarded: Guarded) -> None:
    with guarded.client(guarded.reader) as client:
        library = client.index("library")
        assert library.count() == 600
        running = library.scan(page_size=5)
        next(running)
        vector = [1.0] * 16
        assert len(library.search(vector, k=3)) == 3
    with guarded.client(guarded.narrow) as client:
        assert [info.name for info in client.indexes()] == ["flat"]
        assert client.index("flat").count() == 50
        hidden = client.index("library")
        for ask in (
            lambda: hidden.search(vector, k=3),
            lambda: hidden.search_many([vector], k=3),
            lambda: hidden.get(["d1"]),
            hidden.count,
            lambda: hidden.facets("show"),
            lambda: next(hidden.scan(token=running.token)),
        ):
            with pytest.raises(scannery.NotFoundError):
                ask()


def test_a_key_without_the_scope_reads_nothing(guarded: Guarded) -> None:
    with guarded.client(guarded.writer) as client, pytest.raises(scannery.PermissionDeniedError):
        client.index("library").count()


def test_a_root_has_no_methods_of_leaves(guarded: Guarded) -> None:
    with grpc.insecure_channel(guarded.root.address) as channel:
        metadata = (("authorization", f"Bearer {guarded.reader}"),)
        with pytest.raises(grpc.RpcError) as caught:
            LeafServiceStub(channel).GetStatus(LeafStatusRequest(), metadata=metadata, timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_a_key_of_one_index_sees_no_other_at_a_leaf(guarded: Guarded) -> None:
    with grpc.insecure_channel(guarded.leaves[0].address) as channel:
        leaf, narrow = (LeafServiceStub(channel), (("authorization", f"Bearer {guarded.narrow_at_leaves}"),))
        status = leaf.GetStatus(LeafStatusRequest(), metadata=narrow, timeout=10)
        assert [index.at.index for index in status.indexes] == ["flat"]
        with pytest.raises(grpc.RpcError) as caught:
            leaf.Count(LeafCountRequest(at=At(index="library", version=1)), metadata=narrow, timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        with pytest.raises(grpc.RpcError) as caught:
            leaf.GetStatus(LeafStatusRequest(), timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_a_root_takes_its_new_key_when_the_old_one_is_revoked(guarded: Guarded) -> None:
    new = guarded.own.create("root2", scopes=["read"])[1]
    guarded.key_file.write_text(new)
    guarded.own.revoke("root")
    with guarded.client(guarded.reader) as client:
        for _ in range(20):
            assert client.index("library").count() == 600


@pytest.mark.system
def test_a_root_without_a_key_says_that_its_leaves_refuse_it(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "LEAVES_WITHIN_S", 0.5)
    with ExitStack() as stack:
        root = stack.enter_context(guarded.new_root())
        client = stack.enter_context(scannery.connect(root.address, api_key=guarded.reader))
        with pytest.raises(scannery.UnavailableError, match=r"leaf|leaves"):
            client.index("library").count(timeout_s=2)


def test_writes_at_a_root_need_the_scope_and_the_index(guarded: Guarded) -> None:
    """A write reads rows on leaves with the key of the root: that must not widen what a caller may do."""
    other = guarded.callers.create("other", scopes=["read", "write"], indexes=["flat"])[1]
    check_no_writes(guarded, guarded.reader, scannery.PermissionDeniedError)
    check_no_writes(guarded, other, scannery.NotFoundError)
    with guarded.client(guarded.reader) as client:
        assert client.index("library").count() == 600


def check_no_writes(guarded: Guarded, key: str, expected: Any) -> None:
    old = {"year": {"$lt": 2010}}
    with guarded.client(key) as client:
        wait_until(lambda: is_known(client))
        library = client.index("library")
        for write in (
            lambda: library.delete(["d1"]),
            lambda: library.delete(where=old),
            lambda: library.delete(where=old, dry_run=True),
            lambda: library.update(where=old, attributes={"year": 1}),
        ):
            with pytest.raises(expected):
                write()


def test_rows_for_writes_need_the_index_at_a_leaf(guarded: Guarded) -> None:
    with grpc.insecure_channel(guarded.leaves[0].address) as channel:
        narrow = (("authorization", f"Bearer {guarded.narrow_at_leaves}"),)
        request = LeafRowsRequest(at=At(index="library", version=1), ids=["d1"], whole=True)
        with pytest.raises(grpc.RpcError) as caught:
            LeafServiceStub(channel).ReadRows(request, metadata=narrow, timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def is_known(client: scannery.Client) -> bool:
    """Return whether the root has read the key: it looks at the file every two seconds."""
    try:
        client.indexes()
    except scannery.UnauthenticatedError:
        return False
    return True
