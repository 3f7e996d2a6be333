"""Options that engines get: one worker on a machine, and machines by stage."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from scannery.indexer.manifest import VectorsInfo
from scannery.indexer.spec.spec_files import parse_spec
from scannery.pipelines import RunnerError
from scannery.pipelines.execution.runners import (
    StagePools,
    busy_task_managers,
    check_engine,
    new_pipeline,
    stage_pools,
    with_one_worker,
)
from scannery.pipelines.job_planning import new_job
from scannery.pipelines.state.work_units import WorkUnit, new_unit_list, write_unit_list
from tests.pipelines.conftest import VECTORS

DATAFLOW = ["--project=project-1", "--region=us-central1", "--temp_location=gs://bucket/tmp"]
GPU = "type:nvidia-l4;count:1;install-nvidia-driver"


def a_job(store: Any) -> Any:
    vectors = {"": VectorsInfo(dimensions=8)}
    return new_job(parse_spec(VECTORS), store, vectors=vectors, shards=3, parent=None, mode="full")


def filled(pipeline: Any, store: Any, pools: StagePools | None = None, units: int = 2, **options: Any) -> Any:
    from scannery.pipelines.execution.beam_pipeline import add_build, new_encoder_handle

    job = new_unit_list(a_job(store))
    runs = write_unit_list([WorkUnit(i, f"{i:032x}", ()) for i in range(units)], job, store)
    add_build(pipeline, job, runs, new_encoder_handle(), pools, **options)
    return pipeline


def hints_by_stage(pipeline: Any) -> dict[str, dict[str, bytes]]:
    proto = pipeline.to_runner_api()
    components = proto.components
    return {
        transform.unique_name: dict(components.environments[transform.environment_id].resource_hints)
        for transform in components.transforms.values()
        if "/" not in transform.unique_name and transform.environment_id
    }


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ([], ["--experiments=no_use_multiple_sdk_containers", "--number_of_worker_harness_threads=1"]),
        (["use_multiple_sdk_containers"], ["--number_of_worker_harness_threads=1"]),
        (["no_use_multiple_sdk_containers"], ["--number_of_worker_harness_threads=1"]),
    ],
)
def test_a_machine_of_dataflow_gets_one_process_with_one_thread(given, added, caplog):
    with caplog.at_level(logging.INFO):
        assert with_one_worker("dataflow", {"experiments": given}, DATAFLOW) == [*DATAFLOW, *added]
    assert all(option in caplog.text for option in added)


def test_options_that_the_caller_gave_stay():
    known = {"experiments": ["use_multiple_sdk_containers"], "number_of_worker_harness_threads": 4}
    assert with_one_worker("dataflow", known, DATAFLOW) == DATAFLOW
    assert with_one_worker("flink", {}, ["--flink_master=h:1"]) == ["--flink_master=h:1"]


def test_a_dataflow_job_that_is_made_and_not_submitted(store):
    """The job that Dataflow would get, of Beam's own client for it."""
    pytest.importorskip(
        "google.cloud.dataflow", reason="needs google-cloud-dataflow-client and google-cloud-storage"
    )
    options = [*DATAFLOW, "--dry_run=true", "--sdk_container_image=registry/scannery", "--experiments=mine"]
    pipeline = new_pipeline("dataflow", options)
    units = 2000
    result = filled(pipeline, store, StagePools(accelerator=GPU, segment_bytes=12 << 30), units).run()
    from apache_beam.runners.dataflow.internal import apiclient

    description = result.job.proto_pipeline
    environment = apiclient.Environment(
        [],
        result.job.options,
        apiclient._FNAPI_ENVIRONMENT_MAJOR_VERSION,
        "gs://bucket/tmp/pipeline",
        description,
    ).proto
    assert "no_use_multiple_sdk_containers" in environment.experiments
    assert "use_multiple_sdk_containers" not in environment.experiments
    assert "mine" in environment.experiments
    [pool] = environment.worker_pools
    assert pool.num_threads_per_worker == 1
    size = len(description.SerializeToString())
    assert size < 400 * units, "the description of a job may have 20 MB"


@pytest.mark.system
def test_stages_ask_for_machines_of_their_own(store):
    pools = StagePools(accelerator=GPU, segment_bytes=(12 << 30) + 1)
    found = hints_by_stage(filled(new_pipeline("local", []), store, pools))
    assert found["Embed"] == {"beam:resources:accelerator:v1": GPU.encode()}
    assert found["Build segment"] == {"beam:resources:min_ram_bytes:v1": str(12289 << 20).encode()}
    assert found["Publish"] == {}


@pytest.mark.system
def test_without_need_all_stages_have_one_environment(store):
    pipeline = filled(new_pipeline("local", []), store)
    assert len(pipeline.to_runner_api().components.environments) == 1


@pytest.mark.system
@pytest.mark.parametrize(
    ("runner", "options", "accelerator", "expected"),
    [
        ("dataflow", DATAFLOW, None, StagePools(segment_bytes=5)),
        ("dataflow", DATAFLOW, GPU, StagePools(accelerator=GPU, segment_bytes=5)),
        ("dataflow", [*DATAFLOW, "--worker_machine_type=c3-standard-8"], None, StagePools()),
        ("local", [], None, StagePools()),
        (None, [], None, StagePools()),
    ],
)
def test_which_machines_are_asked_for(runner, options, accelerator, expected):
    assert stage_pools(runner, options, accelerator=accelerator, segment_bytes=5) == expected


@pytest.mark.system
@pytest.mark.parametrize(("runner", "options", "accelerator", "words"), [
    ("flink", ["--flink_master=h:1"], GPU,
     "only the runner 'dataflow' has machines by stage, got 'flink'.*--until embed"),
    (None, [], GPU, "got 'local'.*--until embed"),
    ("dataflow", DATAFLOW, "nvidia-l4", "must be like type:"),
    ("dataflow", [*DATAFLOW, "--dataflow_service_options=worker_accelerator=type:nvidia-l4;count:1"], GPU,
     "all stages"),
])  # fmt: skip
def test_an_accelerator_that_no_stage_can_have(runner, options, accelerator, words):
    with pytest.raises(RunnerError, match=words) as caught:
        check_engine(runner, options, ["gs://bucket/store"], accelerator=accelerator)
    assert caught.value.field == "accelerator"


@pytest.mark.system
def test_task_managers_with_several_slots_are_told(caplog):
    managers = [{"id": "a:1", "slotsNumber": 8}, {"id": "b:1", "slotsNumber": 1}]
    with flink(managers) as master:
        assert busy_task_managers(master) == {"a:1": 8}
        new_pipeline("flink", [f"--flink_master={master}", "--environment_type=LOOPBACK"])
    assert "a:1 has 8" in caplog.text
    assert "numberOfTaskSlots: 1" in caplog.text
    assert busy_task_managers(master, timeout_s=0.2) == {}, "a cluster that does not answer"


@contextmanager
def flink(managers: list[dict[str, Any]]) -> Iterator[str]:
    """Answer as Flink's REST interface does."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert self.path == "/taskmanagers"
            body = json.dumps({"taskmanagers": managers}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
