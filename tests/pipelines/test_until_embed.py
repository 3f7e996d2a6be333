"""A build that stops after embedding, and goes on elsewhere."""

from __future__ import annotations

import pytest

from scannery.indexer import NotFoundError, Store, read_manifest, verify
from scannery.pipelines import ModeError, NothingToIndexError, TooManyDeadLettersError
from tests.pipelines.conftest import VECTORS, rows_of, run, vector_records

SPEC = VECTORS | {"shards": 3}


def unit_files(store: Store) -> list[tuple[str, str]]:
    assert store.local_root is not None
    folder = store.local_root / "vectors"
    files = [*folder.glob("stage/units/*"), *folder.glob("embeddings/*")]
    return sorted((path.name, str(path.stat().st_mtime_ns)) for path in files)


@pytest.mark.system
@pytest.mark.parametrize("runner", [None, "local"])
def test_segments_are_built_later_from_the_same_units(runner, store, write, tmp_path):
    path = write("a.jsonl", [*vector_records(0, 60), "{broken"])
    report = run(store, path, spec=SPEC, runner=runner, until="embed")
    assert (report.until, report.version, report.documents, report.passages) == ("embed", 0, 60, 60)
    assert (report.shards, report.dead_letters, report.embeddings_bytes > 0) == (3, {"malformed": 1}, True)
    with pytest.raises(NotFoundError):
        read_manifest(store, "vectors")
    assert not store.list("vectors/segments")
    units = unit_files(store)
    assert units
    built = run(store, path, spec=SPEC, runner=runner)
    assert (built.until, built.version, built.passages) == (None, 1, 60)
    assert unit_files(store) == units, "no unit is made again"
    assert not verify(store, "vectors").problems
    whole = Store.open(tmp_path / "whole", create=True)
    run(whole, path, spec=SPEC)
    assert rows_of(store) == rows_of(whole)


@pytest.mark.system
def test_an_index_keeps_its_version(store, write):
    run(store, write("a.jsonl", vector_records(0, 20)), spec=SPEC)
    report = run(store, write("b.jsonl", vector_records(20, 30)), spec=SPEC, until="embed")
    assert (report.version, report.documents) == (1, 10)
    assert len(rows_of(store)) == 20
    again = run(store, write("b.jsonl", vector_records(20, 30)), spec=SPEC, until="embed")
    assert again.documents == 10


def test_limits_hold_before_segments_are_built(store, write):
    bad = write("a.jsonl", [*vector_records(0, 5), "{broken"])
    with pytest.raises(TooManyDeadLettersError):
        run(store, bad, until="embed", max_dead_letters=0)
    with pytest.raises(NothingToIndexError):
        run(store, write("b.jsonl", ["{broken"]), until="embed")


def test_what_makes_no_sense_is_refused(store, write):
    with pytest.raises(ModeError, match="until must be embed"):
        run(store, write("a.jsonl", vector_records(0, 5)), until="segment")
    run(store, write("a.jsonl", vector_records(0, 5)))
    with pytest.raises(ModeError, match="until needs inputs"):
        run(store, deletes=["d1"], until="embed")
