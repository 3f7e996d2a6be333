"""How many rows callers may have in an index: alone and together, over each wire, on a server and in a cluster."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

import scannery
from scannery.indexer import Store
from scannery.live.maintenance.seal import seal
from scannery.serving import LeavesConfig, SecurityConfig, Server, ServerConfig
from scannery.serving.security import KeyFile
from scannery.serving.security.limits import parse_items
from scannery.v1 import index_pb2, index_pb2_grpc
from scannery.v1.types_pb2 import Datapoint, Vector
from tests.cluster.servers import CHECK_EVERY_S, leaf_server

pytestmark = pytest.mark.system

FULL = r"limit max_rows of this caller allows {} rows of index 'shop': it has {}, and would have {} after this write"


def row(name: str, tenant: str | None = None, year: int = 2020) -> dict[str, Any]:
    attributes = {"year": year} if tenant is None else {"year": year, "tenant": tenant}
    return {"id": name, "vector": [1, year, 0, len(name)], "attributes": attributes}


def rows(tenant: str, *numbers: int) -> Any:
    return [row(f"{tenant}{number}", tenant) for number in numbers]


@dataclass
class Shop:
    """An index of two tenants, and keys for it."""

    store: Path
    keys: KeyFile
    servers: list[Server] = field(default_factory=list)
    stack: ExitStack = field(default_factory=ExitStack)

    def key(self, *limits: str, tenant: str | None = None) -> str:
        """Return a new key."""
        where = {} if tenant is None else {"where": {"tenant": tenant}}
        access = [{"index": "*", **where}] if where else ()
        return self.keys.create(
            "k", scopes=["read", "write"], access=access,
            limits=parse_items(limits) if limits else None,
        )[1]  # fmt: skip

    def index(self, key: str, *, number: int = 0, wire: str = "gRPC") -> Any:
        """Return the index as the holder of a key has it, at one of the servers."""
        server = self.servers[number]
        target = server.address if wire == "gRPC" else f"http://127.0.0.1:{server.http_port}"
        client = scannery.connect(target, api_key=key, tls=False, timeout_s=60)
        return self.stack.enter_context(client).index("shop")


Start = Callable[..., None]


@contextmanager
def shop_of(folder: Path) -> Iterator[tuple[Shop, Start]]:
    """Give a shop, and what starts its servers once its keys are there."""
    shop = Shop(folder / "store", KeyFile(folder / "keys.json"))
    with scannery.connect(shop.store, create=True) as client:
        index = client.create_index("shop", dimensions=4, attributes={"tenant": "string", "year": "int"})
        index.upsert([*rows("a", 0, 1, 2), *rows("b", *range(20))])
    assert seal(Store.open(shop.store), "shop") is not None  # some are in a segment, others in memory
    with shop.stack as stack:

        def start(*, groups: int = 0, servers: int = 1, limits: tuple[str, ...] = ()) -> None:
            leaves = [stack.enter_context(leaf_server(shop.store, each, groups)) for each in range(groups)]
            options: dict[str, Any] = {}
            if groups:
                target = LeavesConfig(target=",".join(leaf.address for leaf in leaves))
                options = {"role": "root", "leaves": target, "check_every_s": CHECK_EVERY_S}
            security = SecurityConfig(keys_file=str(shop.keys.path), limits=limits)
            config = ServerConfig(
                store=str(shop.store), listen="127.0.0.1:0", security=security, drain_s=5, **options
            )
            shop.servers = [stack.enter_context(Server(config)) for _ in range(servers)]

        yield shop, start


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[tuple[Shop, Start]]:
    with shop_of(tmp_path) as pair:
        yield pair


@pytest.mark.parametrize("groups", [0, 2], ids=["server", "cluster"])
@pytest.mark.parametrize("wire", ["gRPC", "HTTP"])
def test_writes_are_refused_that_would_add_rows_beyond_the_limit(
    shop: tuple[Shop, Start], groups: int, wire: str
) -> None:
    place, start = shop
    key, all_key = place.key("max_rows=6", tenant="a"), place.key("max_rows=30")
    start(groups=groups, limits=("max_rows=1",))
    mine, whole = place.index(key, wire=wire), place.index(all_key, wire=wire)
    mine.upsert(rows("a", 3, 4))
    with pytest.raises(scannery.ResourceExhaustedError, match=FULL.format(6, 5, 7)) as full:
        mine.upsert(rows("a", 5, 6))
    assert full.value.retry_after_s is None
    assert mine.count() == 5  # nothing was written
    mine.upsert(rows("a", 5))
    assert mine.upsert(rows("a", *range(6))).written == 6  # what is replaced adds nothing
    mine.update([{"id": "a0", "attributes": {"year": 7}}])
    mine.update(where={"year": 2020}, attributes={"year": 2021})
    with pytest.raises(scannery.ResourceExhaustedError, match=FULL.format(6, 6, 7)):
        mine.upsert(rows("a", 0, 6))
    mine.delete(["a0"])
    mine.upsert(rows("a", 6))
    # The other key counts all rows of the index.
    whole.upsert(rows("b", 20, 21, 22, 23))
    with pytest.raises(scannery.ResourceExhaustedError, match=FULL.format(30, 30, 31)):
        whole.upsert(rows("c", 0))
    whole.delete(where={"tenant": "b"})
    whole.upsert(rows("c", *range(24)))
    assert (mine.count(), whole.count()) == (6, 30)


def test_the_limit_of_the_server_holds_for_keys_without_any(shop: tuple[Shop, Start]) -> None:
    place, start = shop
    key, free, late = (
        place.key(tenant="a"),
        place.key("none", tenant="a"),
        place.key("max_rows=2", tenant="a"),
    )
    start(limits=("max_rows=4",))
    mine, more, less = (place.index(each) for each in (key, free, late))
    mine.upsert(rows("a", 3))
    with pytest.raises(scannery.ResourceExhaustedError, match=FULL.format(4, 4, 5)):
        mine.upsert(rows("a", 4))
    more.upsert(rows("a", 4, 5, 6))
    # Who has more rows than the limit may write, as long as there are no more of them.
    for index, limit in ((mine, 4), (less, 2)):
        index.upsert(rows("a", 6))
        with pytest.raises(scannery.ResourceExhaustedError, match=FULL.format(limit, 7, 8)):
            index.upsert(rows("a", 7))
    refusals = place.servers[0].metrics.limited.dump()
    assert sum(count for labels, count in refusals.items() if labels.endswith("max_rows")) == 3


def test_each_request_of_a_stream_is_checked(shop: tuple[Shop, Start]) -> None:
    place, start = shop
    metadata = (("authorization", f"Bearer {place.key('max_rows=5', tenant='a')}"),)
    start()
    requests = [
        index_pb2.UpsertRequest(
            index="shop",
            upserts=[
                index_pb2.Upsert(datapoint=Datapoint(id=f"s{number}", vector=Vector(values=[1, 0, 0, 1])))
            ],
        )
        for number in range(4)
    ]
    with grpc.insecure_channel(place.servers[0].address) as channel:
        stub, answers = index_pb2_grpc.IndexServiceStub(channel), []
        with pytest.raises(grpc.RpcError) as error:
            for answer in stub.UpsertStream(iter(requests), timeout=60, metadata=metadata):
                answers.append(answer)
    assert (len(answers), error.value.code()) == (2, grpc.StatusCode.RESOURCE_EXHAUSTED)


@pytest.mark.parametrize("groups", [0, 2], ids=["servers", "roots"])
@pytest.mark.parametrize("tenant", ["a", None])
def test_writers_of_several_servers_do_not_exceed_it_together(
    shop: tuple[Shop, Start], groups: int, tenant: str | None
) -> None:
    place, start = shop
    free = 40
    key = place.key(f"max_rows={free + (3 if tenant else 23)}", tenant=tenant)
    others = place.key("none", tenant="b" if tenant else None)
    start(groups=groups, servers=2)
    mine = [place.index(key, number=number % 2) for number in range(6)]
    noise = place.index(others, number=1)
    chosen = random.Random(3)

    def write(number: int) -> int:
        written = 0
        for attempt in range(20):
            names = [f"{number}-{attempt}-{each}" for each in range(chosen.choice([1, 1, 2]))]
            try:
                mine[number].upsert([row(name, tenant or "a") for name in names])
                written += len(names)
            except scannery.ResourceExhaustedError as error:
                assert "max_rows" in error.message or error.retry_after_s is not None
        return written

    def replace() -> None:
        for number in range(40):
            noise.upsert(rows("b", number % 20))

    with ThreadPoolExecutor(7) as pool:
        replaced = pool.submit(replace)
        written = sum(pool.map(write, range(6)))
        replaced.result()
    assert written == free
    mine[0].upsert(rows("a", 0))  # the state that it is resolved in has all of these
    assert mine[0].count() == free + (3 if tenant else 23)


def test_random_writes_are_refused_as_a_model_says(shop: tuple[Shop, Start]) -> None:
    place, start = shop
    key = place.key("max_rows=12", tenant="a")
    start()
    index, chosen, model = place.index(key), random.Random(5), {f"a{number}" for number in range(3)}
    refused = 0
    for _ in range(250):
        names = {f"a{chosen.randrange(30)}" for _ in range(chosen.choice([1, 2, 5, 9]))}
        if chosen.random() < 0.3:
            index.delete(sorted(names))
            model -= names
            continue
        after = model | names
        try:
            index.upsert([row(name, "a") for name in sorted(names)])
        except scannery.ResourceExhaustedError:
            assert len(after) > max(12, len(model))
            refused += 1
        else:
            assert len(after) <= max(12, len(model))
            model = after
        if chosen.random() < 0.05:
            seal(Store.open(place.store), "shop")
    assert {hit.id for hit in index.scan()} == model
    assert 20 < refused < 200
