"""Beam runners by name. The default, `local`, runs in this process.

Options of engines by which a worker does one piece of work at a time, and the pool of machines of each stage.

An encoder, and ScaNN while it trains, use all cores of a machine, and a shard needs gigabytes. So a machine should
have one worker process with one thread.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import logging
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from scannery.embed.library_imports import uncollected
from scannery.pipelines.errors import RunnerError

__all__ = [
    "RUNNERS",
    "StagePools",
    "busy_task_managers",
    "check_engine",
    "check_processes",
    "import_beam",
    "new_pipeline",
    "stage_pools",
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
    """Accelerator of the stage that embeds, as Dataflow names it: `type:nvidia-l4;count:1;install-nvidia-driver`."""

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


def with_one_worker(runner: str, options_set: Mapping[str, Any], options: Sequence[str]) -> list[str]:
    """Return the options with those added by which Dataflow runs one process with one thread on a machine.

    Args:
        runner: a name in runners.RUNNERS.
        options_set: the options that Beam knows, by name.
        options: as on a command line. Options that the caller gave stay as they are.

    """
    if runner != "dataflow":
        return list(options)
    added = []
    experiments = options_set.get("experiments") or []
    if ONE_PROCESS not in experiments and ONE_PROCESS.removeprefix("no_") not in experiments:
        added.append(f"--experiments={ONE_PROCESS}")
    if not options_set.get("number_of_worker_harness_threads"):
        added.append("--number_of_worker_harness_threads=1")
    if added:
        _LOG.info(
            "added for Dataflow, so that a machine does one piece of work at a time: %s", " ".join(added)
        )
    return [*options, *added]


def check_pools(runner: str, options_set: Mapping[str, Any], accelerator: str | None) -> None:
    """Check that the engine has pools of machines by stage.

    Args:
        runner: a name in runners.RUNNERS.
        options_set: the options that Beam knows, by name.
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
    everywhere = [word for word in _service_options(options_set) if word.startswith("worker_accelerator")]
    if everywhere:
        raise RunnerError(
            f"accelerator: {everywhere[0]} already gives accelerators to the machines of all stages",
            field="accelerator",
        )


def needs_ram_hint(runner: str, options_set: Mapping[str, Any], accelerator: str | None) -> bool:
    """Return whether Dataflow is to choose the memory of the machines that build segments.

    It is not if the caller named a machine type for all stages.
    """
    named = options_set.get("machine_type") or options_set.get("worker_machine_type")
    return runner == "dataflow" and (accelerator is not None or not named)


def _service_options(options_set: Mapping[str, Any]) -> list[str]:
    return [*(options_set.get("dataflow_service_options") or []), *(options_set.get("experiments") or [])]


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
            managers = json.loads(answer.read(2**24))["taskmanagers"]
        return {
            str(manager["id"]): int(manager["slotsNumber"])
            for manager in managers
            if int(manager["slotsNumber"]) > 1
        }
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


RUNNERS = {
    # Not Beam's "DirectRunner": it first looks for a binary to download, and its multi-process mode hangs when a worker
    # dies.
    "local": None,
    "portable": "PortableRunner",
    "dask": "apache_beam.runners.dask.dask_runner.DaskRunner",
    "dataflow": "DataflowRunner",
    "flink": "FlinkRunner",
    "spark": "SparkRunner",
}
"""Names for `--runner`, each with Beam's runner."""


# Required options: without them an engine fails after minutes, or runs in the wrong place.
_NEEDED = {
    "portable": ("job_endpoint",),
    "dataflow": ("project", "region", "temp_location"),
    "flink": ("flink_master",),
    "spark": ("spark_master_url",),
}
# Runners whose job servers have options that Beam's Python side does not know.
_OPEN = ("portable", "flink", "spark")
_DEFAULTS = ("[auto]", "local[4]")


def import_beam() -> Any:
    """Return Beam, imported on first use: the import takes seconds, and its warnings about clouds are suppressed."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with uncollected():
            import apache_beam
    finally:
        logging.disable(before)
    return apache_beam


def check_runner(runner: str | None) -> str:
    """Return the name of the runner; raise RunnerError if it is unknown."""
    name = (runner or "local").lower()
    if name not in RUNNERS:
        raise RunnerError(f"unknown runner {runner!r}; use one of {', '.join(RUNNERS)}", field="runner")
    return name


def check_engine(
    runner: str | None, options: Sequence[str], locations: Sequence[str], *, accelerator: str | None = None
) -> None:
    """Check a runner and its options before anything is read, started or uploaded.

    Args:
        runner: its name.
        options: as on a command line.
        locations: inputs and store; Dataflow must be able to reach them.
        accelerator: of the machines that embed (worker_options.StagePools).

    Raises:
        RunnerError: unknown runner or option, an option is missing, the engine cannot reach a location, or has no
            machines by stage.

    """
    name = check_runner(runner)
    if not options and name not in _NEEDED:
        check_pools(name, {}, accelerator)
        return
    options_set, unknown = _parsed(options)
    check_pools(name, options_set, accelerator)
    missing = [
        f"--{option}" for option in _NEEDED.get(name, ()) if options_set.get(option) in (None, *_DEFAULTS)
    ]
    if missing:
        raise RunnerError(f"runner {name!r} needs {', '.join(missing)}", field="runner_options")
    if unknown and name not in _OPEN:
        raise RunnerError(f"runner {name!r}: unknown option {', '.join(unknown)}", field="runner_options")
    local = [location for location in locations if "://" not in location or location.startswith("file:")]
    if name == "dataflow" and local:
        raise RunnerError(f"Dataflow cannot reach {', '.join(local)}; use gs://", field="runner")


def check_processes(device: str, options: Sequence[str]) -> None:
    """Check that options start one worker process on a machine, where the device of the encoder is XLA.

    Args:
        device: of the spec's encoder.
        options: of the runner, as on a command line.

    Raises:
        RunnerError: several processes would share the chips of a host, which one process holds.

    """
    if device != "xla" or not options:
        return
    options_set, _ = _parsed(options)
    several = {
        "--direct_running_mode=multi_processing": options_set.get("direct_running_mode")
        == "multi_processing",
        "--sdk_worker_parallelism": int(options_set.get("sdk_worker_parallelism") or 1) > 1,
        "--experiments=use_multiple_sdk_containers": "use_multiple_sdk_containers"
        in (options_set.get("experiments") or ()),
    }
    if wrong := [name for name, is_set in several.items() if is_set]:
        raise RunnerError(
            f"encoder device xla: {wrong[0]} starts several worker processes on a machine, but one process holds all "
            "chips of a host, and uses all of them",
            field="runner_options",
        )


def _parsed(options: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options that Beam knows, by name, and the remaining words."""
    import_beam()
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.dask import dask_runner  # its options are known once it is imported

    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False, allow_abbrev=False)
    for kind in {PipelineOptions, dask_runner.DaskOptions, *_subclasses(PipelineOptions)}:
        with contextlib.suppress(argparse.ArgumentError):  # options that two classes define
            kind._add_argparse_args(parser)
    try:
        options_set, unknown = parser.parse_known_args(list(options))
    except (argparse.ArgumentError, SystemExit) as error:
        raise RunnerError(f"runner options: {error}", field="runner_options") from error
    return vars(options_set), unknown


def _subclasses(kind: Any) -> set[Any]:
    return {child for direct in kind.__subclasses__() for child in (direct, *_subclasses(direct))}


def stage_pools(
    runner: str | None, options: Sequence[str], *, accelerator: str | None, segment_bytes: int
) -> StagePools:
    """Return the machines that single stages ask for: none, unless the runner is Dataflow.

    Args:
        runner: its name.
        options: as on a command line.
        accelerator: of the machines that embed.
        segment_bytes: memory that building the largest shard needs.

    """
    name = check_runner(runner)
    if name != "dataflow":
        return StagePools()
    options_set, _ = _parsed(options)
    hinted = needs_ram_hint(name, options_set, accelerator)
    return StagePools(accelerator=accelerator, segment_bytes=segment_bytes if hinted else 0)


def new_pipeline(runner: str | None, options: Sequence[str]) -> Any:
    """Return an empty `beam.Pipeline` for a runner and its options, given as on a command line.

    Options by which a machine does one piece of work at a time are added (runners.py).

    Raises:
        RunnerError: unknown runner, or options that Beam refuses.

    """
    name = check_runner(runner)
    beam = import_beam()
    from apache_beam.options.pipeline_options import PipelineOptions
    from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

    options_set = _parsed(options)[0] if options else {}
    if name == "flink" and options_set.get("flink_master") not in (None, *_DEFAULTS, "[local]"):
        warn_of_slots(options_set["flink_master"])
    options = with_one_worker(name, options_set, options)
    try:
        return beam.Pipeline(runner=RUNNERS[name] or FnApiRunner(), options=PipelineOptions(options))
    except (ValueError, ImportError, SystemExit) as error:
        raise RunnerError(f"runner {name!r}: {error}", field="runner_options") from error
