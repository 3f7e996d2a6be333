"""What a build measures of searches by text, for an index whose queries have a model of their own."""

from __future__ import annotations

from typing import Any

import pytest

import scannery
from scannery.indexer import Store
from scannery.live.maintenance.copies import restore, snapshot
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from scannery.pipelines import compact
from scannery.pipelines.tuning import search_measurement
from tests.pipelines.conftest import manifest_of, run
from tests.pipelines.tuning.test_fusion_weight import SPEC, records
from tests.serving.encoding.query_models import make_query_model


@pytest.fixture(autouse=True)
def few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_measurement, "LEAST_QUESTIONS", 10)


@pytest.fixture(scope="module")
def query_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_query_model(tmp_path_factory.mktemp("query_model")))


def sided(query_model: str) -> dict[str, Any]:
    return SPEC | {"encoder": SPEC["encoder"] | {"query_model": query_model}}


@pytest.mark.system
def test_a_build_measures_again_for_other_queries(store, write, query_model, tmp_path):
    path = write("a.jsonl", records(0, 80))
    run(store, path, spec=SPEC)
    first = manifest_of(store, "talks")
    assert first.fusion is not None and first.relevance is not None
    assert first.encoder is not None
    assert first.fusion.encoder == first.encoder["digest"], "as earlier releases know it"
    with scannery.connect(store.uri) as client:
        index = client.index("talks")
        index.alter(encoder={"query_model": query_model})
        hits = index.search("a volcano erupts", 5, explain=True)
        assert hits.explanation is not None and (hits.mode, hits.explanation.alpha) == ("hybrid", 0.5)
        assert {hit.relevance for hit in hits} == {None}
        assert index.search("a volcano erupts", 5, mode="lexical")[0].relevance is not None
    run(store, path, spec=sided(query_model))
    again = manifest_of(store, "talks")
    assert again.segments == first.segments
    assert again.fusion is not None and again.relevance is not None
    digest = again.vectors[""].sides_digest
    assert again.encoder is not None and again.query_encoder is not None
    assert digest not in (again.encoder["digest"], again.query_encoder["digest"])
    assert (again.fusion.encoder, again.relevance.encoder) == (digest, digest)
    assert again.fusion.scales != first.fusion.scales, "measured with the other queries"
    assert again.relevance.curves["lexical"] == first.relevance.curves["lexical"]
    assert run(store, path, spec=sided(query_model)).up_to_date
    # By Beam's workers, too.
    beam = Store.open(tmp_path / "beam", create=True)
    run(beam, path, spec=sided(query_model), runner="local")
    made = manifest_of(beam, "talks")
    assert (made.fusion, made.query_encoder) == (again.fusion, again.query_encoder)


@pytest.mark.system
def test_all_that_makes_versions_keeps_the_query_model(store, write, query_model, tmp_path):
    run(store, write("a.jsonl", records(0, 80)), spec=sided(query_model))
    before = manifest_of(store, "talks")

    def check(store: Store = store) -> None:
        now = manifest_of(store, "talks")
        assert now.vectors == before.vectors and now.spec.encoder == before.spec.encoder
        assert (now.fusion, now.relevance) == (before.fusion, before.relevance)

    with scannery.connect(store.uri) as client:
        client.index("talks").upsert([{"id": "new", "text": "A volcano sleeps near the bank."}])
        client.index("talks").delete(["d1"])
    seal(store, "talks")
    check()
    compact("talks", store.uri)
    check()
    with scannery.connect(store.uri) as client:
        client.index("talks").alter(target_recall=0.9)
    check()
    backup, copy = (Store.open(tmp_path / name, create=True) for name in ("backup", "copy"))
    snapshot(store, "talks", backup)
    restore(backup, "talks", copy)
    check(copy)
    with scannery.connect(store.uri) as client:
        client.index("talks").alter(encoder={"query_model": None})
    rollback(store, "talks", 4)
    check()
