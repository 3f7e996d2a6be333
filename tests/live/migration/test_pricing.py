"""What a migration will cost is told before it begins, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import Store, VectorsInfo
from scannery.live.migration import pricing
from scannery.live.migration.mirrors import begin_mirror
from tests.live.migration.traffic import INDEX, text_of
from tests.served import MINILM

pytestmark = pytest.mark.system
DOCUMENTS = 40


def test_a_dry_run_tells_the_price(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pricing, "SAMPLE_ROWS", 16)
    monkeypatch.setattr(pricing, "SAMPLE_S", 0.0)
    path = str(tmp_path / "store")
    with scannery.connect(path, create=True, timeout_s=120) as client:
        index = client.create_index(INDEX, encoder=MINILM, lexical=True)
        index.upsert([{"id": f"d{number}", "text": text_of(number, 0)} for number in range(DOCUMENTS)])
    assert main(["index", "seal", INDEX, "--store", path]) == 0
    store = Store.open(path)
    before = store.list("")
    migrate = ["index", "migrate", INDEX, "--store", path, "--encoder", MINILM, "--dimensions", "64"]
    capsys.readouterr()
    assert main([*migrate, "--dry-run", "--json"]) == 0
    price = json.loads(capsys.readouterr().out)
    assert (price["datapoints"], price["mirror_datapoints"], price["texts"]) == (DOCUMENTS,) * 3
    assert (price["sampled"], price["mirror_dimensions"]) == (16, 64)
    assert price["seconds"] == pytest.approx(DOCUMENTS / price["rows_per_s"], abs=0.06)
    assert min(price["staged_bytes"], price["mirror_bytes"]) > DOCUMENTS * 64 * 4
    assert main([*migrate, "--chunk", '{"max_tokens": 8, "overlap_tokens": 0}', "--dry-run"]) == 0
    assert "datapoints, of which about" in capsys.readouterr().out
    assert main(["index", "migrate", INDEX, "--store", path, "--dry-run"]) == 2
    assert "nothing would change" in capsys.readouterr().err
    assert store.list("") == before


def test_a_dry_run_removes_no_mirror(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "store")
    with scannery.connect(path, create=True) as client:
        client.create_index(INDEX, dimensions=4)
    store = Store.open(path)
    begin_mirror(store, INDEX, {"lexical": True}, lambda spec: {"": VectorsInfo(dimensions=4)})
    before = store.list("")
    migrate = ["index", "migrate", INDEX, "--store", path]
    for flags in (["--abandon", "--dry-run"], ["--undo", "--dry-run"], ["--abandon", "--undo"]):
        assert main([*migrate, *flags]) == 2
        assert f"{flags[0]} and {flags[1]} exclude each other" in capsys.readouterr().err
    assert store.list("") == before
