"""OpenVINO and ONNX Runtime as encoders, for benchmarks.embed: the same model, tokens and order of texts as ours.

They are compiled from the model in float32. Texts are sorted by length and computed in batches of about equal length,
as many at once as there are cores, which suits both better than one batch on all cores.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from scannery.embed import Encoder
from scannery.embed.batching import Batch, snug_batches
from scannery.embed.models.loading import ModelOptions, load_model

__all__ = ["Peer", "peers"]

ENOUGH_TOKENS = 384
CORES = len(os.sched_getaffinity(0))

Arrays = tuple[np.ndarray, np.ndarray]
"""Token ids and attention mask of a batch, int64 (B, T)."""
Run = Callable[[Iterator[tuple[Batch, Arrays]], np.ndarray], None]
"""Computes batches, and stores their vectors by position."""


class Peer:
    """An encoder: our tokens, batches by length, a runtime."""

    def __init__(self, name: str, encoder: Encoder, run: Run, budget: int, dtype: str) -> None:
        """Prepare.

        Args:
            name: for the report.
            encoder: makes the tokens.
            run: the runtime.
            budget: tokens in a batch.
            dtype: that it multiplies in.

        """
        self.name, self.dtype = name, dtype
        self._tokens, self._dimensions = encoder._documents, encoder.dimensions
        self._run, self._budget = run, budget

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of texts, float32 (N, D)."""
        prepared = self._tokens.prepare(texts)
        vectors_ND = np.empty((len(texts), self._dimensions), np.float32)

        def batches() -> Iterator[tuple[Batch, Arrays]]:
            for batch in snug_batches(prepared.lengths_N, self._budget, min(ENOUGH_TOKENS, self._budget)):
                yield batch, _padded([prepared.items[row] for row in batch.positions])

        self._run(batches(), vectors_ND)
        return vectors_ND


def peers(encoder: Encoder) -> list[Peer]:
    """Return the peers for throughput and for latency.

    Args:
        encoder: makes the tokens; its model is loaded again for the peers.

    """
    found = []
    module = _module(encoder)
    for hint in ("throughput", "latency"):
        for budget in (1024, 4096):
            run = _openvino(module, hint)
            found.append(Peer(f"OpenVINO bfloat16, {hint}, {budget}", encoder, run, budget, "bfloat16"))
    with tempfile.TemporaryDirectory() as folder:
        path = _onnx(module, Path(folder))
        for threads in (1, CORES):
            label = "a thread for each batch" if threads == 1 else "all cores for a batch"
            found.append(
                Peer(f"ONNX Runtime float32, {label}", encoder, _onnxruntime(path, threads), 1024, "float32")
            )
        small = _int8(path)
        found.append(
            Peer("ONNX Runtime int8, a thread for each batch", encoder, _onnxruntime(small, 1), 1024, "int8")
        )
    return found


def _padded(items: Sequence[np.ndarray]) -> Arrays:
    ids_BT = np.zeros((len(items), max(map(len, items))), np.int64)
    mask_BT = np.zeros_like(ids_BT)
    for row, ids in enumerate(items):
        ids_BT[row, : len(ids)], mask_BT[row, : len(ids)] = ids, 1
    return ids_BT, mask_BT


def _module(encoder: Encoder) -> Any:
    import torch

    class Vectors(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            features = {"input_ids": input_ids, "attention_mask": attention_mask}
            return self.model(features)["sentence_embedding"]

    # Plain layers: those of a placed model are oneDNN's already.
    model, _ = load_model(encoder.fingerprint.model, ModelOptions(), "cpu")
    return Vectors(model).eval()


def _example() -> tuple[Any, Any]:
    import torch

    mask_BT = torch.ones((3, 17), dtype=torch.int64)
    mask_BT[1, 9:] = 0
    return torch.randint(1000, 20_000, (3, 17)), mask_BT


def _openvino(module: Any, hint: str) -> Run:
    import openvino

    ids_BT, mask_BT = _example()
    model = openvino.convert_model(
        module, example_input={"input_ids": ids_BT, "attention_mask": mask_BT}, input=[[-1, -1], [-1, -1]]
    )
    compiled = openvino.compile_model(
        model, "CPU", {"PERFORMANCE_HINT": hint.upper(), "INFERENCE_PRECISION_HINT": "bf16"}
    )

    def run(batches: Iterator[tuple[Batch, Arrays]], vectors_ND: np.ndarray) -> None:
        queue = openvino.AsyncInferQueue(compiled)

        def done(request: Any, positions: np.ndarray) -> None:
            vectors_ND[positions] = request.get_output_tensor(0).data

        queue.set_callback(done)
        for batch, arrays in batches:
            queue.start_async(list(arrays), batch.positions)
        queue.wait_all()

    return run


def _onnx(module: Any, folder: Path) -> Path:
    """Return the file of the model for ONNX Runtime, with its fused attention where its optimiser finds it."""
    import torch

    path = folder / "model.onnx"
    names = ["input_ids", "attention_mask"]
    axes = {name: {0: "texts", 1: "tokens"} for name in names} | {"vectors": {0: "texts"}}
    with torch.inference_mode():
        torch.onnx.export(
            module, _example(), path, input_names=names, output_names=["vectors"], dynamic_axes=axes,
            opset_version=17, dynamo=False,
        )  # fmt: skip
    return path


def _onnxruntime(path: Path, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    pool = ThreadPoolExecutor(CORES // threads)

    def run(batches: Iterator[tuple[Batch, Arrays]], vectors_ND: np.ndarray) -> None:
        def one(item: tuple[Batch, Arrays]) -> None:
            batch, (ids_BT, mask_BT) = item
            [vectors_ND[batch.positions]] = session.run(
                None, {"input_ids": ids_BT, "attention_mask": mask_BT}
            )

        for _ in pool.map(one, batches):
            pass

    return run


def _int8(path: Path) -> Path:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    small = path.with_name("int8.onnx")
    quantize_dynamic(path, small, weight_type=QuantType.QInt8, per_channel=True)
    return small
