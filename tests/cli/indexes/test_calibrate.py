"""`scannery index calibrate`: relevance fitted to judgements, published as a version of the same segments."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import Manifest, Store, read_manifest
from scannery.indexer.errors import InvalidSpecError
from scannery.indexer.maintenance import rollback
from scannery.indexer.manifest import Relevance
from scannery.indexer.versions.creation import calibrate_index
from scannery.indexer.versions.versions import commit
from scannery.pipelines import build
from scannery.pipelines.tuning import search_measurement
from tests.pipelines.tuning.test_fusion_weight import SPEC, records

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("calibrated")
    lines = "".join(f"{json.dumps(record)}\n" for record in records(0, 80))
    (folder / "talks.jsonl").write_text(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_measurement, "LEAST_QUESTIONS", 10)
        build(SPEC, [str(folder / "talks.jsonl")], str(folder / "store"))
    return folder / "store"


def judged(folder: Path, count: int) -> tuple[str, ...]:
    """Write queries with the first words of some records, which are judged to be relevant; return the arguments."""
    chosen = records(0, count)
    queries = (
        json.dumps({"_id": f"q{number}", "text": " ".join(record["text"].split()[:6])})
        for number, record in enumerate(chosen)
    )
    (folder / "queries.jsonl").write_text("\n".join(queries))
    lines = (f"q{number}\t{record['id']}\t1" for number, record in enumerate(chosen))
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    return "--queries", str(folder / "queries.jsonl"), "--qrels", str(folder / "qrels.tsv")


def current(store: Path) -> Manifest:
    return read_manifest(Store.open(store), "talks")


def relevance_of(store: Path) -> Relevance:
    relevance = current(store).relevance
    assert relevance is not None
    return relevance


def test_the_curves_are_those_of_the_judgements_and_can_be_taken_back(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    before = current(store)
    arguments = ("index", "calibrate", "talks", "--store", str(store), *judged(tmp_path, 40))
    with scannery.connect(store) as client:
        index = client.index("talks")
        old = index.search("a volcano erupts over the harbour", 5)
        assert main([*arguments, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        after = current(store)
        assert (report["version"], after.version, after.parent) == (before.version + 1,) * 2 + (
            before.version,
        )
        assert after.statistics["mode"] == "calibrate"
        assert after.relevance is not None
        assert before.relevance is not None
        assert (after.relevance.source, after.relevance.questions) == ("judgements", 40)
        assert after.relevance.rows == before.relevance.rows
        assert report["relevance"] == after.relevance.model_dump(mode="json")
        assert [entry.sha256 for entry in after.segments] == [entry.sha256 for entry in before.segments]
        assert set(after.relevance.curves) == {"dense", "lexical", "hybrid"}
        assert all(curve.error < 0.2 for curve in after.relevance.curves.values())
    with scannery.connect(store) as client:
        new = client.index("talks").search("a volcano erupts over the harbour", 5)
    assert [(hit.id, hit.score) for hit in new] == [(hit.id, hit.score) for hit in old]
    assert [hit.relevance for hit in new] != [hit.relevance for hit in old]
    assert main(["index", "show", "talks", "--store", str(store)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "measured with 40 judged questions and 48 foreign ones" in shown
    assert rollback(Store.open(store), "talks", before.version).relevance == before.relevance


def test_what_cannot_be_fitted_is_refused_and_changes_nothing(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    version = current(store).version
    where = ("index", "calibrate", "talks", "--store", str(store))
    assert main([*where, *judged(tmp_path, 5)]) == 2
    assert "5 judged queries tell too little" in capsys.readouterr().err
    assert (
        main([*where, "--queries", str(tmp_path / "none.jsonl"), "--qrels", str(tmp_path / "qrels.tsv")]) == 3
    )
    (tmp_path / "few.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records(0, 8)))
    build({**SPEC, "index": "few"}, [str(tmp_path / "few.jsonl")], str(store))
    capsys.readouterr()
    assert main(["index", "calibrate", "few", "--store", str(store), *judged(tmp_path, 30)]) == 2
    assert "has no measured relevance" in " ".join(capsys.readouterr().err.split())
    assert current(store).version == version


@pytest.mark.parametrize("search", [{"alpha": 0.9}, {"fusion": "reciprocal_rank"}])
def test_a_spec_with_another_fusion_calibrates_the_measured_one(
    store: Path, tmp_path: Path, search: dict[str, object]
) -> None:
    before = current(store)
    arguments = ("index", "calibrate", "talks", "--store", str(store), *judged(tmp_path, 40))
    assert main(list(arguments)) == 0
    expected = relevance_of(store).curves
    rollback(Store.open(store), "talks", before.version)
    with scannery.connect(store) as client:
        client.index("talks").alter(search=search)
    assert main(list(arguments)) == 0
    assert relevance_of(store).curves == expected
    rollback(Store.open(store), "talks", before.version)


def test_a_version_that_was_measured_meanwhile_keeps_its_relevance(store: Path) -> None:
    opened, searched = Store.open(store), current(store)
    measured = relevance_of(store).model_copy(update={"encoder": "another", "questions": 99})
    later = commit(opened, searched.model_copy(update={"parent": searched.version, "relevance": measured}))
    with pytest.raises(InvalidSpecError, match=f"measured again in version {later.version}"):
        calibrate_index(opened, searched, relevance_of(store))
    assert current(store) == later
    rollback(opened, "talks", searched.version)
