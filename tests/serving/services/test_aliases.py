"""Aliases: names that move from one index to another for all calls at once."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.indexer import AlreadyExistsError, Store, change_aliases
from scannery.pipelines import build
from scannery.serving import SecurityConfig
from scannery.serving.security.api_keys import KeyFile
from tests.object_server import object_server
from tests.served import PAUSE_S, WIRES, connected, serving

pytestmark = pytest.mark.system

VECTOR = np.ones(4, np.float32)


def filled(client: scannery.Client, name: str, rows: int) -> scannery.Index:
    """Create an index with rows whose ids begin with its name."""
    index = client.create_index(name, dimensions=4)
    index.upsert([{"id": f"{name}-{i}", "vector": VECTOR * (i + 1)} for i in range(rows)])
    return index


@pytest.fixture(params=WIRES)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[scannery.Client]:
    with connected(tmp_path / "store", request.param) as client:
        filled(client, "blue", 3)
        filled(client, "green", 4)
        yield client


def test_an_alias_works_where_a_name_does_and_is_moved(client: scannery.Client) -> None:
    assert client.aliases() == {}
    assert client.alias("live", "blue") is None
    index = client.index("live")
    assert index.stats().name == "blue"
    assert index.stats().aliases == ("live",)
    assert [hit.id for hit in index.search(VECTOR)] == ["blue-0", "blue-1", "blue-2"]
    assert [len(hits) for hits in index.search_many([VECTOR, VECTOR])] == [3, 3]
    assert index.get(["blue-1"])[0] is not None
    assert index.upsert([{"id": "more", "vector": VECTOR}]).written == 1
    assert index.update([{"id": "more", "title": "t"}]).written == 1
    assert client.index("blue").get(["more"])[0] is not None
    assert index.delete(["more"]).deleted == 1
    assert index.alter(attributes={"year": "int"}).name == "blue"
    assert client.alias("live", "green") == "blue"
    assert [hit.id for hit in index.search(VECTOR)] == ["green-0", "green-1", "green-2", "green-3"]
    assert index.stats().name == "green"
    client.alias("other", "green")
    assert client.aliases() == {"live": "green", "other": "green"}
    assert {info.name: info.aliases for info in client.indexes()} == {"blue": (), "green": ("live", "other")}
    assert client.delete_alias("live") is True
    assert client.delete_alias("live", missing_ok=True) is False
    with pytest.raises(scannery.NotFoundError):
        index.search(VECTOR)
    with pytest.raises(scannery.NotFoundError) as caught:
        client.delete_alias("live")
    assert caught.value.field == "alias"


def test_a_scan_goes_on_with_its_index_when_the_alias_is_moved(client: scannery.Client) -> None:
    client.alias("live", "blue")
    want = [point.id for point in client.index("blue").scan()]
    running = client.index("live").scan(page_size=1)
    first = next(running)
    client.alias("live", "green")
    assert running.index == "blue"
    assert [first.id, *(point.id for point in running)] == want
    assert len(list(client.index("live").scan(page_size=1))) == 4


@pytest.mark.parametrize("what", ["delete", "update"])
def test_batches_by_filter_stay_with_their_index_when_the_alias_is_moved(
    client: scannery.Client, what: str
) -> None:
    client.alias("live", "blue")
    green = client.index("green").count()
    client.index("blue").upsert([{"id": f"x{i}", "vector": VECTOR} for i in range(5)])
    total = client.index("blue").count()
    moved: list[int] = []

    def move(done: int) -> None:
        if not moved:
            moved.append(done)
            client.alias("live", "green")

    everything: dict[str, Any] = {"id": {"$ne": "-"}}
    if what == "delete":
        assert client.index("live").delete(where=everything, batch_size=2, progress=move).deleted == total
        assert (client.index("blue").count(), client.index("live").count()) == (0, green)
    else:
        client.index("blue").alter(attributes={"n": "int"})
        client.index("green").alter(attributes={"n": "int"})
        changed = client.index("live").update(where={}, attributes={"n": 1}, batch_size=2, progress=move)
        assert changed.written == total
        assert client.index("green").count({"n": 1}) == 0


def test_a_remembered_sequence_is_not_asked_of_another_index(client: scannery.Client) -> None:
    client.alias("live", "blue")
    index = client.index("live")
    for _ in range(5):
        index.upsert([{"id": "x", "vector": VECTOR}])
    client.alias("live", "green")
    assert len(index.search(VECTOR, 10)) == 4  # green has fewer mutations than this client wrote to blue
    client.alias("live", "blue")
    for _ in range(5):
        index.upsert([{"id": "x", "vector": VECTOR}])
    client.alias("live", "green")
    written = index.upsert([{"id": "mine", "vector": VECTOR}])
    assert written.sequence == 2
    assert "mine" in {hit.id for hit in index.search(VECTOR, 10)}
    # A sequence of the caller's own stays an error.
    with pytest.raises(scannery.InvalidArgumentError, match="mutations up to 2, got 99"):
        index.search(VECTOR, min_sequence=99)


@pytest.mark.parametrize(
    ("alias", "index", "error", "field"),
    [
        ("Live", "blue", scannery.InvalidArgumentError, "alias"),
        ("../x", "blue", scannery.InvalidArgumentError, "alias"),
        ("", "blue", scannery.InvalidArgumentError, "alias"),
        (3, "blue", scannery.InvalidArgumentError, "alias"),
        ("live", "nobody", scannery.NotFoundError, "index"),
        ("live", "", scannery.NotFoundError, "index"),
        ("live", "../x", scannery.NotFoundError, "index"),
        ("live", "known", scannery.InvalidArgumentError, "index"),  # an alias of an alias
        ("known", "known", scannery.InvalidArgumentError, "index"),  # a circle
        ("green", "blue", scannery.AlreadyExistsError, "alias"),
    ],
)
def test_what_is_wrong_is_named(
    client: scannery.Client, alias: str, index: str, error: type[scannery.ScanneryError], field: str
) -> None:
    client.alias("known", "blue")
    with pytest.raises(error) as caught:
        client.alias(alias, index)
    assert caught.value.field == field
    assert client.aliases() == {"known": "blue"}


def test_no_index_gets_the_name_of_an_alias(client: scannery.Client, tmp_path: Path) -> None:
    client.alias("live", "blue")
    for if_exists in ("error", "keep"):
        with pytest.raises(scannery.AlreadyExistsError, match="is an alias") as caught:
            client.create_index("live", dimensions=4, if_exists=if_exists)
        assert caught.value.field == "index"
    file = tmp_path / "data.jsonl"
    file.write_text('{"id": 1, "v": [1, 2, 3, 4]}\n')
    with pytest.raises(AlreadyExistsError, match="is an alias"):
        build({"index": "live", "source": {"vector": "v"}}, [str(file)], str(tmp_path / "store"))


def test_every_call_sees_one_index_or_the_other_while_it_moves(tmp_path: Path) -> None:
    wrong: list[object] = []
    with connected(tmp_path / "store", "gRPC") as client:
        filled(client, "blue", 3)
        filled(client, "green", 4)
        client.alias("live", "blue")
        done = threading.Event()

        def ask() -> None:
            while not done.wait(PAUSE_S):
                try:
                    found = client.index("live").search_many([VECTOR] * 3)
                    names = {hit.id.partition("-")[0] for hits in found for hit in hits}
                    if len(names) != 1 or len({len(hits) for hits in found}) != 1:
                        wrong.append(found)
                except Exception as error:  # noqa: BLE001
                    wrong.append(error)

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(30):
            client.alias("live", "green")
            client.alias("live", "blue")
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_another_server_follows_within_a_second(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store.open(path, create=True)
    with (
        serving(path, check_every_s=600) as one,
        serving(path, check_every_s=600) as other,
        scannery.connect(one.address) as first,
        scannery.connect(other.address) as second,
    ):
        filled(first, "blue", 3)
        filled(first, "green", 4)
        first.alias("live", "blue")
        # A name that it does not know is looked for at once.
        assert second.index("live").stats().name == "blue"
        first.alias("live", "green")
        moved_s = time.monotonic()
        while second.index("live").stats().name != "green":
            assert time.monotonic() - moved_s < 15
            time.sleep(0.01)


def test_an_alias_tells_nothing_of_an_index_that_the_caller_may_not_see(tmp_path: Path) -> None:
    path, keys = tmp_path / "store", tmp_path / "keys.json"
    Store.open(path, create=True)
    with scannery.connect(path) as client:
        filled(client, "secret", 2)
        filled(client, "mine", 3)
        client.alias("hidden", "secret")
        client.alias("open", "mine")
    _, narrow = KeyFile(keys).create(
        "narrow", scopes=["read", "write", "admin"], indexes=["mine", "hidden", "x"]
    )
    _, reader = KeyFile(keys).create("reader", scopes=["read"])
    with serving(path, security=SecurityConfig(keys_file=str(keys))) as server:
        for target in (server.address, f"http://127.0.0.1:{server.http_port}"):
            with scannery.connect(target, api_key=narrow, http=target != server.address) as client:
                assert client.aliases() == {"open": "mine"}
                # Permission is by the name of the index: it was given for neither alias, and holds for one.
                assert len(client.index("open").search(VECTOR)) == 3
                for name in ("hidden", "secret", "ghost"):
                    with pytest.raises(scannery.NotFoundError) as caught:
                        client.index(name).search(VECTOR)
                    assert f"there is no index '{name}'" in caught.value.message
                    assert "secret" not in caught.value.message.replace(f"'{name}'", "")
                with pytest.raises(scannery.NotFoundError):
                    client.delete_alias("hidden")
                with pytest.raises(scannery.PermissionDeniedError):
                    client.alias("hidden", "mine")
                with pytest.raises(scannery.NotFoundError):
                    client.alias("x", "secret")
                with pytest.raises(scannery.PermissionDeniedError):
                    client.alias("y", "mine")
                assert client.alias("x", "mine") is None
                assert client.delete_alias("x")
        with scannery.connect(server.address, api_key=reader) as client:
            assert client.aliases() == {"hidden": "secret", "open": "mine"}
            with pytest.raises(scannery.PermissionDeniedError):
                client.alias("y", "mine")


def test_aliases_in_a_bucket_lose_no_concurrent_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def contend(uri: str) -> None:
        def add(name: str) -> None:
            store = Store.open(uri)
            for number in range(5):
                change_aliases(store, lambda known, key=f"{name}{number}": {**known, key: "blue"})  # type: ignore[misc]

        threads = [threading.Thread(target=add, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(change_aliases(Store.open(uri), lambda known: {})) == 20

    Store.open(tmp_path / "folder", create=True)
    contend(str(tmp_path / "folder"))
    with object_server(monkeypatch):
        contend("s3://bucket/store")


async def test_the_asynchronous_client_has_aliases_too(tmp_path: Path) -> None:
    path = tmp_path / "store"
    Store.open(path, create=True)
    with serving(path) as server:
        async with scannery.aio.connect(server.address) as client:
            await client.create_index("blue", dimensions=4)
            assert await client.alias("live", "blue") is None
            assert await client.aliases() == {"live": "blue"}
            assert (await client.index("live").stats()).name == "blue"
            assert await client.delete_alias("live")
            assert await client.drop_index("blue")
