"""`scannery cluster status`: what the leaves of a cluster have."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import Store
from scannery.live.maintenance.seal import seal
from scannery.serving import SecurityConfig
from scannery.serving.leaves.watch import Watch
from scannery.serving.security import KeyFile
from tests.cluster.questions import DIMENSIONS, INDEX, ROWS, SHARDS, make_store
from tests.cluster.servers import leaf_server, root_server
from tests.serving.leaves.leaf_server import ScriptedLeaf, state

COMMAND = ["cluster", "status", "--leaves"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_store(tmp_path_factory.mktemp("status"))


def status(capsys: pytest.CaptureFixture[str], target: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Return the exit code, and what is printed with --json."""
    code = main([*COMMAND, target, "--json", *arguments])
    return code, json.loads(capsys.readouterr().out)


@pytest.mark.system
def test_a_cluster_is_shown_with_its_groups_and_indexes(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        leaves = [stack.enter_context(leaf_server(store, group, 2)) for group in (0, 1, 1)]
        target = ",".join(leaf.address for leaf in leaves)
        code, found = status(capsys, target)
        assert (code, found["ready"], found["groups"], found["problems"]) == (0, True, 2, [])
        assert sorted(leaf["group"] for leaf in found["leaves"]) == [0, 1, 1]
        assert {leaf["address"] for leaf in found["leaves"]} == {leaf.address for leaf in leaves}
        assert all(leaf["ready"] and leaf["in_flight_limit"] > 0 for leaf in found["leaves"])
        [index] = found["indexes"]
        assert (index["name"], index["rows"], index["shards"]) == (INDEX, ROWS, SHARDS)
        assert index["versions"] == {"0": [1], "1": [1]}
        assert (index["sequence"], index["lag"]) == (0, 0)
        assert main([*COMMAND, target]) == 0
        printed = capsys.readouterr().out
        assert all(text in printed for text in (leaves[0].address, "1/2", INDEX, f"{ROWS:,}"))


@pytest.mark.system
def test_a_group_without_a_leaf_is_an_exit_code(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with leaf_server(store, 0, 2) as leaf:
        code, found = status(capsys, f"{leaf.address},127.0.0.1:1", "--timeout", "1")
        assert (code, found["ready"]) == (1, False)
        assert "group 1/2 has no leaf that is ready" in found["problems"]
        assert any("127.0.0.1:1" in problem for problem in found["problems"])
        assert main([*COMMAND, leaf.address, "--timeout", "1"]) == 1
        assert "group 1/2 has no leaf that is ready" in capsys.readouterr().out
    assert main([*COMMAND, "127.0.0.1:1", "--timeout", "0.5"]) == 1


@pytest.mark.system
def test_leaves_that_disagree_are_named(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = tmp_path / "store"
    shutil.copytree(store, newer)
    with scannery.connect(newer) as client:
        client.index(INDEX).delete(["d1"])
    seal(Store.open(newer), INDEX)
    with (
        leaf_server(store, 0, 2) as one,
        leaf_server(newer, 1, 2) as other,
        leaf_server(store, 0, 3) as third,
    ):
        code, found = status(capsys, ",".join([one.address, other.address, third.address]))
        assert (code, found["groups"]) == (0, 2)
        version = found["indexes"][0]["versions"]["1"][0]
        assert version > 1
        assert (
            f"index {INDEX}: leaves have different versions: group 0: 1; group 1: {version}"
            in found["problems"]
        )
        assert any(f"{third.address} has group 0/3; there are 2 groups" in each for each in found["problems"])


@pytest.mark.system
def test_a_leaf_without_the_log_of_the_roots_is_named(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = tmp_path / "store"
    shutil.copytree(store, own)
    log = str(tmp_path / "log")
    with leaf_server(own, 0, 2, log=log) as one, leaf_server(own, 1, 2) as other:
        target = f"{one.address},{other.address}"
        with root_server(own, target, log=log) as root, scannery.connect(root.address) as client:
            index = client.index(INDEX)
            for number in range(3):
                index.upsert(
                    [{"id": f"new{number}-{each}", "vector": [0.5] * DIMENSIONS} for each in range(8)]
                )
            with pytest.raises(
                scannery.UnavailableError, match="start this leaf with the --log of the roots"
            ):
                index.count({"show": "gotime"}, timeout_s=8)
        code, found = status(capsys, target)
        assert code == 0
        [told] = found["indexes"]
        assert (told["sequence"], told["lag"]) == (3, 3)
        [problem] = found["problems"]
        assert problem.startswith(f"leaf {other.address}: index {INDEX}: a root asked for mutation 3")
        problems = {leaf["address"]: leaf["indexes"][0]["problem"] for leaf in found["leaves"]}
        assert (problems[one.address], bool(problems[other.address])) == ("", True)


@pytest.mark.system
def test_the_key_of_the_leaves_is_sent(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keys, own = tmp_path / "keys.json", tmp_path / "key"
    own.write_text(KeyFile(str(keys)).create("roots", scopes=["read"])[1])
    with leaf_server(store, 0, 1, security=SecurityConfig(keys_file=str(keys))) as leaf:
        assert status(capsys, leaf.address, "--timeout", "1")[0] == 1
        code, found = status(capsys, leaf.address, "--leaves-key", str(own))
        assert (code, found["indexes"][0]["rows"]) == (0, ROWS)


def test_a_wrong_target_is_a_wrong_argument(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "nonsense"]) == 2
    assert "leaves" in capsys.readouterr().err


@pytest.mark.system
def test_a_leaf_without_an_index_of_its_group_is_named(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(store, copy)
    (copy / INDEX).rename(copy / "another")
    with leaf_server(store, 0, 1) as leaf, leaf_server(copy, 0, 1) as other:
        code, found = status(capsys, f"{leaf.address},{other.address}")
        assert code == 0
        assert f"leaf {other.address}: index {INDEX} is not open, and others of its group have it" in str(
            found["problems"]
        )


def test_names_that_a_leaf_tells_are_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    leaf = ScriptedLeaf()
    leaf.states = [state(index="[red]a[/red]\x1b[2Jb\nc")]
    try:
        assert main([*COMMAND, leaf.address]) == 0
    finally:
        leaf.stop()
    printed = capsys.readouterr().out
    assert "[red]a[/red]" in printed
    assert "\x1b[2J" not in printed


@pytest.mark.system
def test_what_leaves_have_just_told_counts(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    renew = Watch.renew

    def renew_later(watch: Watch) -> None:
        if all(leaf.state for leaf in watch._leaves.values()):
            time.sleep(0.2)
        renew(watch)

    # On a busy machine the thread of the loop may pause between an answer and the view that follows from it.
    monkeypatch.setattr(Watch, "renew", renew_later)
    with leaf_server(store, 0, 1) as leaf, leaf_server(store, 0, 3) as other:
        for _ in range(6):  # either may answer last
            code, found = status(capsys, f"{leaf.address},{other.address}", "--timeout", "10")
            assert (code, found["groups"]) == (0, 1)
            assert f"leaf {other.address} has group 0/3; there are 1 groups" in found["problems"]
