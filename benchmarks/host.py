"""What the host of an accelerator does for each passage: processor time by step, and the device's idle share.

    python -m benchmarks.host [null] [timed] [--megabytes N] [--whole] [--rate PASSAGES_PER_S]
        [--units N] [--processes N]

Real transcripts go through the build's own first stage (`embed_unit`) and a shard's segment without ScaNN
(`build_shard`). Two devices take the place of an accelerator: `null` returns vectors at once, so all time is the
host's; `timed` takes a stated time per token, so its idle share tells how well the host feeds it. `--whole` leaves
texts uncut: each record is a passage that the chunker made. `--units` embeds several units at once, as a runner with
several threads does; `--processes` cuts in other processes, as a build on an accelerator does.

Processor times are of all threads and of child processes. Times of steps are those of their threads alone, so they do
not overlap.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks import data
from benchmarks.harness import MINILM, environment, folder_of, options, table
from benchmarks.timed_device import TOKENS_PER_PASSAGE, TimedDevice
from scannery.embed import Encoder
from scannery.embed.models.loading import ModelOptions, load_model
from scannery.embed.text import chunking
from scannery.embed.tokenization import FastTokens
from scannery.indexer import Store, VectorsInfo, parse_spec
from scannery.pipelines.job_planning import new_job
from scannery.pipelines.planning.build_plan import cut_input
from scannery.pipelines.records import passages, unit_rows
from scannery.pipelines.records.passages import PROCESSES_ENVIRONMENT, close_cutting_processes
from scannery.pipelines.sources import find_files
from scannery.pipelines.stages import embed as embed_stage
from scannery.pipelines.stages.segment import build_shard
from scannery.pipelines.state.job import Job, UnitOutcome
from scannery.pipelines.state.row_groups import row_groups_of
from scannery.pipelines.state.work_units import WorkUnit, group

SHOWS = ("gotime", "founderstalk", "practicalai", "shipit")


class Steps:
    """Processor time of functions of the product, each by the threads that run it."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    def watch(self, owner: Any, name: str, step: str) -> None:
        """Replace a function by one that adds the time of its thread to a step."""
        original: Callable[..., Any] = getattr(owner, name)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.thread_time()
            try:
                return original(*args, **kwargs)
            finally:
                with self._lock:
                    self.seconds[step] += time.thread_time() - started

        setattr(owner, name, timed)

    def watch_all(self) -> None:
        """Watch the steps of a unit."""
        self.watch(unit_rows, "_by_records", "read and validate")
        self.watch(passages, "content_hash", "hash")
        self.watch(chunking.Chunker, "split", "cut")
        self.watch(FastTokens, "prepare", "tokenise")
        self.watch(FastTokens, "collate", "collate")
        self.watch(passages, "_rows", "make rows")
        self.watch(passages, "_own_columns", "make rows")
        self.watch(passages, "embeddings_table", "make rows")
        self.watch(embed_stage, "_observed", "observe")
        self.watch(embed_stage, "_write_embeddings", "write")


def transcripts(megabytes: float) -> Iterator[dict[str, str]]:
    """Yield real transcripts of about this size together."""
    left = megabytes * 1e6
    for name, text in data.transcripts(*SHOWS):
        left -= len(text)
        if left < 0:
            return
        yield {"id": name, "text": text}


def write_input(path: Path, megabytes: float, encoder: Encoder, *, whole: bool) -> None:
    """Write the corpus as JSON lines: transcripts, or their passages where texts are not to be cut."""
    chunker = encoder.chunker(128, 16)
    with path.open("w", encoding="utf-8") as file:
        for record in transcripts(megabytes):
            texts = [record["text"]]
            if whole:
                texts = [passage.embedding_text for passage in chunker.split(record["text"])]
            for number, text in enumerate(texts):
                file.write(json.dumps({"id": f"{record['id']}#{number}", "text": text}) + "\n")


def planned(path: Path, store: Store, dimensions: int, *, whole: bool) -> tuple[Job, list[WorkUnit]]:
    """Return the job and the units of a build of one file."""
    chunk = {} if whole else {"chunk": {"max_tokens": 128, "overlap_tokens": 16, "headings": False}}
    spec = parse_spec({
        "index": "bench",
        "source": {"id": "id", "text": "text", **chunk},
        "encoder": {"model": MINILM},
        "lexical": False,
        "scann": {"exact_below_rows": 10_000_000},
    })  # fmt: skip
    parts, limit = cut_input(find_files([str(path)]), spec, None)
    vectors = {"": VectorsInfo(dimensions=dimensions, encoder={"digest": "bench"})}
    job = new_job(spec, store, vectors=vectors, shards=1, parent=None, mode="full")
    units = group(parts, limit, job.recipe)
    return dataclasses.replace(job, build_id="bench", started_at=time.time()), units


@dataclasses.dataclass
class Measured:
    """One run of all units."""

    outcomes: list[UnitOutcome]
    wall_s: float
    own_cpu_s: float
    """Of this process, without those that cut."""
    embed_cpu_s: float
    segment_cpu_s: float

    @property
    def passages(self) -> int:
        return sum(one.counts.passages for one in self.outcomes)

    @property
    def tokens(self) -> int:
        return sum(one.counts.tokens for one in self.outcomes)


def run(
    encoder: Encoder, path: Path, folder: Path, *, whole: bool, segment: bool = True, at_once: int = 1
) -> Measured:
    """Embed every unit with this encoder, some at once, and build the segment of the only shard."""
    store = Store.open(folder, create=True)
    job, units = planned(path, store, encoder.dimensions, whole=whole)
    started, cpu = time.perf_counter(), processor_s()
    own = sum(os.times()[:2])
    with ThreadPoolExecutor(at_once) as threads:
        outcomes = [*threads.map(lambda unit: embed_stage.embed_unit(unit, job, store, {"": encoder}), units)]
    wall_s, own_cpu_s = time.perf_counter() - started, sum(os.times()[:2]) - own
    close_cutting_processes()  # the system tells their time when they have ended
    embed_cpu_s = processor_s() - cpu
    cpu = processor_s()
    if segment:
        rows = [group for one in outcomes for _, group in row_groups_of(one)]
        build_shard("bench", 0, rows, job, store)
    return Measured(outcomes, wall_s, own_cpu_s, embed_cpu_s, processor_s() - cpu)


def processor_s() -> float:
    """Return the processor time of this process and of its ended children."""
    return sum(os.times()[:4])


def null_encoder(seconds_per_token: float = 0.0) -> tuple[Encoder, TimedDevice]:
    """Return the real model's encoder on a device that does not compute."""
    modules, fingerprint = load_model(MINILM, ModelOptions(), "cpu")
    device = TimedDevice(fingerprint.dimensions, seconds_per_token)
    return Encoder(modules, fingerprint, device), device


def null(arguments: argparse.Namespace, folder: Path) -> None:
    """Print processor time per passage by step, with a device that takes no time."""
    encoder, _ = null_encoder()
    path = folder / "corpus.jsonl"
    write_input(path, 1, encoder, whole=arguments.whole)
    run(encoder, path, folder / "warm", whole=arguments.whole)  # imports, caches of compiled code
    write_input(path, arguments.megabytes, encoder, whole=arguments.whole)
    plain = run(encoder, path, folder / "plain", whole=arguments.whole, at_once=arguments.units)
    steps = Steps()
    steps.watch_all()
    watched = run(encoder, path, folder / "watched", whole=arguments.whole, segment=False)
    count = plain.passages
    us = {step: 1e6 * seconds / watched.passages for step, seconds in steps.seconds.items()}
    us["the rest"] = 1e6 * watched.embed_cpu_s / watched.passages - sum(us.values())
    us["merge and segment"] = 1e6 * plain.segment_cpu_s / count
    print(f"{count} passages of {plain.tokens / count:.0f} tokens; load {os.getloadavg()[0]:.1f}\n")
    print(table(["step", "µs of processor time a passage"], [(k, f"{v:.1f}") for k, v in us.items()]))
    total_us = 1e6 * (plain.embed_cpu_s + plain.segment_cpu_s) / count
    print(f"together {total_us / 1e3:.3f} ms a passage: {1e6 / total_us:,.0f} passages/s per core")
    own_us = 1e6 * plain.own_cpu_s / count
    print(f"in the worker itself {own_us / 1e3:.3f} ms, in processes that cut the rest")
    print(f"embedding alone: {count / plain.wall_s:,.0f} passages/s in wall time\n")


def timed(arguments: argparse.Namespace, folder: Path) -> None:
    """Print the idle share of a device that takes a stated time per token."""
    encoder, device = null_encoder(1 / (arguments.rate * TOKENS_PER_PASSAGE))
    path = folder / "timed.jsonl"
    write_input(path, 1, encoder, whole=arguments.whole)
    run(encoder, path, folder / "timed-warm", whole=arguments.whole, segment=False)
    write_input(path, arguments.megabytes, encoder, whole=arguments.whole)
    device.spans.clear()
    measured = run(
        encoder, path, folder / "timed", whole=arguments.whole, segment=False, at_once=arguments.units
    )
    busy_s = sum(end - start for start, end in device.spans)
    inner_s = device.spans[-1][1] - device.spans[0][0]
    seconds = Counter[str]()
    for one in measured.outcomes:
        seconds.update(one.counts.seconds)
    print(
        f"{measured.passages} passages, device of {arguments.rate:,.0f} passages/s: "
        f"{measured.passages / measured.wall_s:,.0f} passages/s, idle {1 - busy_s / measured.wall_s:.0%} "
        f"({1 - busy_s / inner_s:.0%} between its first and last batch), "
        f"{1e3 * measured.embed_cpu_s / measured.passages:.3f} ms a passage; load {os.getloadavg()[0]:.1f}\n"
        f"seconds of units: {', '.join(f'{name} {value:.2f}' for name, value in seconds.items())}\n"
    )


def main() -> None:
    """Run the parts named on the command line."""
    cores = len(os.sched_getaffinity(0))
    cases = {"null": null, "timed": timed}
    given = options(
        __doc__, cases=cases, megabytes=12.0, whole=False, rate=20_000 / 8 * cores, units=1, processes=0
    )
    os.environ[PROCESSES_ENVIRONMENT] = str(given.processes)
    # In the thread that asks, so that its time is counted for the step.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    print(environment("tokenizers", "pyarrow", "numba"))
    for name in given.cases:
        print(f"## {name}{', uncut' if given.whole else ''}\n")
        with folder_of() as folder:
            cases[name](given, folder)


if __name__ == "__main__":
    main()
