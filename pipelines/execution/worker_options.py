"""Options of engines by which a worker does one piece of work at a time, and the pool of machines of each stage.

An encoder, and ScaNN while it trains, use all cores of a machine, and a shard needs gigabytes. So a machine should
have one worker process with one thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from scannery.pipelines.errors import RunnerError

__all__ = [
    "StagePools",
    "busy_task_managers",
    "check_pools",
    "needs_ram_hint",
    "warn_of_slots",
    "with_one_worker",
]

_LOG = logging.getLogger(__name__)

ONE_PROCESS = "no_use_multiple_sdk_containers"
"""Experiment of Dataflow: one process per machine. Its default, `use_multiple_sdk_containers`, is one per vCPU."""

FLINK_TIMEOUT_S = 3.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class StagePools:
    """Machines that single stages need; an engine that has one pool for all stages ignores this."""

    accelerator: str | None = None
    """Of the stage that embeds, as Dataflow names it: `type:nvidia-l4;count:1;install-nvidia-driver`."""

    segment_bytes: int = 0
    """Memory that the stage that builds segments needs; 0: not known."""

    @property
    def embed(self) -> dict[str, str]:
        """Resource hints of the stage that embeds."""
        return {"accelerator": self.accelerator} if self.accelerator else {}

    @property
    def segment(self) -> dict[str, str]:
        """Resource hints of the stage that builds segments."""
        return {"min_ram": f"{-(-self.segment_bytes // 2**20)}MiB"} if self.segment_bytes else {}


def with_one_worker(runner: str, known: Mapping[str, Any], options: Sequence[str]) -> list[str]:
    """Return the options with those added by which Dataflow runs one process with one thread on a machine.

    Args:
        runner: a name in runners.RUNNERS.
        known: the options that Beam knows, by name.
        options: as on a command line. Options that the caller gave stay as they are.

    """
    if runner != "dataflow":
        return list(options)
    added = []
    given = known.get("experiments") or []
    if ONE_PROCESS not in given and ONE_PROCESS.removeprefix("no_") not in given:
        added.append(f"--experiments={ONE_PROCESS}")
    if not known.get("number_of_worker_harness_threads"):
        added.append("--number_of_worker_harness_threads=1")
    if added:
        _LOG.info(
            "added for Dataflow, so that a machine does one piece of work at a time: %s", " ".join(added)
        )
    return [*options, *added]


def check_pools(runner: str, known: Mapping[str, Any], accelerator: str | None) -> None:
    """Check that the engine has pools of machines by stage.

    Args:
        runner: a name in runners.RUNNERS.
        known: the options that Beam knows, by name.
        accelerator: see StagePools.

    Raises:
        RunnerError: the runner is not Dataflow, or an option gives accelerators to all machines.

    """
    if accelerator is None:
        return
    if runner != "dataflow":
        raise RunnerError(
            f"accelerator: only the runner 'dataflow' has machines by stage, got {runner!r}; elsewhere build with "
            "`--until embed` on machines with accelerators, and again without it on others",
            field="accelerator",
        )
    if not accelerator.startswith("type:"):
        raise RunnerError(
            f"accelerator: must be like type:nvidia-l4;count:1;install-nvidia-driver, got {accelerator!r}",
            field="accelerator",
        )
    everywhere = [word for word in _service_options(known) if word.startswith("worker_accelerator")]
    if everywhere:
        raise RunnerError(
            f"accelerator: {everywhere[0]} already gives accelerators to the machines of all stages",
            field="accelerator",
        )


def needs_ram_hint(runner: str, known: Mapping[str, Any], accelerator: str | None) -> bool:
    """Return whether Dataflow is to choose the memory of the machines that build segments.

    It is not if the caller named a machine type for all stages.
    """
    named = known.get("machine_type") or known.get("worker_machine_type")
    return runner == "dataflow" and (accelerator is not None or not named)


def _service_options(known: Mapping[str, Any]) -> list[str]:
    return [*(known.get("dataflow_service_options") or []), *(known.get("experiments") or [])]


def busy_task_managers(master: str, *, timeout_s: float = FLINK_TIMEOUT_S) -> dict[str, int]:
    """Return the TaskManagers of a Flink cluster with several slots, with the number of slots of each.

    Each slot does a piece of work of its own in the memory of the machine. Empty if the cluster does not answer: the
    engine reports that.

    Args:
        master: `host:port` of Flink's REST interface, as `--flink_master`.
        timeout_s: for the answer.

    """
    url = master if master.startswith(("http://", "https://")) else f"http://{master}"
    with contextlib.suppress(URLError, OSError, ValueError, KeyError, TypeError):
        with urlopen(f"{url.rstrip('/')}/taskmanagers", timeout=timeout_s) as answer:
            found = json.loads(answer.read(2**24))["taskmanagers"]
        return {str(one["id"]): int(one["slotsNumber"]) for one in found if int(one["slotsNumber"]) > 1}
    return {}


def warn_of_slots(master: str) -> None:
    """Log a warning if a TaskManager of a Flink cluster has several slots."""
    busy = busy_task_managers(master)
    if busy:
        name, slots = next(iter(busy.items()))
        _LOG.warning(
            "%d TaskManager(s) of Flink have several slots (%s has %d): each slot builds a shard or embeds a unit of "
            "its own in the memory of the machine; set taskmanager.numberOfTaskSlots: 1",
            len(busy),
            name,
            slots,
        )
