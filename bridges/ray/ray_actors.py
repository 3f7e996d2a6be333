"""What runs inside of Ray's actors: a server each. Ray is imported by its workers only."""

from __future__ import annotations

import logging
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scannery.bridges.ray.places import ROOTS, Slot
from scannery.bridges.ray.server_process import ProcessState, ServerProcess
from scannery.live.log.location import LOG_VARIABLE

__all__ = ["ActorState", "ServeOptions", "ServerActor"]

_LOG = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
_ANSWER_WITHIN_S = 1.0


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    """What all leaves, or all roots, are started with."""

    store: str
    arguments: tuple[str, ...] = ()
    """Further arguments of `scannery serve`."""
    log: str = field(default="", repr=False)
    """Place of the mutation log, which may have a password; empty: as the environment of Ray's node says."""
    port: int = 0
    """0: a free one."""
    cpus: float = 1.0
    """Processors that Ray reserves."""


@dataclass(frozen=True, kw_only=True)
class ActorState:
    """What an actor tells of its server."""

    node: str
    """Ray's id of the node."""
    process: ProcessState
    retired: bool
    """Whether roots are told to leave it."""
    options: ServeOptions
    leaves: tuple[str, ...] = ()
    """Addresses in the file that a root follows."""

    @property
    def address(self) -> str:
        """Where it serves; empty: it does not."""
        return self.process.address


class ServerActor:
    """Owns the server of a slot, which ends with it; Ray starts the actor again, on another node if need be."""

    def __init__(self, slot: str, options: ServeOptions) -> None:
        import ray

        actor_slot = Slot.named(slot)
        assert actor_slot is not None
        self._options, self._retired = options, False
        self._node = ray.get_runtime_context().get_node_id()
        self._file = LeavesFile() if actor_slot.team == ROOTS else None
        self._process = ServerProcess(
            ["--store", options.store, *_role(actor_slot, self._file), *options.arguments],
            host=ray.util.get_node_ip_address(), port=options.port,
            environment={LOG_VARIABLE: options.log} if options.log else {},
        )  # fmt: skip

    def state(self) -> ActorState:
        """Return what is known now."""
        return ActorState(
            node=self._node, process=self._process.state(), retired=self._retired, options=self._options,
            leaves=self._file.addresses if self._file is not None else (),
        )  # fmt: skip

    def retire(self, retired: bool) -> None:
        """Have roots leave this server, which goes on, or use it again."""
        self._retired = retired

    def stop(self) -> None:
        """End the server when its requests have ended."""
        self._process.stop()


def _role(slot: Slot, file: LeavesFile | None) -> list[str]:
    if file is not None:
        return ["--role", "root", "--leaves", f"file://{file.path}"]
    return ["--role", "leaf", "--group", f"{slot.team.group}/{slot.team.groups}"]


class LeavesFile:
    """A file with the addresses of the leaves, which is kept current as long as this process lives."""

    def __init__(self) -> None:
        """Write it."""
        self.path = Path(tempfile.mkdtemp(prefix="scannery-leaves-")) / "leaves"
        self.addresses: tuple[str, ...] = ()
        """What it has."""
        self._leaves = _Leaves()
        self._look()
        threading.Thread(target=self._follow, name="scannery-leaves-file", daemon=True).start()

    def _follow(self) -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_EVERY_S):
            self._look()

    def _look(self) -> None:
        try:
            addresses = tuple(self._leaves.look())
            # Cleaners remove what is old from the temporary folder.
            if addresses != self.addresses or not self.path.exists():
                self._write(addresses)
        except Exception:  # noqa: BLE001  the former addresses stay: searches need no Ray
            _LOG.exception("the leaves cannot be looked up")

    def _write(self, addresses: tuple[str, ...]) -> None:
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text("".join(f"{address}\n" for address in addresses))
        new.replace(self.path)
        self.addresses = addresses


class _Leaves:
    """The addresses of the leaves, as their actors tell them."""

    def __init__(self) -> None:
        self._actors: dict[str, Any] = {}
        self._addresses: dict[str, str] = {}

    def look(self) -> list[str]:
        """Return the addresses. Leaves that do not answer, or start again, keep their last ones."""
        import ray

        names = [name for name in ray.util.list_named_actors() if _is_leaf(name)]
        self._addresses = {name: address for name, address in self._addresses.items() if name in names}
        calls = {name: reference for name in names if (reference := self._call(name)) is not None}
        if calls:
            ray.wait(list(calls.values()), num_returns=len(calls), timeout=_ANSWER_WITHIN_S)
        for name, reference in calls.items():
            self._note(name, reference)
        return sorted(address for address in self._addresses.values() if address)

    def _call(self, name: str) -> Any:
        import ray

        try:
            if name not in self._actors:
                self._actors[name] = ray.get_actor(name)
            return self._actors[name].state.remote()
        except ValueError:  # it ended a moment ago
            return None

    def _note(self, name: str, reference: Any) -> None:
        import ray

        try:
            state: ActorState = ray.get(reference, timeout=0)
        except ray.exceptions.RayError:
            # The next one may be another actor of this name.
            self._actors.pop(name, None)
            return
        if state.retired:
            self._addresses[name] = ""
        elif state.address:
            self._addresses[name] = state.address


def _is_leaf(name: str) -> bool:
    slot = Slot.named(name)
    return slot is not None and slot.team != ROOTS
