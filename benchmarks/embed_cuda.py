"""The encoder on a GPU: throughput beside sentence-transformers, a stream, latency, and memory that is too short.

Part `cuda` of benchmarks.embed. All calls take turns in one process and end with vectors on the host.

Legend: N texts, D dimensions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.embed import chunks, costs_in_turns, linears, paragraphs
from benchmarks.harness import MINILM, in_turns, table, timed
from scannery.embed import Encoder
from scannery.embed.devices.protocol import cosines
from scannery.embed.models.model_files import find_model

__all__ = ["measure"]

DEVICE = "cuda"
BATCHES = (32, 128, 512)
"""Texts in a batch of the library, whose default is 32."""
COMPARED = 1_000
"""Passages whose vectors are compared with those of the CPU in float32."""
BATCH_TOKENS = 32_768
"""Rows of the products whose rate counts as the peak: those of a full batch."""
QUESTION = "how do volcanoes form and why do they erupt"
ROOM_BYTES = (96 << 20, 48 << 20, 24 << 20)
"""Memory left for batches in the test of short memory; a full batch of MiniLM takes several times as much."""

Call = Callable[[], np.ndarray]


def measure(passages: int, rounds: int, streamed: int) -> None:
    """Print all tables.

    Args:
        passages: in a call of the throughput tables.
        rounds: of the throughput tables.
        streamed: passages of the stream.

    """
    import torch

    print(f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}\n")
    here = Encoder.load(MINILM, device="cpu", dtype="float32")
    corpora = {"chunks": chunks(here), "paragraphs": paragraphs()}
    fast = Encoder.load(MINILM, device=DEVICE)
    few = corpora["chunks"][:passages]
    parts: dict[str, Callable[[], str]] = {
        "all-MiniLM-L6-v2": lambda: minilm(here, fast, corpora, passages, rounds),
        "A stream": lambda: stream(fast, corpora, streamed),
        "One query": lambda: latency(fast),
        "Short memory": lambda: short_memory(fast, few),
    }
    for name, part in parts.items():
        print(f"### {name}\n\n{part()}\n", flush=True)


# --- throughput


def minilm(here: Encoder, fast: Encoder, corpora: dict[str, list[str]], passages: int, rounds: int) -> str:
    """Return the table of the real model, with the cosines to the vectors of the CPU in float32."""
    exact, padded = Encoder.load(MINILM, device=DEVICE, dtype="float32"), Encoder.load(MINILM, device=DEVICE)
    padded._device._packs = False  # type: ignore[attr-defined]
    encoders = {"Scannery, padded": padded, "Scannery, float32": exact, "Scannery": fast}
    libraries = {dtype: library(find_model(MINILM), dtype) for dtype in ("float32", "bfloat16")}
    rows: list[list[str]] = []
    for kind, corpus in corpora.items():
        texts = corpus[:passages]
        expected_ND = here.encode_documents(texts[:COMPARED])
        rows += throughput(kind, texts, encoders, libraries, BATCHES, expected_ND, rounds)
    peaks = ", ".join(f"{name} {peak(libraries['float32'], name) / 1e12:.0f} TFLOP/s" for name in libraries)
    return f"Peak of the model's products at {BATCH_TOKENS:,} tokens: {peaks}\n\n{table(HEADER, rows)}"


HEADER = ["texts", "encoder", "type", "passages/s", "tokens/s", "speed-up", "min cosine", "share of peak"]


def throughput(
    kind: str,
    texts: list[str],
    encoders: dict[str, Encoder],
    libraries: dict[str, Any],
    batches: Sequence[int],
    expected_ND: np.ndarray,
    rounds: int,
) -> list[list[str]]:
    """Return a row for each encoder, and for each size of batch and type of the library; the first row is the base."""
    calls: dict[tuple[str, str], Call] = {
        (f"SentenceTransformer.encode({size})", dtype): partial(
            model.encode, texts, batch_size=size, show_progress_bar=False
        )
        for dtype, model in libraries.items()
        for size in batches
    }
    calls |= {(name, one.dtype): partial(one.encode_documents, texts) for name, one in encoders.items()}
    seconds, vectors = costs_in_turns(
        {f"{name}, {dtype}": call for (name, dtype), call in calls.items()}, rounds
    )
    [first, *_] = encoders.values()
    tokens = int(first._documents.prepare(texts).lengths_N.sum())
    model = next(iter(libraries.values()))
    flop = sum(2 * wide * deep for wide, deep in linears(model))
    peaks = {dtype: peak(model, dtype) for _, dtype in calls}
    base = statistics.median(wall for wall, _ in next(iter(seconds.values())))
    rows = []
    for name, dtype in calls:
        key = f"{name}, {dtype}"
        median = statistics.median(wall for wall, _ in seconds[key])
        share = tokens * flop / median / peaks[dtype]
        cosine = cosines(vectors[key][: len(expected_ND)], expected_ND).min()
        rows.append([
            f"{kind}, {len(texts)}", name, dtype, f"{len(texts) / median:,.0f}", f"{tokens / median:,.0f}",
            f"{base / median:.2f}", f"{cosine:.5f}", f"{share:.0%}",
        ])  # fmt: skip
    return rows


def library(folder: Path, dtype: str) -> Any:
    """Return the model of sentence-transformers on the GPU."""
    import torch
    from sentence_transformers import SentenceTransformer

    options = {"dtype": getattr(torch, dtype)}
    return SentenceTransformer(str(folder), device=DEVICE, local_files_only=True, model_kwargs=options)


def peak(model: Any, dtype: str) -> float:
    """Return the FLOP/s of the model's matrix products alone, of random numbers, for a full batch of tokens."""
    import torch

    flop = seconds = 0.0
    shapes = linears(model)
    for wide, deep in set(shapes):
        options: Any = {"dtype": getattr(torch, dtype), "device": DEVICE}
        x, weight = torch.randn(BATCH_TOKENS, wide, **options), torch.randn(deep, wide, **options)
        count = shapes.count((wide, deep))
        flop += count * 2 * BATCH_TOKENS * wide * deep
        seconds += count * repeated(partial(torch.nn.functional.linear, x, weight))
    return flop / seconds


def repeated(call: Callable[[], Any], times: int = 20, rounds: int = 5) -> float:
    """Return the seconds that the GPU takes for a call: the median of rounds of several."""
    import torch

    taken = []
    for _ in range(rounds + 1):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(times):
            call()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - started) / times)
    return statistics.median(taken[1:])  # the first one warms up


# --- a stream


def stream(encoder: Encoder, corpora: dict[str, list[str]], count: int) -> str:
    """Return a table of streams of `count` different texts, and of the model alone on batches that are on the GPU."""
    import torch

    rows = []
    for kind, corpus in corpora.items():
        texts = (f"{n} {corpus[n * 7919 % len(corpus)]}" for n in range(count))
        torch.cuda.reset_peak_memory_stats()
        before = encoder.statistics()
        waited = tokenising = 0.0
        started = time.perf_counter()
        for window in encoder.encode_windows(texts):
            waited, tokenising = waited + window.wait_s, tokenising + window.tokenise_s
        wall = time.perf_counter() - started
        done = encoder.statistics() - before
        alone = model_alone(encoder, corpus)
        rows.append([
            f"{kind}, {count:,}", f"{count / wall:,.0f}", f"{done.tokens / wall:,.0f}", f"{alone:,.0f}",
            f"{done.tokens / wall / alone:.0%}", f"{waited / wall:.0%}", f"{tokenising / wall:.0%}",
            f"{torch.cuda.max_memory_allocated() / 2**20:,.0f}",
        ])  # fmt: skip
    header = ["texts", "passages/s", "tokens/s", "tokens/s, model alone", "share of it", "waiting for tokens"]
    return table([*header, "tokenising, of the time", "most GPU memory, MiB"], rows)


def model_alone(encoder: Encoder, texts: list[str]) -> float:
    """Return the tokens per second of the model on full batches that are on the GPU already."""
    import torch

    device: Any = encoder._device
    items, lengths_N, _ = encoder._documents.prepare(texts)
    batches = list(islice(device.batches(lengths_N), 32))
    features = [
        device._on_device(encoder._documents.collate([items[row] for row in batch.positions], batch.bucket))
        for batch in batches
    ]

    def all_batches() -> None:
        for one in features:
            device._forward(device._model, dict(one))

    with torch.inference_mode():
        seconds = repeated(all_batches, times=1)
    return float(sum(lengths_N[batch.positions].sum() for batch in batches) / seconds)


# --- one query


def latency(encoder: Encoder) -> str:
    """Return a table of one short question, in turns, on the GPU and on this machine's CPU."""
    on_cpu = Encoder.load(MINILM, device="cpu")
    calls: dict[str, Callable[[], Any]] = {
        f"Scannery, {encoder.dtype}": lambda: encoder.encode_queries([QUESTION])
    }
    for dtype in ("float32", "bfloat16"):
        asked = partial(library(find_model(MINILM), dtype).encode, [QUESTION], show_progress_bar=False)
        calls[f"SentenceTransformer.encode, {dtype}"] = asked
    calls[f"Scannery on the CPU, {on_cpu.dtype}"] = lambda: on_cpu.encode_queries([QUESTION])

    def fifty(call: Callable[[], Any]) -> list[float]:
        for _ in range(10):
            call()
        return [timed(call) for _ in range(50)]

    times = in_turns({name: partial(fifty, call) for name, call in calls.items()}, 10)
    rows = [
        [name, *(f"{1000 * float(np.percentile(taken, part)):.2f}" for part in (50, 99))]
        for name, taken in times.items()
    ]
    return table(["encoder", "p50, ms", "p99, ms"], rows)


# --- short memory


def short_memory(whole: Encoder, texts: list[str]) -> str:
    """Return a table of what happens when batches get less and less of the GPU's memory."""
    import torch

    expected_ND = whole.encode_documents(texts)
    total = torch.cuda.get_device_properties(0).total_memory
    rows = []
    for room in ROOM_BYTES:
        encoder = Encoder.load(MINILM, device=DEVICE)
        device: Any = encoder._device
        torch.cuda.empty_cache()
        try:
            torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + room) / total)
            started = time.perf_counter()
            vectors_ND = encoder.encode_documents(texts)
            seconds = time.perf_counter() - started
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        rows.append([
            room >> 20, device._budget.tokens, f"{len(texts) / seconds:,.0f}",
            f"{np.abs(vectors_ND - expected_ND).max():.1e}", f"{cosines(vectors_ND, expected_ND).min():.6f}",
        ])  # fmt: skip
    header = ["room for batches, MiB", "tokens of a batch at the end", "passages/s"]
    return table([*header, "largest difference", "min cosine"], rows)
