"""Cross-encoders: the same scores as the library's, and nothing that is not one."""

from __future__ import annotations

import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from scannery.embed import DeviceError, InvalidModelError, ModelNotFoundError, Reranker
from tests.embed.tiny_models import make_cross_encoder

TEXTS = ["Magma rises through cracks.", "The dog sleeps on.", "", "日本語の文章です。", "fox " * 200] * 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cross_encoder(tmp_path_factory.mktemp("cross"))


@pytest.mark.system
def test_scores_are_those_of_the_library(model: Path) -> None:
    from sentence_transformers import CrossEncoder

    reranker = Reranker.load(model, device="cpu")
    scores = reranker.scores("how do volcanoes form", TEXTS)
    right = CrossEncoder(str(model), device="cpu").predict(
        [("how do volcanoes form", text) for text in TEXTS]
    )
    assert scores.dtype == np.float32
    assert scores == pytest.approx(np.asarray(right), abs=1e-5)
    assert reranker.scores("a query", []).shape == (0,)


@pytest.mark.system
def test_threads_may_share_one(model: Path) -> None:
    reranker = Reranker.load(model)
    alone = reranker.scores("the fox", TEXTS)
    with ThreadPoolExecutor(4) as pool:
        for scores in pool.map(lambda _: reranker.scores("the fox", TEXTS), range(8)):
            assert scores == pytest.approx(alone, abs=1e-5)


@pytest.mark.system
def test_what_is_no_reranker_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidModelError, match="has 3 outputs; a reranker has one"):
        Reranker.load(make_cross_encoder(tmp_path / "three", labels=3))
    with pytest.raises(ModelNotFoundError):
        Reranker.load(tmp_path / "nothing")
    with pytest.raises(DeviceError, match="runs on auto, cpu, cuda or cuda:N, got 'xla'"):
        Reranker.load(model, device="xla")
    damaged = Path(shutil.copytree(model, tmp_path / "damaged"))
    (damaged / "model.safetensors").write_bytes(b"nonsense")
    with pytest.raises(InvalidModelError, match="cannot load"):
        Reranker.load(damaged)


def test_no_code_of_the_model_is_run(model: Path, tmp_path: Path) -> None:
    custom = Path(shutil.copytree(model, tmp_path / "custom"))
    config = json.loads((custom / "config.json").read_text())
    ours = {"auto_map": {"AutoModelForSequenceClassification": "evil.Model"}, "model_type": "evil"}
    (custom / "config.json").write_text(json.dumps({**config, **ours}))
    (custom / "evil.py").write_text("raise SystemExit('it ran')")
    with pytest.raises(InvalidModelError, match="custom code"):
        Reranker.load(custom)
