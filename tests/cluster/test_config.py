"""Options that do not fit the part of a server in a cluster, and several processes per part."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import scannery
from scannery.cli.main import main
from tests.cluster.processes import Process
from tests.served import DIMENSIONS, ROWS
from tests.tools.ports import free_ports

ROOT = ("--role", "root")
LEAF = ("--role", "leaf")
LEAVES = ("--leaves", "127.0.0.1:1")
GROUP = ("--group", "0/2")

REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "a root without leaves": (ROOT, "a root needs its leaves (--leaves)"),
    "a root with a group": ((*ROOT, *LEAVES, *GROUP), "group: is for the role leaf"),
    "a leaf without a group": (LEAF, "a leaf needs a group"),
    "a leaf with leaves": ((*LEAF, *GROUP, *LEAVES), "leaves: are for the role root"),
    "a server of all with leaves": (LEAVES, "leaves: are for the role root"),
    "a server of all with a group": (GROUP, "group: is for the role leaf"),
    "a group that is none": ((*LEAF, "--group", "2/2"), "group"),
    "a group without a number": ((*LEAF, "--group", "a/2"), "group"),
    "a negative group": ((*LEAF, "--group", "-1/2"), "group"),
    "another role": (("--role", "branch"), "role"),
    "a target without a port": ((*ROOT, "--leaves", "127.0.0.1"), "leaves"),
    "a port that is none": ((*ROOT, "--leaves", "127.0.0.1:99999"), "leaves"),
    "port 0": ((*ROOT, "--leaves", "127.0.0.1:0"), "leaves"),
    "an empty address": ((*ROOT, "--leaves", "127.0.0.1:1,"), "leaves"),
    "the same address twice": ((*ROOT, "--leaves", "127.0.0.1:1,127.0.0.1:1"), "leaves"),
    "another scheme": ((*ROOT, "--leaves", "http://127.0.0.1:1"), "leaves"),
    "a file that is not there": ((*ROOT, "--leaves", "file:///none/leaves"), "there is no file /none/leaves"),
    "a name without a port": ((*ROOT, "--leaves", "dns:///leaf"), "leaves"),
    "no name": ((*ROOT, "--leaves", "dns:///"), "leaves"),
    "a key without leaves": (("--leaves-key", "key"), "need --leaves"),
    "Vertex on a root": ((*ROOT, *LEAVES, "--vertex"), "vertex: is not served by a root yet"),
    "Vertex on a leaf": ((*LEAF, *GROUP, "--vertex"), "vertex: is not served by a leaf yet"),
}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("name", REFUSED)
def test_options_that_do_not_fit(capsys: pytest.CaptureFixture[str], library: Path, name: str) -> None:
    arguments, message = REFUSED[name]
    status = main(("serve", "--store", str(library), "--listen", "127.0.0.1:0", *arguments))
    output = capsys.readouterr()
    assert status != 0
    assert message in " ".join(output.err.replace("│", " ").split())
    assert "Traceback" not in output.err
    assert "Serving" not in output.out


@pytest.mark.system
def test_leaf_and_root_with_two_processes_each(library: Path) -> None:
    first, second, port = free_ports(3)
    target = f"127.0.0.1:{first},127.0.0.1:{second}"
    servers = [
        Process(library, first, *LEAF, "--group", "0/2", "--workers", "2"),
        Process(library, second, *LEAF, "--group", "1/2"),
        Process(library, port, *ROOT, "--leaves", target, "--workers", "2"),
    ]
    with ExitStack() as stack:
        for server in servers:
            stack.callback(server.kill)
            server.start()
        for server in servers:
            server.wait()
        # Each connection may come to another worker.
        for _ in range(6):
            with scannery.connect(servers[-1].address) as client:
                index = client.index("library")
                assert len(index.search(np.ones(DIMENSIONS, np.float32), 1000, exact=True)) == ROWS
                assert index.count() == ROWS
