"""Commands that are wrong, killed, repeated, or given at the same time. Ray's head has no processors, as is usual."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from tests.bridges.ray.on_ray import NODE, OnRay, ask, ended, live_placements, running_ray
from tests.cluster.processes import Traffic, wait_until


@pytest.fixture(scope="module")
def on_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnRay]:
    with running_ray(tmp_path_factory.mktemp("ray"), [{**NODE, "num_cpus": 0}, NODE, NODE]) as running:
        yield running


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--leaf-options", "--keys 'a"], "No closing quotation"),
        (["--leaf-cpus", "0"], "--leaf-cpus"),
        (["--ray", ""], "must be an address"),
    ],
)
def test_wrong_options_are_told(on_ray: OnRay, arguments: list[str], told: str) -> None:
    assert told in on_ray.up(1, 1, *arguments, code=2)
    assert ray.util.list_named_actors() == []


def test_a_cluster_that_is_not_there(on_ray: OnRay) -> None:
    assert "no cluster" in on_ray.run("status", code=4)
    assert on_ray.run("down") == ""


def test_a_ray_that_is_not_there(on_ray: OnRay) -> None:
    began_s = time.monotonic()
    assert "does not answer" in on_ray.up(1, 1, "--ray", "127.0.0.1:1", code=4)
    assert time.monotonic() - began_s < 60


def test_nodes_without_processors_do_not_count(on_ray: OnRay) -> None:
    # Three nodes, but only two have places.
    on_ray.up(1, 3, "--timeout", "60")
    assert len({each["node"] for each in on_ray.serving().values()}) == 2
    on_ray.run("down")


def test_a_shape_that_does_not_fit_leaves_the_old_one_and_is_taken_back(on_ray: OnRay) -> None:
    on_ray.up(1, 2)
    address = on_ray.serving()["root-row-0"]["address"]
    with Traffic(address, ask, rate=10) as traffic:
        assert "Ray goes on trying" in on_ray.up(1, 18, "--timeout", "8", code=4)
        began_s = time.monotonic()
        on_ray.up(1, 2)
        assert time.monotonic() - began_s < 50, "what has not started is not waited for"
    assert traffic.failures == []
    assert sorted(on_ray.serving()) == ["leaf-0-of-1-row-0", "leaf-0-of-1-row-1", "root-row-0"]
    assert len(live_placements()) == 2


def test_a_removal_that_was_killed_can_be_taken_back(on_ray: OnRay) -> None:
    on_ray.up(1, 2)
    removing = on_ray.started(*on_ray.shape(1, 1))
    wait_until(lambda: any(state.retired for state in on_ray.states().values()))
    removing.kill()
    removing.communicate()
    on_ray.up(1, 2)
    states = on_ray.states()
    assert not any(state.retired for state in states.values())
    leaves = {state.address for name, state in states.items() if name != "root-row-0"}
    wait_until(lambda: set(on_ray.states()["root-row-0"].leaves) == leaves)
    assert len(leaves) == 2


def test_a_root_follows_the_leaves_after_its_file_was_removed(on_ray: OnRay) -> None:
    on_ray.up(1, 1)
    for folder in Path("/tmp").glob("scannery-leaves-*"):
        if (folder / "leaves").read_text().split() == list(on_ray.states()["root-row-0"].leaves):
            shutil.rmtree(folder)  # as cleaners do with what is old
    on_ray.up(1, 2)
    leaves = [state for name, state in on_ray.states().items() if name.startswith("leaf")]
    wait_until(lambda: len(on_ray.states()["root-row-0"].leaves) == len(leaves) == 2)


def test_of_two_commands_at_once_one_is_refused(on_ray: OnRay) -> None:
    on_ray.up(1, 1)
    both = [on_ray.started(*on_ray.shape(1, rows)) for rows in (2, 3)]
    codes = []
    for process in both:
        _, errors = process.communicate(timeout=120)
        codes.append(process.returncode)
        assert process.returncode == 0 or "another command changes" in errors
    # Either they met, or the second began when the first had ended.
    assert 0 in codes
    rows = 2 if codes[0] == 0 and codes[1] == 4 else 3
    assert len(on_ray.serving()) == rows + 1


def test_a_killed_command_can_be_repeated(on_ray: OnRay) -> None:
    on_ray.run("down")
    for pause_s in (0.0, 0.3, 1.0, 3.0):
        process = on_ray.started(*on_ray.shape(2, 2))
        wait_until(lambda: bool(live_placements()))
        time.sleep(pause_s)
        process.kill()
        process.communicate()
    on_ray.up(2, 2)
    assert len(on_ray.serving()) == 5
    assert len(live_placements()) == 3
    assert len(ray.util.list_named_actors()) == 5
    process = on_ray.started("down")
    wait_until(lambda: len(ray.util.list_named_actors()) < 5)
    process.send_signal(signal.SIGINT)
    process.communicate()
    on_ray.run("down")
    assert (ray.util.list_named_actors(), live_placements()) == ([], [])


def test_what_waits_for_a_node_is_shown_and_ended_at_once(on_ray: OnRay) -> None:
    waiting = on_ray.started(*on_ray.shape(1, 1, "--leaf-cpus", "99"))
    wait_until(lambda: bool(ray.util.list_named_actors()))
    told = on_ray.run("status", "--json", code=1)
    assert told == "" or json.loads(told)
    # Other options: the first command is still there.
    assert "another command changes" in on_ray.up(1, 1, code=4)
    began_s = time.monotonic()
    on_ray.run("down")
    assert time.monotonic() - began_s < 45
    assert "another command" in ended(waiting, 4, timeout_s=30)
    assert (ray.util.list_named_actors(), live_placements()) == ([], [])


def test_options_are_compared_with_those_of_processes_that_do_not_run_yet(on_ray: OnRay) -> None:
    assert "Ray goes on trying" in on_ray.up(1, 1, "--leaf-cpus", "99", "--timeout", "2", code=4)
    shown = on_ray.run("status", code=1)
    assert shown == "" or "waits" in shown
    assert "processors are reserved" in on_ray.up(1, 2, "--timeout", "60", code=2)
    on_ray.run("down")


def test_an_actor_that_ends_is_told(on_ray: OnRay) -> None:
    starting = on_ray.started(*on_ray.shape(1, 1))
    wait_until(lambda: "leaf-0-of-1-row-0" in [str(name) for name in ray.util.list_named_actors()])
    ray.kill(ray.get_actor("leaf-0-of-1-row-0"), no_restart=True)
    assert "leaf-0-of-1-row-0 has ended" in ended(starting, 4, timeout_s=60)
    on_ray.run("down")
