"""Machines of a cluster: network namespaces of Linux on a bridge, whose routes to each other can be cut."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

__all__ = ["SERVICE", "Machine", "machines_or_skip"]

_NETWORK = "10.213.77"
_GATEWAY = f"{_NETWORK}.1"
SERVICE = f"{_NETWORK}.200"
"""A second address of this machine: callers have the other one, so that servers here can be cut off alone."""
_BRIDGE = "scannery-test"


class Machine:
    """A network namespace with an address."""

    def __init__(self, number: int) -> None:
        self._name = f"{_BRIDGE}-{number}"
        self.address = f"{_NETWORK}.{number}"
        self.enter = ("ip", "netns", "exec", self._name)
        """What starts a command there."""
        outer, inner = f"sc{number}o", f"sc{number}i"
        _ip("netns", "add", self._name)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
        _ip("link", "set", inner, "netns", self._name)
        _ip("link", "set", outer, "master", _BRIDGE, "up")
        for command in (
            ("addr", "add", f"{self.address}/24", "dev", inner),
            ("link", "set", inner, "up"),
            ("link", "set", "lo", "up"),
        ):
            _ip("-n", self._name, *command)

    def cut(self, address: str) -> None:
        """Lose what is sent from here to an address, without an answer."""
        _ip("-n", self._name, "route", "add", "blackhole", f"{address}/32")

    def heal(self, address: str) -> None:
        """End `cut`."""
        _ip("-n", self._name, "route", "del", "blackhole", f"{address}/32")

    def remove(self) -> None:
        """Remove the namespace, and its link with it."""
        _ip("netns", "del", self._name)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@contextmanager
def machines_or_skip(count: int) -> Iterator[list[Machine]]:
    """Give machines on a bridge of their own, or skip the test where they cannot be made."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("needs root and the command ip")
    try:
        _ip("link", "add", _BRIDGE, "type", "bridge")
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs network namespaces: {error.stderr.decode().strip()}")
    with ExitStack() as stack:
        stack.callback(_ip, "link", "del", _BRIDGE)
        for address in (_GATEWAY, SERVICE):
            _ip("addr", "add", f"{address}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        machines = []
        for number in itertools.islice(itertools.count(2), count):
            machines.append(Machine(number))
            stack.callback(machines[-1].remove)
        yield machines
