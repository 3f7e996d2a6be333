"""The chain as a Beam pipeline: one linear chain, which every runner of Beam executes the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import apache_beam
from apache_beam.utils import shared

from scannery.embed import Encoder
from scannery.pipelines.execution.chain import (
    BuildSegment,
    EmbedUnit,
    EncoderHandle,
    Publish,
    ResolveDuplicates,
    Stage,
    Until,
    resolves,
)
from scannery.pipelines.execution.runners import StagePools
from scannery.pipelines.state.job import Job

__all__ = ["StageFn", "add_build", "new_encoder_handle"]

# Beam's types are partial: mypy would refuse every call of a transform as a call of an untyped function.
beam: Any = apache_beam


def add_build(
    pipeline: Any,
    job: Job,
    elements: Sequence[str],
    encoders: EncoderHandle,
    pools: StagePools | None = None,
    *,
    until: Until | None = None,
) -> None:
    """Add the whole build to a pipeline.

    Args:
        pipeline: an empty `beam.Pipeline`.
        job: the build.
        elements: of the first stage (`chain.first_elements`).
        encoders: from `new_encoder_handle`.
        pools: machines that single stages ask for.
        until: the last stage; None: all stages.

    """
    pools = pools or StagePools()
    embedded = (
        pipeline
        | "Units" >> beam.Create(elements)
        | "Embed" >> _stage(EmbedUnit(job, encoders), pools.embed).with_output_types(tuple[int, bytes])
    )
    if until == "embed":
        return
    if resolves(job):
        embedded = (
            embedded
            | "Group by hash range" >> beam.GroupByKey()
            | "Resolve duplicates" >> _stage(ResolveDuplicates(job)).with_output_types(tuple[int, bytes])
        )
    outcomes = (
        embedded
        | "Group by shard" >> beam.GroupByKey()
        | "Build segment"
        >> _stage(BuildSegment(job, encoders), pools.segment).with_output_types(tuple[int, bytes])
        | "Gather" >> beam.GroupByKey()
    )
    _ = outcomes | "Publish" >> _stage(Publish(job, encoders)).with_output_types(str)


def new_encoder_handle(recipes: Iterable[str] = ()) -> EncoderHandle:
    """Return a handle through which all workers of a process share one loaded encoder of each recipe."""
    handle: Any = shared.Shared
    return _SharedEncoders({recipe: handle() for recipe in recipes})


class _SharedEncoders:
    def __init__(self, handles: Mapping[str, Any]) -> None:
        self._handles = handles

    def acquire(self, recipe: str, load: Callable[[], Encoder]) -> Encoder:
        encoder: Encoder = self._handles[recipe].acquire(load)
        return encoder


class StageFn(beam.DoFn):
    """A stage as Beam wants it.

    Args:
        stage: pickled to every worker.

    """

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def setup(self) -> None:
        """Set the stage up, once per worker."""
        self._stage.setup()

    def teardown(self) -> None:
        """Close what the stage opened."""
        self._stage.teardown()

    def process(self, element: Any) -> Iterator[Any]:
        """Yield what becomes of one element."""
        return self._stage.process(element)


def _stage(stage: Stage, hints: Mapping[str, str] | None = None) -> Any:
    # A stage with hints gets an environment of its own, also in engines that ignore them; so none without need.
    made = beam.ParDo(StageFn(stage))
    return made.with_resource_hints(**hints) if hints else made
