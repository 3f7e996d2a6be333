"""Models that are trained: how they are loaded from what an index names, and how their files are checked."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from scannery.embed import Encoder
from scannery.embed.devices.factory import device_kind
from scannery.embed.devices.precision import fastest_dtype
from scannery.embed.encoder import PROBE_TEXTS
from scannery.embed.models.loading import ModelOptions
from scannery.embed.models.trainable import TrainableModel
from scannery.indexer.spec.spec import EncoderSpec
from scannery.pipelines.errors import CollectionError

__all__ = ["matrix_dtype", "on_device", "save_checked", "trainable"]

AGREEMENT = 1e-5
"""Largest difference of a component between the trained model and the encoder that serves its files."""


def trainable(folder: Path, base: EncoderSpec) -> TrainableModel:
    """Return the model in a folder, with the options and on the device of an encoder."""
    return TrainableModel(folder, ModelOptions(**base.options), base.device)


def on_device(base: EncoderSpec, device: str | None) -> EncoderSpec:
    """Return an encoder on a device, by its name in options; None: its own."""
    return base if device is None else base.model_copy(update={"device": device})


def matrix_dtype(device: str) -> str:
    """Return the type that matrices are multiplied in: bfloat16 where it is quicker, which needs no scaled losses."""
    kind = device_kind(device)
    if kind == "xla" and os.environ.get("PJRT_DEVICE") != "TPU":
        return "float32"
    return "bfloat16" if fastest_dtype(kind) == "bfloat16" else "float32"


def save_checked(model: TrainableModel, folder: Path, base: EncoderSpec) -> None:
    """Write a trained model to a folder, unless the encoder that serves its files makes other vectors than it.

    Raises:
        CollectionError: it does.

    """
    model.save(folder)
    texts = list(PROBE_TEXTS)
    encoder = Encoder.load(folder, device="cpu", dtype="float32", **base.options)
    served = encoder.encode_queries(texts), encoder.encode_documents(texts)
    trained = (model.encoded(model.prepare(texts, side), side).numpy() for side in ("query", "document"))
    difference = float(np.max([np.abs(a - b) for a, b in zip(served, trained, strict=True)]))
    if not difference <= AGREEMENT:  # also of NaN
        raise CollectionError(
            f"the vectors of the trained model and of the encoder that serves its files differ by {difference:.1e}",
            field="index",
        )
