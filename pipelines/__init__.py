"""Beam pipelines: build, update, compact, export. Beam itself is imported when one runs."""

from scannery.pipelines.building import build
from scannery.pipelines.compacting import CompactReport, compact
from scannery.pipelines.dead_letters import REASONS, DeadLetter
from scannery.pipelines.errors import (
    InputChangedError,
    InputNotFoundError,
    ModeError,
    NothingToIndexError,
    OutputError,
    PipelineError,
    RunnerError,
    SpecConflictError,
    StageDamagedError,
    TooManyDeadLettersError,
    UnknownFormatError,
)
from scannery.pipelines.estimating import BuildPlan, CostEstimate, StageNeeds, chosen_machines, estimate
from scannery.pipelines.execution.runners import RUNNERS
from scannery.pipelines.exports.exporting import ExportedFile, ExportReport, export
from scannery.pipelines.memory_planning import MemoryPlan, Remedy, plan_memory
from scannery.pipelines.planning.compact_vectors import CompactVectors, KeptShare
from scannery.pipelines.report import BuildReport
from scannery.pipelines.state.progress import Progress, ProgressCallback

__all__ = [
    "REASONS",
    "RUNNERS",
    "BuildPlan",
    "BuildReport",
    "CompactReport",
    "CompactVectors",
    "CostEstimate",
    "DeadLetter",
    "ExportReport",
    "ExportedFile",
    "InputChangedError",
    "InputNotFoundError",
    "KeptShare",
    "MemoryPlan",
    "ModeError",
    "NothingToIndexError",
    "OutputError",
    "PipelineError",
    "Progress",
    "ProgressCallback",
    "Remedy",
    "RunnerError",
    "SpecConflictError",
    "StageDamagedError",
    "StageNeeds",
    "TooManyDeadLettersError",
    "UnknownFormatError",
    "build",
    "chosen_machines",
    "compact",
    "estimate",
    "export",
    "plan_memory",
]
