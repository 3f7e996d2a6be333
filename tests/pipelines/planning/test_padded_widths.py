"""Widths for XLA are planned from texts of the whole input, as they are embedded, where there is no XLA device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.indexer import Store
from scannery.indexer.manifest import VectorsInfo
from scannery.indexer.spec.spec import EncoderSpec
from scannery.indexer.spec.spec_files import parse_spec
from scannery.pipelines import RunnerError, build
from scannery.pipelines.job_planning import new_job
from scannery.pipelines.planning.build_plan import cut_input
from scannery.pipelines.planning.planned_encoder import (
    PlannedEncoder,
    load_encoder,
    sampled_passages,
    with_widths,
)
from scannery.pipelines.sources import find_files
from tests.embed.tiny_models import make_model

pytestmark = pytest.mark.system

SPEC: dict[str, Any] = {"index": "texts", "source": {"text": "text", "title": "title"}}


@pytest.fixture
def spec(tmp_path: Path) -> dict[str, Any]:
    return SPEC | {"encoder": {"model": str(make_model("bert-cls", tmp_path)), "device": "xla"}}


def planned(spec: dict[str, Any], inputs: list[Path], folder: Path) -> tuple[Any, list[str]]:
    parsed = parse_spec(spec)
    assert parsed.encoder is not None
    parts, _ = cut_input(find_files([str(path) for path in inputs]), parsed, None)
    encoder = PlannedEncoder(parsed.encoder, None)
    store = Store.open(folder / "store", create=True)
    vectors = {"": VectorsInfo(dimensions=32, encoder=encoder.fingerprint.to_dict())}
    job = new_job(parsed, store, vectors=vectors, shards=1, parent=None, mode="full")
    job = with_widths(job, parts, encoder)
    return job, sampled_passages(parts, parsed, 32, encoder.load_on_cpu())


def write(path: Path, texts: list[str]) -> Path:
    path.write_text(
        "".join(
            json.dumps({"id": f"{path.stem}{n}", "title": "fox", "text": t}) + "\n"
            for n, t in enumerate(texts)
        )
    )
    return path


def test_the_whole_input_is_sampled(spec: dict[str, Any], tmp_path: Path) -> None:
    short = write(tmp_path / "a.jsonl", ["dogs"] * 3000)
    long = write(tmp_path / "b.jsonl", ["dogs and foxes jump"] * 3000)
    job, texts = planned(spec, [short, long], tmp_path)
    # Titles are in front of the texts, and both files are in the sample.
    assert set(texts) == {"fox\ndogs", "fox\ndogs and foxes jump"}
    assert 0.4 < np.mean([text == "fox\ndogs" for text in texts]) < 0.6
    encoder = load_encoder(EncoderSpec(model=spec["encoder"]["model"], device="cpu"), None)
    lengths = encoder._documents.prepare([*set(texts)]).lengths_N
    # Widths are in steps of eight tokens, and the model's limit is the widest.
    assert set(job.widths) == {*(int(-(-length // 8) * 8) for length in lengths), 64}


def test_passages_are_counted_as_they_are_cut(spec: dict[str, Any], tmp_path: Path) -> None:
    cut = spec | {"source": SPEC["source"] | {"chunk": {"max_tokens": 20, "overlap_tokens": 0}}}
    path = write(tmp_path / "a.jsonl", ["the quick brown fox jumps over the lazy dog " * 40] * 20)
    job, texts = planned(cut, [path], tmp_path)
    assert len(texts) > 100
    assert job.widths[-1] == 64
    assert max(job.widths[:-1]) <= 24


def test_other_devices_need_no_plan(spec: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ["dogs"] * 3)
    job, _ = planned(spec | {"encoder": spec["encoder"] | {"device": "cpu"}}, [path], tmp_path)
    assert job.widths == ()


@pytest.mark.parametrize(
    "option", ["--direct_running_mode=multi_processing", "--sdk_worker_parallelism=2",
               "--experiments=use_multiple_sdk_containers"],
)  # fmt: skip
def test_one_process_drives_the_chips_of_a_host(option: str, spec: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", ["dogs"])
    with pytest.raises(RunnerError, match="one process holds all chips of a host"):
        build(spec, [str(path)], str(tmp_path / "store"), runner="local", runner_options=[option])
