"""Embedding engine: speed and fidelity against sentence-transformers, retrieval quality, memory, latency, CUDA, XLA.

    python -m benchmarks.embed [speed] [quality] [memory] [latency]        (peers: scannery[bench-encoders])
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
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.report import environment, shared_data, table
from scannery.embed import Encoder
from scannery.embed.devices.protocol import cosines
from scannery.embed.models.model_files import find_model

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
LIBRARY = "SentenceTransformer.encode(batch_size=32)"
SHOWS = ("gotime", "founderstalk", "practicalai")


def main() -> None:
    """Run the parts named on the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = {
        "speed": speed, "quality": quality, "memory": memory, "latency": latency, "cuda": cuda, "xla": xla,
    }  # fmt: skip
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="default: all but cuda and xla")
    parser.add_argument("--passages", type=int, default=700, help="passages for `speed` and `cuda`")
    parser.add_argument("--rounds", type=int, default=3, help="rounds for `speed` and `cuda`")
    parser.add_argument("--stream", type=int, default=200_000, help="passages of the stream of `cuda`")
    parser.add_argument("--peak-rss", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.peak_rss:
        print(peak_rss_kib(arguments.peak_rss))
        return
    chosen = arguments.parts or ["speed", "quality", "memory", "latency"]
    packages = ["torch", "transformers", "sentence-transformers", "tokenizers"]
    if {"speed", "latency"}.intersection(chosen):
        packages += ["openvino", "onnxruntime"]
    print(environment(*packages, *(["torch_xla"] if "xla" in chosen else [])), "\n")
    for name in chosen:
        print(f"## {name}\n")
        parts[name](arguments)


# --- speed


def speed(arguments: argparse.Namespace) -> None:
    """Measure passages per second, in turns with peers, and the share of the processor's peak."""
    import torch

    from benchmarks.embed_peers import peers

    reference = sentence_transformer()
    exact, fast = Encoder.load(MODEL, device="cpu", dtype="float32"), Encoder.load(MODEL, device="cpu")
    others = peers(exact)
    peak = {"float32": gemm_peak(torch.float32), "bfloat16": gemm_peak(torch.bfloat16)}
    print(
        f"GEMM peak of the model's shapes: {', '.join(f'{k} {v / 1e9:.0f} GFLOP/s' for k, v in peak.items())}\n"
    )
    flop = linear_flop_per_token(reference)
    rows = []
    for kind, texts in (("paragraphs", paragraphs()), ("chunks", chunks(exact))):
        texts = texts[: arguments.passages]  # noqa: PLW2901
        calls: dict[str, tuple[str, Callable[[], np.ndarray]]] = {
            LIBRARY: ("float32", partial(reference.encode, texts, batch_size=32, show_progress_bar=False)),
            "Scannery float32": ("float32", partial(exact.encode_documents, texts)),
            f"Scannery {fast.dtype}": (fast.dtype, partial(fast.encode_documents, texts)),
        }
        calls |= {peer.name: (peer.dtype, partial(peer.encode, texts)) for peer in others}
        seconds, vectors = in_turns({name: call for name, (_, call) in calls.items()}, arguments.rounds)
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


def in_turns(
    calls: Mapping[str, Callable[[], np.ndarray]], rounds: int
) -> tuple[dict[str, list[tuple[float, float]]], Any]:
    """Return seconds of wall and of CPU time per call and round, and the vectors.

    The calls take turns, so that all run under the same load of the machine.
    """
    vectors = {name: call() for name, call in calls.items()}  # also the warm-up
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started, used = time.perf_counter(), time.process_time()
            call()
            seconds[name].append((time.perf_counter() - started, time.process_time() - used))
    return seconds, vectors


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


def linear_flop_per_token(model: Any) -> int:
    """Return the floating-point operations of all Linear layers of the transformer per token."""
    import torch

    linears = [m for n, m in model[0].named_modules() if isinstance(m, torch.nn.Linear) and "pooler" not in n]
    return sum(2 * m.in_features * m.out_features for m in linears)


# --- quality


def quality(_: argparse.Namespace) -> None:
    """Measure nDCG@10 with the fast path and with float32, on two classic collections."""
    rows = []
    exact, fast = Encoder.load(MODEL, device="cpu", dtype="float32"), Encoder.load(MODEL, device="cpu")
    for name, (documents, queries, relevant) in {"Cranfield": cranfield(), "CISI": cisi()}.items():
        scores = [ndcg_at_10(encoder, documents, queries, relevant) for encoder in (exact, fast)]
        rows.append(
            [
                name,
                f"{len(documents)} / {len(relevant)}",
                *(f"{s:.4f}" for s in scores),
                f"{scores[1] - scores[0]:+.4f}",
            ]
        )
    print(table(["collection", "documents / queries", "float32", fast.dtype, "difference"], rows))


def ndcg_at_10(
    encoder: Encoder, documents: dict[int, str], queries: dict[int, str], relevant: dict[int, set[int]]
) -> float:
    """Return the mean nDCG@10 with binary gains over the queries that have a relevant document."""
    ids = np.array(list(documents))
    asked = [query for query in queries if relevant.get(query)]
    scores_QN = (
        encoder.encode_queries([queries[q] for q in asked])
        @ encoder.encode_documents(list(documents.values())).T
    )
    discounts = 1 / np.log2(np.arange(2, 12))
    values = []
    for query, scores_N in zip(asked, scores_QN, strict=True):
        top = ids[np.argsort(-scores_N, kind="stable")[:10]]
        gains = np.array([document in relevant[query] for document in top])
        values.append((gains * discounts).sum() / discounts[: min(10, len(relevant[query]))].sum())
    return float(np.mean(values))


def cranfield() -> Any:
    """Return documents, queries and relevant documents; query ids are ordinals, and level -1 is no judgement."""
    documents = smart(shared_data("ir-cranfield", "cran.all.1400").read_text(errors="replace"))
    queries = smart(shared_data("ir-cranfield", "cran.qry").read_text(errors="replace"))
    relevant: dict[int, set[int]] = {}
    for line in shared_data("ir-cranfield", "cranqrel").read_text().splitlines():
        query, document, level = map(int, line.split()[:3])
        if level > 0:
            relevant.setdefault(query, set()).add(document)
    return documents, dict(enumerate(queries.values(), 1)), relevant


def cisi() -> Any:
    """Return documents, queries and relevant documents."""
    documents = smart(shared_data("ir-cisi", "CISI.ALL").read_text(errors="replace"))
    queries = smart(shared_data("ir-cisi", "CISI.QRY").read_text(errors="replace"))
    relevant: dict[int, set[int]] = {}
    for line in shared_data("ir-cisi", "CISI.REL").read_text().splitlines():
        query, document = map(int, line.split()[:2])
        relevant.setdefault(query, set()).add(document)
    return documents, queries, relevant


def smart(text: str) -> dict[int, str]:
    """Return id → title and body of a collection in the SMART format."""
    records = {}
    for record in re.split(r"^\.I\s+", text, flags=re.MULTILINE)[1:]:
        fields = re.findall(
            r"^\.([TW])[^\n]*\n(.*?)(?=^\.[A-Z]\s|\Z)", record, flags=re.MULTILINE | re.DOTALL
        )
        # Cranfield repeats the title at the start of the body.
        parts = dict(fields)
        body = " ".join(parts.get("W", "").split())
        title = " ".join(parts.get("T", "").split())
        records[int(record.split(None, 1)[0])] = body if body.startswith(title) else f"{title} {body}"
    return records


# --- memory


def memory(_: argparse.Namespace) -> None:
    """Measure the peak memory of a process that streams passages, which must not depend on their number."""
    rows: list[list[object]] = []
    peaks: list[int] = []
    for count in (10_000, 100_000):
        command = [sys.executable, "-m", "benchmarks.embed", "--peak-rss", str(count)]
        peaks.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout) // 1024)
        rows.append([count, peaks[-1]])
    rows.append(["ratio", f"{peaks[1] / peaks[0]:.3f}"])
    print(table(["passages", "peak RSS, MiB"], rows))


def peak_rss_kib(count: int) -> int:
    """Return this process' peak memory after a stream of `count` passages, cut short to take less time."""
    import resource

    encoder = Encoder.load(MODEL, device="cpu")
    texts = [text[:60] for text in paragraphs()]
    stream = (f"{n} {texts[n % len(texts)]}" for n in range(count))
    if sum(len(block) for block in encoder.encode_stream(stream)) != count:
        raise SystemExit("vectors were lost")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# --- latency


def latency(_: argparse.Namespace) -> None:
    """Measure the time of one short query, in turns with peers, and the load time."""
    from benchmarks.embed_peers import peers

    started = time.perf_counter()
    encoder = Encoder.load(MODEL, device="cpu")
    loaded = time.perf_counter() - started
    reference = sentence_transformer()
    question = "how do volcanoes form and why do they erupt"
    calls: dict[str, Callable[[], Any]] = {
        "SentenceTransformer.encode": lambda: reference.encode([question], show_progress_bar=False),
        f"Scannery {encoder.dtype}": lambda: encoder.encode_queries([question]),
    }
    for peer in peers(Encoder.load(MODEL, device="cpu", dtype="float32")):
        if "latency, 1024" in peer.name or "all cores" in peer.name:
            calls[peer.name] = partial(peer.encode, [question])
    first = {name: timed(call) for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _turn in range(10):
        for name, call in calls.items():
            call()
            times[name] += [timed(call) for _ in range(30)]
    rows = []
    for name, taken in times.items():
        ordered = sorted(taken)
        rows.append([name, *(f"{t * 1000:.2f}" for t in (first[name], ordered[150], ordered[285]))])
    print(table(["encoder", "first query, ms", "p50, ms", "p95, ms"], rows))
    print(f"\nLoading, with the import of torch and sentence-transformers: {loaded:.1f} s")


def timed(call: Callable[[], Any]) -> float:
    """Return the duration of `call` in seconds."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


# --- accelerators, in modules of their own


def cuda(arguments: argparse.Namespace) -> None:
    """Measure throughput, a stream, latency and a lack of memory on a GPU."""
    from benchmarks.embed_cuda import measure

    measure(arguments.passages, arguments.rounds, arguments.stream)


def xla(_: argparse.Namespace) -> None:
    """Measure compilations after warm-up, the difference to the CPU, padding, and the host's time for a step."""
    from benchmarks.embed_xla import measure

    measure()


# --- texts


def sentence_transformer() -> Any:
    """Return the reference model, loaded by sentence-transformers."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(find_model(MODEL)), device="cpu", local_files_only=True)


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


def transcripts() -> Iterator[str]:
    """Yield some of the transcripts, the same in every run."""
    for show in SHOWS:
        with tarfile.open(shared_data("podcasts-changelog", f"{show}.tar.gz")) as archive:
            members = sorted(
                (m for m in archive.getmembers() if m.name.endswith(".md")), key=lambda m: m.name
            )
            for member in members[::8]:
                if stream := archive.extractfile(member):
                    yield stream.read().decode()


if __name__ == "__main__":
    main()
