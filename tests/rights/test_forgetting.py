"""A customer is forgotten: nothing of its rows is left in the files of a store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import scannery
from scannery.cli.main import app
from scannery.client import NewDatapoint
from scannery.indexer import LeaseHolder, Store, open_index
from scannery.indexer.traffic.day_files import write_rows
from scannery.indexer.traffic.keys import client_hash, usable_keys
from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery
from tests.indexer.traffic.test_day_files import event, query
from tests.served import serving

pytestmark = pytest.mark.system

MARK = "xenonium"
WHERE = '{"tenant": "acme"}'
KEY = "acme/4be1a0c2d3f5"


def point(tenant: str, number: int) -> NewDatapoint:
    random = np.random.default_rng(number)
    return {
        "id": f"{MARK if tenant == 'acme' else 'other'}-{number}",
        "text": f"{MARK if tenant == 'acme' else 'plain'} words {number}",
        "vector": random.normal(size=8).astype(np.float32),
        "attributes": {"tenant": tenant},
    }


def content(path: Path) -> bytes:
    data = path.read_bytes()
    if path.suffix == ".parquet":  # its columns are compressed
        data += json.dumps(pq.read_table(path).to_pydict(), default=str).encode()
    return data.lower()


def files_with_mark(store: Path, below: str = "") -> list[str]:
    files = [path for path in (store / below).rglob("*") if path.is_file()]
    return [str(path.relative_to(store)) for path in files if MARK.encode() in content(path)]


def invoked(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == code, done.output
    return done.output


def forgotten(store: Path, *words: str, index: str = "shop", code: int = 0) -> dict[str, Any]:
    options = ("--store", str(store), "--where", WHERE, "--wait", "0", "--yes", "--json")
    report: dict[str, Any] = json.loads(invoked("index", "forget", index, *options, *words, code=code))
    return report


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with rows of two customers in segments, as deleted ones, and in the log, and with logged queries."""
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "store"
    with scannery.connect(path, create=True) as client:
        shop = client.create_index("shop", dimensions=8, lexical=True, attributes={"tenant": "string"})
        shop.upsert([point(tenant, number) for number in range(50) for tenant in ("acme", "beta")])
    invoked("index", "seal", "shop", "--store", str(path))
    with scannery.connect(path) as client:
        client.index("shop").delete([f"{MARK}-49"])
    invoked("index", "seal", "shop", "--store", str(path))
    with scannery.connect(path) as client:
        client.index("shop").upsert([point("acme", 50)])  # in the log alone
    opened, now = Store.open(path), datetime.now(timezone.utc)
    asker = client_hash(usable_keys(opened)[1], KEY, now.date())
    rows: list[LoggedQuery | LoggedEvent] = [
        query(1, now, client_id=asker, user_query=f"{MARK}?", query_response_hit_ids=["other-1", "other-2"]),
        query(2, now, query_response_hit_ids=[f"{MARK}-3", "other-2"]),
        query(3, now, query_response_hit_ids=[f"{MARK}-50", f"{MARK}-49"]),
        event(2, now, object_id=f"{MARK}-3"),
        event(2, now, object_id="other-2"),
    ]
    write_rows(opened, "shop", rows, "a-0")
    return path


def check_others(store: Path, count: int = 50) -> None:
    invoked("index", "verify", "shop", "--store", str(store))
    with scannery.connect(store) as client:
        assert client.index("shop").count() == count
        assert client.index("shop").count(where={"tenant": "beta"}) == count


def test_no_file_has_what_was_forgotten(store: Path, tmp_path: Path) -> None:
    before = {str(path): path.read_bytes() for path in store.rglob("*.parquet")}
    dry = forgotten(store, "--dry-run", "--client", KEY)
    assert {str(path): path.read_bytes() for path in store.rglob("*.parquet")} == before
    counts = {each["name"]: each["rows"] for each in dry["locations"]}
    assert files_with_mark(tmp_path / "cache")
    assert counts == {"version 2": 50, "version 3": 50, "log": 2, "logged queries and feedback": 4}
    report = forgotten(store, "--client", KEY)
    assert (report["deleted"], report["complete"]) == (50, True)
    assert files_with_mark(store) == files_with_mark(tmp_path / "cache") == []
    check_others(store)
    assert forgotten(store)["locations"] == [], "a second run has nothing to do"


def test_a_branch_is_named_until_it_forgets_too(store: Path) -> None:
    invoked("index", "branch", "shop", "test", "--store", str(store))
    report = forgotten(store, "--client", KEY, code=1)
    (branch,) = [each for each in report["locations"] if each["remaining"]]
    assert (branch["name"], branch["remaining"]) == ("branch test", 51)
    assert {name.split("/")[0] for name in files_with_mark(store)} == {"test"}
    forgotten(store, index="test")
    assert files_with_mark(store) == []
    assert forgotten(store)["complete"]
    check_others(store)


def test_a_version_that_is_read_is_named_until_it_is_let_go(store: Path) -> None:
    leases = LeaseHolder(Store.open(store))
    leases.hold("shop", [2], log_after=0)
    report = forgotten(store, "--client", KEY, code=1)
    remaining = {each["name"]: each["remaining"] for each in report["locations"] if each["remaining"]}
    assert remaining == {"version 2": 50, "log": 52}
    leases.release()
    assert forgotten(store)["complete"]
    assert files_with_mark(store) == []
    check_others(store)


def test_a_segment_that_a_process_has_open_is_named(store: Path, tmp_path: Path) -> None:
    opened = open_index(Store.open(store), "shop", version=2)
    report = forgotten(store, "--client", KEY, code=1)
    remaining = {each["name"]: each["remaining"] for each in report["locations"] if each["remaining"]}
    assert remaining == {"segments in the cache of this machine": 1}
    assert files_with_mark(store) == []
    assert files_with_mark(tmp_path / "cache")
    del opened


def test_a_branch_that_lacks_the_attribute_is_named(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with scannery.connect(store, create=True) as client:
        shop = client.create_index("shop", dimensions=8)
        shop.upsert([{"id": "other", "vector": np.ones(8, np.float32)}])
        invoked("index", "seal", "shop", "--store", str(store))
    invoked("index", "branch", "shop", "test", "--store", str(store))
    with scannery.connect(store) as client:
        client.index("shop").alter(attributes={"tenant": "string"})
        client.index("shop").upsert(
            [{"id": f"{MARK}-1", "vector": np.ones(8, np.float32), "attributes": {"tenant": "acme"}}]
        )
    (branch,) = [each for each in forgotten(store, code=1)["locations"] if each["remaining"] != 0]
    assert (branch["name"], branch["remaining"]) == ("branch test", None)
    assert "tenant" in branch["advice"]
    assert files_with_mark(store) == []


def test_an_unrelated_index_is_named_if_the_filter_allows_rows_of_it(store: Path) -> None:
    with scannery.connect(store) as client:
        client.create_index("wiki", dimensions=8, attributes={"page": "string"}).upsert(
            [{"id": "a", "vector": np.ones(8, np.float32)}]
        )
        client.create_index("more", dimensions=8, attributes={"tenant": "string"}).upsert(
            [{"id": "a", "vector": np.ones(8, np.float32), "attributes": {"tenant": "acme"}}]
        )
    output = invoked(
        "index", "forget", "shop", "--store", str(store), "--where", WHERE, "--wait", "0", "--yes", code=1
    )
    assert "index more: 1 rows, 1 remain (forget there too" in output
    assert "wiki" not in output
    assert output.endswith("Not done: such rows remain. Follow the advice above, and run this again.\n")


def test_a_server_and_writers_go_on(store: Path) -> None:
    ended = threading.Event()
    with serving(store) as server, scannery.connect(server.address) as client:
        shop, count = client.index("shop"), 0
        assert shop.search("words", k=5, mode="lexical")

        def write() -> None:
            nonlocal count
            while not ended.wait(0.02):
                shop.upsert([point("beta", 100 + count)])
                count += 1

        writer = threading.Thread(target=write)
        writer.start()
        try:
            report = forgotten(store, "--wait", "20", "--client", KEY)
        finally:
            ended.set()
            writer.join()
        assert report["complete"]
        assert count
        assert files_with_mark(store) == []
        assert shop.count() == 50 + count
        later = shop.upsert([point("acme", 99)])
        assert later.sequence
        assert shop.get([f"{MARK}-99"])[0] is not None


KILLED = """
import os, signal, sys
from scannery.live.maintenance import forget
step = sys.argv[1]  # it is killed before it
whole = getattr(forget, step)
def killed(*arguments, **options):
    if options.get("dry_run"):
        return whole(*arguments, **options)
    os.kill(os.getpid(), signal.SIGKILL)
setattr(forget, step, killed)
from scannery.cli.main import main
main(sys.argv[2:])
"""


@pytest.mark.parametrize("step", ["seal", "_forget_queries", "merge", "collect_garbage", "shorten_log"])
def test_a_run_that_was_killed_is_run_again(store: Path, step: str) -> None:
    words = ["index", "forget", "shop", "--store", str(store), "--where", WHERE, "--client", KEY, "--yes"]
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, step, *words, "--wait", "0"], check=False, timeout=120,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert killed.returncode == -9
    forgotten(store, "--client", KEY)
    assert files_with_mark(store) == []
    check_others(store)


def test_embeddings_that_builds_keep_are_forgotten(tmp_path: Path) -> None:
    points = [point(tenant, number) for number in range(20) for tenant in ("acme", "beta")]
    lines = [
        {"id": each["id"], "text": each["text"], "vector": each["vector"].tolist(), **each["attributes"]}
        for each in points
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (tmp_path / "spec.yaml").write_text(
        "index: shop\nsource: {id: id, text: text, vector: vector}\nattributes: {tenant: string}\n"
    )
    store = tmp_path / "store"
    invoked(
        "build", str(tmp_path / "spec.yaml"), "--store", str(store), "--input", str(tmp_path / "rows.jsonl")
    )
    assert list((store / "shop").glob("embeddings/*"))
    report = forgotten(store)
    assert {each["name"]: each["rows"] for each in report["locations"]} == {
        "version 1": 20,
        "embeddings of builds": 20,
    }
    assert not list((store / "shop").glob("embeddings/*")), "each has rows of both"
    assert files_with_mark(store) == []
    check_others(store, 20)


def test_a_filter_must_be_of_a_part(store: Path) -> None:
    def refused(where: str) -> str:
        done = CliRunner().invoke(
            app, ["index", "forget", "shop", "--store", str(store), "--where", where, "--yes"]
        )
        assert done.exit_code != 0
        return str(done.output) + str(done.exception)

    files = sorted(store.rglob("*.parquet"))
    assert "must have a condition" in refused("{}")
    assert "tenent" in refused('{"tenent": "acme"}')
    assert "allows all" in refused('{"id": {"$exists": true}}')
    assert "not valid JSON" in refused("{")
    assert sorted(store.rglob("*.parquet")) == files


def test_deleted_rows_of_before_an_attribute_was_declared_are_forgotten(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with scannery.connect(store, create=True) as client:
        shop = client.create_index("shop", dimensions=8, lexical=True, dynamic=True)
        shop.upsert([point("beta", number) | {"attributes": {}} for number in range(40)])
        shop.upsert([point("acme", number) for number in range(2)])
    invoked("index", "seal", "shop", "--store", str(store))
    with scannery.connect(store) as client:
        shop = client.index("shop")
        shop.delete(where={"tenant": "acme"})
        shop.alter(attributes={"tenant": "string"})
        shop.upsert([point("acme", 2)])
    report = forgotten(store)
    assert (report["deleted"], report["complete"]) == (1, True)
    assert files_with_mark(store) == []
    with scannery.connect(store) as client:
        assert client.index("shop").count() == 40
