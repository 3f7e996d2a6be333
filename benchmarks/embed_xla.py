"""The encoder on XLA: compilations, padding, and the host's time for a step. Part `xla` of benchmarks.embed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.embed import chunks, paragraphs
from benchmarks.harness import MINILM, table
from scannery.embed import Encoder
from scannery.embed.batching import Bucket, fitted_batches

__all__ = ["measure"]


def measure() -> None:
    """Measure compilations after warm-up, the difference to the CPU, padding, and the host's time for a step."""
    from scannery.embed.devices import xla as device
    from scannery.embed.devices import xla as shapes
    from scannery.embed.devices.xla import compilations

    here = Encoder.load(MINILM, device="cpu", dtype="float32")
    corpus = chunks(here)
    rows: list[list[Any]] = []
    for kind, sample in (("paragraphs", paragraphs()), ("chunks", corpus)):
        rows.append(
            [f"padding share, 65,536 texts like {len(sample)} {kind}", f"{padding_share(here, sample):.1%}"]
        )
    # A TPU's steps would take a CPU half a minute each.
    small: dict[str, Any] = {"MAX_WIDTHS": 4, "BUDGET_TOKENS": 1024, "CHIP_TOKENS": 1024, "FEW_ROWS": (1, 8)}
    for name, value in small.items():
        setattr(shapes, name, value)
    device.BULK_TEXTS = 64
    texts = [" ".join(text.split()[: n % 200]) for n, text in enumerate(paragraphs()[:200])]  # all lengths
    there = Encoder.load(MINILM, device="xla", widths=here.plan_widths(corpus[:4000]))
    started = time.perf_counter()
    there.encode_queries(["warm"])
    there.encode_documents(corpus[:64])
    warm, first = compilations(), time.perf_counter() - started
    vectors = there.encode_documents(texts)
    there.encode_queries(texts[:5])
    error = np.abs(vectors - here.encode_documents(texts)).max()
    rows += [
        ["programs compiled by warm-up", warm],
        ["shapes", ", ".join(f"{b.rows}×{b.width}" for b in there._device.buckets)],  # type: ignore[attr-defined]
        ["warm-up and first 64 passages, s", f"{first:.1f}"],
        ["programs compiled after warm-up, 200 passages of all lengths and 5 queries", compilations() - warm],
        ["largest difference to the CPU, float32", f"{error:.1e}"],
    ]
    for name, seconds in host_seconds(there).items():
        rows.append([f"host time of a step, {name}, ms", f"{seconds * 1000:.2f}"])
    rows.append(["host time to pad 512×128 tokens, ms", f"{padding_seconds(here, corpus) * 1000:.2f}"])
    print(table(["XLA", ""], rows))


def padding_share(encoder: Encoder, texts: list[str]) -> float:
    """Return the padding share of 65,536 texts drawn from these, with shapes planned from 4,000 others."""
    from scannery.embed.devices.xla import STEP_TOKENS, bulk_buckets, few_row_buckets, plan_widths

    lengths = encoder._documents.prepare(texts)[1]
    drawn = np.random.default_rng(1).choice(lengths, 65_536 + 4_000)
    widths = plan_widths(drawn[65_536:], encoder.max_tokens)
    buckets = [*few_row_buckets(encoder.max_tokens), *bulk_buckets(widths)]
    batches = list(fitted_batches(drawn[:65_536], buckets, STEP_TOKENS))
    return 1 - float(drawn[:65_536].sum() / sum(b.bucket.rows * b.bucket.width for b in batches))


def host_seconds(encoder: Encoder) -> dict[str, float]:
    """Return the processor seconds of the calling thread for a step: traced in every call, and compiled by Dynamo."""
    import torch
    import torch_xla

    device: Any = encoder._device
    ids = torch.ones((8, 32), dtype=torch.int32)

    def traced(ids_BT: Any) -> Any:
        features = {"input_ids": ids_BT, "attention_mask": torch.ones_like(ids_BT)}
        return device._model(features, task="document")["sentence_embedding"]

    every_call = torch_xla.compile(traced, full_graph=True)
    ways: dict[str, Callable[[], Any]] = {
        "torch_xla.compile": lambda: every_call(ids.to(torch_xla.device())).cpu(),
        "torch.compile(backend='openxla')": lambda: device._call(0, ids, ids.to(torch.uint8)).cpu(),
    }
    result = {}
    with torch.no_grad():
        for name, way in ways.items():
            way()
            way()
            started = time.thread_time()
            for _ in range(20):
                way()
            result[name] = (time.thread_time() - started) / 20
    return result


def padding_seconds(encoder: Encoder, texts: list[str]) -> float:
    """Return the processor seconds to make one batch of 512 texts and 128 tokens, as XLA gets it."""
    import torch

    tokens = encoder._documents
    items = [ids[:128] for ids in tokens.prepare(texts[:512]).items]
    started = time.thread_time()
    for _ in range(20):
        features = tokens.collate(items, Bucket(512, 128, fixed=True))
        features["input_ids"].to(torch.int32), features["attention_mask"].to(torch.uint8)
    return (time.thread_time() - started) / 20
