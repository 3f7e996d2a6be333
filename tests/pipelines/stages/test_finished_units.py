"""Finished units are found by one listing, and read only if all are there."""

from __future__ import annotations

from collections import Counter

import pytest

from scannery.indexer import Store
from scannery.pipelines.execution import run as execution
from scannery.pipelines.stages import embed as finished
from tests.pipelines.conftest import VECTORS, run, vector_records

pytestmark = pytest.mark.system


@pytest.mark.parametrize("few", [0, 1000])
def test_units_are_read_only_if_all_are_listed(write, tmp_path, monkeypatch, few):
    monkeypatch.setattr(finished, "FEW_UNITS", max(few, 1))
    monkeypatch.setattr("scannery.pipelines.state.work_units.MIN_VECTOR_UNIT_BYTES", 1 << 12)
    store = Store.open(tmp_path / "store", create=True)
    seen: list[tuple[bool, Counter[str]]] = []
    requests = Counter[str]()
    real, read = finished.finished_units, Store.read

    def counted(self: Store, key: str) -> bytes:
        requests["read"] += 1
        return read(self, key)

    def looked(*arguments: object) -> object:
        requests.clear()
        found = real(*arguments)  # type: ignore[arg-type]
        seen.append((found is not None, requests.copy()))
        return found

    monkeypatch.setattr(execution, "finished_units", looked)
    monkeypatch.setattr(Store, "read", counted)
    path = write("a.jsonl", vector_records(0, 600))
    run(store, path, spec=VECTORS)
    units = [item.key for item in store.list("vectors/stage/units") if item.key.endswith(".json")]
    assert len(units) > 8
    done, before = seen.pop(0)
    assert not done
    assert before["read"] == (0 if not few else len(units))
    assert run(store, path, spec=VECTORS).up_to_date
    done, after = seen[-1]
    assert done
    assert after["read"] == len(units)
    # One is missing: known from the listing alone.
    store.delete(units[3])
    assert run(store, path, spec=VECTORS).up_to_date
    done, after = seen[-1]
    assert not done
    assert after["read"] == (0 if not few else len(units))
