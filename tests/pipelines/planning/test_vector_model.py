"""Vectors in files whose model the spec names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.indexer import Store, read_manifest
from scannery.pipelines import build
from scannery.pipelines.errors import SpecConflictError
from tests.served import MINILM


def built(folder: Path, count: int, **keys: Any) -> None:
    random = np.random.default_rng(0)
    rows = [{"id": f"row{row}", "vector": random.normal(size=384).tolist()} for row in range(count)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    spec = {"index": "given", "source": {"vector": "vector"}, **keys}
    build(spec, [str(folder / "rows.jsonl")], store_uri=str(folder / "store"))


def model(folder: Path) -> str | None:
    return read_manifest(Store.open(folder / "store"), "given").spec.vector_model


def test_the_model_is_part_of_the_version(tmp_path: Path) -> None:
    built(tmp_path, 5)
    assert model(tmp_path) is None
    built(tmp_path, 6, vector_model="org/model-a")  # an index that knew none gets one
    assert model(tmp_path) == "org/model-a"


def test_an_update_with_vectors_of_another_model_is_refused(tmp_path: Path) -> None:
    built(tmp_path, 5, vector_model="org/model-a")
    with pytest.raises(
        SpecConflictError, match=r"vector_model: the spec has org/model-b, the index has org/model-a"
    ):
        built(tmp_path, 6, vector_model="org/model-b")
    assert read_manifest(Store.open(tmp_path / "store"), "given").rows == 5


def test_vectors_are_of_the_encoder_of_queries(tmp_path: Path) -> None:
    with pytest.raises(
        SpecConflictError, match=r"vector_model: is 'org/other', but the encoder is '.*' \(digest "
    ):
        built(tmp_path, 5, vector_model="org/other", encoder={"model": MINILM})
    built(tmp_path, 5, vector_model=MINILM, encoder={"model": MINILM})
    assert model(tmp_path) == MINILM
