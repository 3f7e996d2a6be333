"""`scannery cluster up`, `autoscale` and `down`: a cluster on the nodes of Ray."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from scannery.cli.declared_options import option_values, with_options
from scannery.cli.options import ClusterNameOption, LogOption, RayOption
from scannery.cli.output import console
from scannery.runtime.errors import UnavailableError
from scannery.serving.config import LeavesConfig

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scannery.bridges.ray.places import Slot
    from scannery.bridges.ray.ray_actors import ActorState

__all__ = ["Processes", "autoscale", "down", "running", "up"]

_WAITS = "waits for a node"
_LEAST_CPUS = 0.0001
"""What Ray can reserve: it counts in parts of this size."""
_OPTIONS_HELP = 'Further options of `scannery serve` for all {}, in quotes: "--workers 4 --insecure".'


def up(
    ray: RayOption,
    store: Annotated[
        str,
        typer.Option(
            "--store", "-s", envvar="SCANNERY_STORE", metavar="URI",
            help="Folder or bucket with the indexes; all nodes must reach it.",
        ),
    ],
    groups: Annotated[int, typer.Option(help="Number of groups of shards.", min=1)],
    rows: Annotated[int, typer.Option(help="Leaves of each group, on different nodes if there are enough.", min=1)] = 2,
    roots: Annotated[int, typer.Option(help="Number of roots.", min=1)] = 2,
    name: ClusterNameOption = "default",
    log: LogOption = "",
    port: Annotated[
        int, typer.Option(help="Port of roots; with 0, each takes a free one. Leaves take free ones.", min=0, max=65535)
    ] = 7077,
    leaf_options: Annotated[str, typer.Option(metavar="OPTIONS", help=_OPTIONS_HELP.format("leaves"))] = "",
    root_options: Annotated[str, typer.Option(metavar="OPTIONS", help=_OPTIONS_HELP.format("roots"))] = "",
    leaf_cpus: Annotated[float, typer.Option(help="Processors that Ray reserves for a leaf.", min=_LEAST_CPUS)] = 1.0,
    root_cpus: Annotated[float, typer.Option(help="Processors that Ray reserves for a root.", min=_LEAST_CPUS)] = 1.0,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time in which all processes have to serve.", min=0)
    ] = 900.0,
) -> None:  # fmt: skip
    """Start a cluster on Ray, or give a running one other numbers of groups, rows and roots, while it answers."""
    from scannery.bridges.ray.places import Shape
    from scannery.bridges.ray.ray_actors import ServeOptions
    from scannery.bridges.ray.ray_cluster import RayCluster

    shape = Shape(groups=groups, rows=rows, roots=roots)
    leaf_arguments, root_arguments = (
        _split("leaf-options", leaf_options),
        _split("root-options", root_options),
    )
    leaf = ServeOptions(store=store, log=log, arguments=leaf_arguments, cpus=leaf_cpus)
    root = ServeOptions(store=store, log=log, arguments=root_arguments, cpus=root_cpus, port=port)
    with RayCluster(ray, name) as cluster:
        cluster.up(shape, leaf=leaf, root=root, timeout_s=timeout, report=_report)
        console().print(Processes(cluster.states()).table())


def down(ray: RayOption, name: ClusterNameOption = "default") -> None:
    """End the processes of a cluster on Ray when their requests have ended."""
    from scannery.bridges.ray.ray_cluster import RayCluster

    with RayCluster(ray, name) as cluster:
        _report(f"{cluster.down()} processes ended")


@with_options(
    "ray max_rows min_rows name target_load every shrink_after timeout "
    "leaves_key leaves_ca leaves_cert leaves_cert_key",
    LeavesConfig,
)
def autoscale(
    ray: RayOption,
    max_rows: Annotated[int, typer.Option(help="Most leaves of each group.", min=1)],
    min_rows: Annotated[int, typer.Option(help="Fewest leaves of each group.", min=1)] = 2,
    name: ClusterNameOption = "default",
    target_load: Annotated[
        float,
        typer.Option(
            metavar="PART", help="Requests in flight of a leaf, as a part of its limit, above which rows are added."
        ),
    ] = 0.6,
    every: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time for which the load is measured before each decision.", min=1)
    ] = 15.0,
    shrink_after: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Time in which the load must allow one row less, for each.", min=0),
    ] = 300.0,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Time in which new leaves have to serve.", min=1)
    ] = 300.0,
    **settings: Any,
) -> None:  # fmt: skip
    """Add and remove rows of a cluster on Ray with its load, until SIGTERM or Ctrl-C."""
    from scannery.bridges.ray.autoscaling import Autoscaling, Limits, follow_load

    limits = Limits(
        min_rows=min_rows, max_rows=max_rows, target_load=target_load, shrink_after_s=shrink_after
    )
    config = Autoscaling(
        ray=ray, name=name, limits=limits, every_s=every, timeout_s=timeout,
        **option_values(LeavesConfig, settings),
    )  # fmt: skip
    raise typer.Exit(follow_load(config))


class Processes:
    """The processes of a cluster, as far as Ray knows them."""

    def __init__(self, states: Mapping[Slot, ActorState | None]) -> None:
        """Show them.

        Args:
            states: of the processes by place; None: it waits for a node.

        """
        self._states = states

    @property
    def target(self) -> str:
        """Addresses of the leaves; empty: none serves."""
        return ",".join(
            state.address
            for slot, state in self._states.items()
            if slot.team.groups and state and state.address
        )

    def table(self) -> Table:
        """Return a table of what runs."""
        table = Table("process", "address", "node", "starts", "problem")
        for slot, state in sorted(self._states.items()):
            table.add_row(str(slot), *(_columns(state) if state is not None else ("–", "–", "–", _WAITS)))
        return table

    def as_json(self) -> list[dict[str, Any]]:
        """Return what runs, for programs."""
        return [
            {
                "process": str(slot),
                "address": state.address if state is not None else "",
                "node": state.node if state is not None else "",
                "pid": state.process.pid if state is not None else 0,
                "starts": state.process.starts if state is not None else 0,
                "problem": state.process.problem if state is not None else _WAITS,
            }
            for slot, state in sorted(self._states.items())
        ]


def running(ray: str, name: str) -> Processes:
    """Return the processes of a cluster on Ray; raises UnavailableError if there are none."""
    from scannery.bridges.ray.ray_cluster import RayCluster

    with RayCluster(ray, name) as cluster:
        states = cluster.states()
    if not states:
        raise UnavailableError(f"no cluster {name} runs on Ray", retry_after_s=1)
    return Processes(states)


def _columns(state: ActorState) -> tuple[str, ...]:
    process = state.process
    return state.address or "–", state.node[:12], str(process.starts), process.problem


def _split(option: str, text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise typer.BadParameter(f"--{option}: {error} in {text!r}") from error


def _report(text: str) -> None:
    typer.echo(text, err=True)
