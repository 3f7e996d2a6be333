"""Embedding engine: speed and fidelity against sentence-transformers, retrieval quality, memory, latency, CUDA, XLA.

    python -m benchmarks.embed [speed] [quality] [memory] [latency]   (by default; peers: scannery[bench-encoders])
    python -m benchmarks.embed cuda        (on a machine with a GPU)
    PYTHONPATH=src:. PJRT_DEVICE=CPU .venv-xla/bin/python -m benchmarks.embed xla        (after `make test-xla`)

Real passages: the podcast transcripts of the real data folder, as paragraphs (mixed lengths) and as the chunker
cuts them. Peers run in turns in one process; compare the ratios.
"""

from __future__ import annotations

import argparse
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks import data
from benchmarks.collections import COLLECTIONS, Collection
from benchmarks.harness import MINILM, environment, in_turns, options, table, timed
from scannery.embed import Encoder
from scannery.embed.devices.protocol import cosines
from scannery.embed.models.model_files import find_model

__all__ = ["chunks", "costs_in_turns", "linears", "paragraphs"]

LIBRARY = "SentenceTransformer.encode(batch_size=32)"
SHOWS = ("gotime", "founderstalk", "practicalai")


# --- speed


def speed(arguments: argparse.Namespace) -> None:
    """Measure passages per second, in turns with peers, and the share of the processor's peak."""
    import torch

    from benchmarks.embed_peers import peers

    reference = sentence_transformer()
    exact, fast = Encoder.load(MINILM, device="cpu", dtype="float32"), Encoder.load(MINILM, device="cpu")
    others = peers(exact)
    peak = {"float32": gemm_peak(torch.float32), "bfloat16": gemm_peak(torch.bfloat16)}
    print(
        f"GEMM peak of the model's shapes: {', '.join(f'{k} {v / 1e9:.0f} GFLOP/s' for k, v in peak.items())}\n"
    )
    flop = sum(2 * wide * deep for wide, deep in linears(reference))
    rows = []
    for kind, texts in (("paragraphs", paragraphs()), ("chunks", chunks(exact))):
        texts = texts[: arguments.passages]  # noqa: PLW2901
        calls: dict[str, tuple[str, Callable[[], np.ndarray]]] = {
            LIBRARY: ("float32", partial(reference.encode, texts, batch_size=32, show_progress_bar=False)),
            "Scannery float32": ("float32", partial(exact.encode_documents, texts)),
            f"Scannery {fast.dtype}": (fast.dtype, partial(fast.encode_documents, texts)),
        }
        calls |= {peer.name: (peer.dtype, partial(peer.encode, texts)) for peer in others}
        seconds, vectors = costs_in_turns({name: call for name, (_, call) in calls.items()}, arguments.rounds)
        tokens = int(exact._documents.prepare(texts).lengths_N.sum())
        for name, (dtype, _) in calls.items():
            median, used = (statistics.median(s[i] for s in seconds[name]) for i in (0, 1))
            wall, cpu = (ratio(seconds[LIBRARY], seconds[name], i) for i in (0, 1))
            share = tokens * flop / median / peak[dtype] if dtype in peak else 0.0
            rows.append([
                f"{kind}, {len(texts)}", name, f"{len(texts) / median:.0f}", f"{tokens / median:.0f}",
                f"{wall:.2f}", f"{used / tokens * 1e6:.0f}", f"{cpu:.2f}",
                f"{cosines(vectors[name], vectors[LIBRARY]).min():.5f}", f"{share:.0%}" if share else "",
            ])  # fmt: skip
    speedups = ["speed-up", "CPU µs/token", "speed-up in CPU time"]
    header = ["texts", "encoder", "passages/s", "tokens/s", *speedups, "min cosine", "share of GEMM peak"]
    print(table(header, rows))


def ratio(base: list[tuple[float, float]], other: list[tuple[float, float]], part: int) -> float:
    """Return the median over the rounds of how many times as long `base` took, in wall (0) or CPU time (1)."""
    return statistics.median(b[part] / o[part] for b, o in zip(base, other, strict=True))


def costs_in_turns(
    calls: Mapping[str, Callable[[], np.ndarray]], rounds: int
) -> tuple[dict[str, list[tuple[float, float]]], dict[str, np.ndarray]]:
    """Return seconds of wall and of CPU time per call and round, and the vectors."""
    vectors = {name: call() for name, call in calls.items()}  # also the warm-up

    def cost(call: Callable[[], np.ndarray]) -> tuple[float, float]:
        used = time.process_time()
        return timed(call), time.process_time() - used

    return in_turns({name: partial(cost, call) for name, call in calls.items()}, rounds), vectors


def gemm_peak(dtype: Any) -> float:
    """Return this machine's peak FLOP/s on all cores, for the model's largest matrices in prepacked layout."""
    import torch

    x, weight = torch.randn(4096, 384).to(dtype), torch.randn(1536, 384).to(dtype)
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    best = float("inf")
    for _ in range(30):
        started = time.perf_counter()
        torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
        best = min(best, time.perf_counter() - started)
    return 2 * 4096 * 384 * 1536 / best


def linears(model: Any) -> list[tuple[int, int]]:
    """Return inputs and outputs of every matrix product of a token in the transformer."""
    import torch

    layers = [m for n, m in model[0].named_modules() if isinstance(m, torch.nn.Linear) and "pooler" not in n]
    return [(layer.in_features, layer.out_features) for layer in layers]


# --- quality


def quality(_: argparse.Namespace) -> None:
    """Measure nDCG@10 of exact search with the fast path and with float32, on two classic collections."""
    rows = []
    exact, fast = Encoder.load(MINILM, device="cpu", dtype="float32"), Encoder.load(MINILM, device="cpu")
    for collection in (make() for make in COLLECTIONS.values()):
        scores = [ndcg_at_10(encoder, collection) for encoder in (exact, fast)]
        size = f"{len(collection.documents)} / {len(collection.judgements)}"
        shown = [*(f"{score:.4f}" for score in scores), f"{scores[1] - scores[0]:+.4f}"]
        rows.append([collection.name, size, *shown])
    print(table(["collection", "documents / queries", "float32", fast.dtype, "difference"], rows))


def ndcg_at_10(encoder: Encoder, collection: Collection) -> float:
    """Return the mean nDCG@10 with binary gains over the queries that have a relevant document."""
    names = [name for name, _, _ in collection.documents]
    texts = [text if text.startswith(title) else f"{title} {text}" for _, title, text in collection.documents]
    asked = encoder.encode_queries([collection.queries[query] for query in collection.judgements])
    scores_QN = asked @ encoder.encode_documents(texts).T
    discounts, values = 1 / np.log2(np.arange(2, 12)), []
    for levels, scores_N in zip(collection.judgements.values(), scores_QN, strict=True):
        gains = np.array([names[row] in levels for row in np.argsort(-scores_N, kind="stable")[:10]])
        values.append((gains * discounts).sum() / discounts[: min(10, len(levels))].sum())
    return float(np.mean(values))


# --- memory


def memory(_: argparse.Namespace) -> None:
    """Measure the peak memory of a process that streams passages, which must not depend on their number."""
    rows: list[list[object]] = []
    peaks: list[int] = []
    for count in (10_000, 100_000):
        command = [sys.executable, "-m", "benchmarks.embed", "--peak", str(count)]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) // 1024)
        rows.append([count, peaks[-1]])
    rows.append(["ratio", f"{peaks[1] / peaks[0]:.3f}"])
    print(table(["passages", "peak RSS, MiB"], rows))


def peak_rss_kib(count: int) -> int:
    """Return this process' peak memory after a stream of `count` passages, cut short to take less time."""
    import resource

    encoder = Encoder.load(MINILM, device="cpu")
    texts = [text[:60] for text in paragraphs()]
    stream = (f"{n} {texts[n % len(texts)]}" for n in range(count))
    if sum(len(block) for block in encoder.encode_stream(stream)) != count:
        raise SystemExit("vectors were lost")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --- latency


def latency(_: argparse.Namespace) -> None:
    """Measure the time of one short query, in turns with peers, after the warm-up at load."""
    from benchmarks.embed_peers import peers

    encoder = Encoder.load(MINILM, device="cpu")
    reference = sentence_transformer()
    question = "how do volcanoes form and why do they erupt"
    calls: dict[str, Callable[[], Any]] = {
        "SentenceTransformer.encode": lambda: reference.encode([question], show_progress_bar=False),
        f"Scannery {encoder.dtype}": lambda: encoder.encode_queries([question]),
    }
    for peer in peers(Encoder.load(MINILM, device="cpu", dtype="float32")):
        if "latency, 1024" in peer.name or "all cores" in peer.name:
            calls[peer.name] = partial(peer.encode, [question])
    first = {name: timed(call) for name, call in calls.items()}
    turns = in_turns({name: partial(_thirty, call) for name, call in calls.items()}, 10)
    rows = []
    for name, taken in turns.items():
        ordered = sorted(second for turn in taken for second in turn)
        rows.append([name, *(f"{t * 1000:.2f}" for t in (first[name], ordered[150], ordered[285]))])
    print(table(["encoder", "first query, ms", "p50, ms", "p95, ms"], rows))


def _thirty(call: Callable[[], Any]) -> list[float]:
    call()
    return [timed(call) for _ in range(30)]


# --- texts


def sentence_transformer() -> Any:
    """Return the reference model, loaded by sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(find_model(MINILM)), device="cpu", local_files_only=True)


def paragraphs() -> list[str]:
    """Return the paragraphs of the transcripts in a fixed random order: real text of very mixed length."""
    texts = [p for text in transcripts() for p in re.split(r"\n\s*\n", text) if len(p) > 20]
    random.Random(1).shuffle(texts)
    return texts


def chunks(encoder: Encoder) -> list[str]:
    """Return the passages that an index of the transcripts would have, in a fixed random order."""
    chunker = encoder.chunker(128, 16)
    texts = [p.embedding_text for text in transcripts() for p in chunker.split(text)]
    random.Random(2).shuffle(texts)
    return texts


def transcripts() -> list[str]:
    """Return some of the transcripts, the same in every run."""
    return [text for show in SHOWS for _, text in list(data.transcripts(show))[::8]]


def main() -> None:
    """Run the parts named on the command line."""
    if sys.argv[1:2] == ["--peak"]:
        print(peak_rss_kib(int(sys.argv[2])))
        return
    parts: dict[str, Callable[[argparse.Namespace], None]] = {
        "speed": speed, "quality": quality, "memory": memory, "latency": latency, "cuda": cuda, "xla": xla,
    }  # fmt: skip
    given = options(__doc__, cases=parts, passages=700, rounds=3, stream=200_000)
    chosen = [*parts][:4] if given.cases == [*parts] else given.cases
    packages = ["torch", "transformers", "sentence-transformers", "tokenizers"]
    packages += ["openvino", "onnxruntime"] if {"speed", "latency"}.intersection(chosen) else []
    print(environment(*packages, *(["torch_xla"] if "xla" in chosen else [])))
    for name in chosen:
        print(f"## {name}\n")
        parts[name](given)


def cuda(given: argparse.Namespace) -> None:
    """Measure throughput, a stream, latency and a lack of memory on a GPU."""
    from benchmarks.embed_cuda import measure

    measure(given.passages, given.rounds, given.stream)


def xla(_: argparse.Namespace) -> None:
    """Measure compilations after warm-up, the difference to the CPU, padding, and the host's time for a step."""
    from benchmarks.embed_xla import measure

    measure()


if __name__ == "__main__":
    main()
