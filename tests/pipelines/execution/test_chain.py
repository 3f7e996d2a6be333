"""The loop in this process and Beam run the same stages, and leave the same index."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from scannery.indexer import Store, read_manifest, verify
from scannery.pipelines import TooManyDeadLettersError
from scannery.pipelines.execution import run as execution
from scannery.pipelines.execution import runners
from tests.pipelines.conftest import VECTORS, letters_of, rows_of, run, vector_records
from tests.startup import imported_modules

pytestmark = pytest.mark.system

# A cut of documents into passages lets one id be in two shards, so duplicates are resolved before the grouping.
SPECS = [
    VECTORS | {"shards": 3},
    VECTORS | {"shards": 3, "source": {"vector": "vector", "document_id": "show"}},
]


@pytest.mark.parametrize("spec", SPECS, ids=["by id", "by document"])
def test_both_ways_build_and_update_the_same_index(spec, write, tmp_path):
    first = write("a.jsonl", [*vector_records(0, 60), "{broken", *vector_records(5, 7)])
    moved = [record | {"show": "s9"} for record in vector_records(10, 14)]
    second = write("b.jsonl", [*moved, *vector_records(60, 70)])
    stores = {}
    for name in ("here", "local"):
        runner = None if name == "here" else name
        stores[name] = store = Store.open(tmp_path / name, create=True)
        built = run(store, first, spec=spec, runner=runner)
        updated = run(store, second, spec=spec, runner=runner, deletes=["d3", "unknown"])
        assert (built.version, updated.version) == (1, 2)
        assert not verify(store, "vectors").problems
        # The second run finds everything done, whichever way the first one went.
        assert run(store, second, spec=spec, deletes=["d3", "unknown"]).up_to_date
    here, beam = stores.values()
    assert rows_of(here) == rows_of(beam)
    assert "d3" not in rows_of(here)
    assert segments(here) == segments(beam)
    assert letters_of(here, read_manifest(here, "vectors")) == letters_of(
        beam, read_manifest(beam, "vectors")
    )


def segments(store: Store) -> list[tuple[int, int, str]]:
    return [(entry.shard, entry.rows, entry.sha256) for entry in read_manifest(store, "vectors").segments]


@pytest.mark.parametrize("runner", [None, "local"])
def test_a_stage_that_fails_raises_its_own_error(runner, store, write):
    path = write("a.jsonl", [*vector_records(0, 5), "{broken"])
    with pytest.raises(TooManyDeadLettersError):
        run(store, path, runner=runner, max_dead_letters=0)
    assert run(store, path, runner=runner).version == 1


def test_a_small_build_imports_no_beam(store, write):
    path = write("a.jsonl", vector_records(0, 20))
    code = (
        "import json, sys; from scannery.pipelines import build; "
        "build(json.loads(sys.argv[1]), [sys.argv[2]], sys.argv[3])"
    )
    loaded = imported_modules(code, json.dumps(VECTORS), path, store.uri)
    assert not loaded & {"apache_beam", "torch"}
    assert len(rows_of(store)) == 20


def test_only_a_named_runner_is_for_beam(store, write, monkeypatch):
    started: list[str | None] = []
    real = runners.new_pipeline

    def counted(runner: str | None, options: Sequence[str]) -> Any:
        started.append(runner)
        return real(runner, options)

    monkeypatch.setattr(execution, "new_pipeline", counted)
    path = write("a.jsonl", vector_records(0, 20))
    run(store, path, runner="local")
    run(store, write("b.jsonl", vector_records(20, 40)))
    assert started == ["local"]
    assert len(rows_of(store)) == 40
