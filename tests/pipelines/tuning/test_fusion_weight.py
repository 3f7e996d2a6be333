"""The default weight of hybrid search: measured by a build, kept by small updates, and what searches then use."""

from __future__ import annotations

import random
import shutil
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client import Explanation
from scannery.embed import Encoder
from scannery.indexer import Store
from scannery.indexer.maintenance import rollback
from scannery.indexer.manifest import FusionWeight, Manifest
from scannery.live.maintenance.seal import seal
from scannery.pipelines import compact
from scannery.pipelines.tuning import search_measurement
from scannery.pipelines.tuning.fusion_weight import chosen_weight
from scannery.pipelines.tuning.search_measurement import with_measured_search
from tests.embed.tiny_models import make_model
from tests.pipelines.conftest import manifest_of, run

SUBJECTS = [
    "the cat", "a volcano", "the old car", "an engineer", "the river", "my neighbour", "a podcast", "the bank",
]  # fmt: skip
VERBS = [
    "sleeps near", "erupts over", "drives through", "repairs", "floods", "talks about", "records", "lends to",
]  # fmt: skip
PLACES = [
    "the quiet village", "a frozen lake", "the city centre", "an empty office", "green mountains", "the harbour",
]  # fmt: skip
SPEC: dict[str, Any] = {
    "index": "talks",
    "source": {"id": "id", "text": "text"},
    "encoder": {"model": "sentence-transformers/all-MiniLM-L6-v2"},
    "lexical": True,
}


def records(first: int, last: int) -> list[dict[str, str]]:
    def sentence(rng: random.Random) -> str:
        words = [rng.choice(SUBJECTS), rng.choice(VERBS), rng.choice(PLACES), rng.choice(VERBS)]
        return f"{' '.join(words)} w{rng.randrange(90)}."

    made = []
    for number in range(first, last):
        rng = random.Random(number)
        made.append({"id": f"d{number}", "text": f"{sentence(rng)} {sentence(rng)}"})
    return made


def explained(hits: scannery.Hits) -> Explanation:
    assert hits.explanation is not None
    return hits.explanation


def weight_of(store: Store) -> FusionWeight:
    weight = manifest_of(store, "talks").fusion
    assert weight is not None
    return weight


@pytest.fixture(autouse=True)
def few_questions(monkeypatch):
    monkeypatch.setattr(search_measurement, "LEAST_QUESTIONS", 10)


@pytest.mark.system
def test_a_build_measures_the_weight_and_searches_use_it(store, write):
    report = run(store, write("a.jsonl", records(0, 80)), spec=SPEC)
    weight = weight_of(store)
    assert weight.alpha == chosen_weight(weight.dense, weight.lexical)
    assert 0 < weight.hybrid <= 1
    assert (report.alpha, report.alpha_questions, weight.rows) == (weight.alpha, weight.questions, 80)
    assert weight.questions == 16
    index = scannery.connect(store.uri).index("talks")
    hits = index.search("a volcano erupts", 5, explain=True)
    assert (hits.mode, explained(hits).mode) == ("hybrid", "hybrid")
    assert (explained(hits).fusion, explained(hits).alpha) == ("weighted_score", weight.alpha)
    given = index.search("a volcano erupts", 5, mode="hybrid", fusion="weighted_score", alpha=weight.alpha)
    assert [(hit.id, hit.score) for hit in hits] == [(hit.id, hit.score) for hit in given]
    # A few more rows do not change it; many more do, and so does a spec with a weight of its own.
    run(store, write("b.jsonl", records(80, 85)), spec=SPEC)
    assert weight_of(store) == weight
    run(store, write("c.jsonl", records(85, 140)), spec=SPEC)
    assert weight_of(store).rows == 140
    report = run(store, write("c.jsonl", records(85, 140)), spec=SPEC | {"search": {"alpha": 0.25}})
    assert (report.alpha, report.alpha_questions) == (0.25, 0)
    hits = scannery.connect(store.uri).index("talks").search("a volcano erupts", 5, explain=True)
    assert explained(hits).alpha == 0.25


@pytest.mark.system
def test_the_scales_of_an_index_give_a_hit_the_same_score_with_every_filter(store, write):
    run(store, write("a.jsonl", records(0, 80)), spec=SPEC)
    weight = weight_of(store)
    assert weight.scales is not None
    assert weight.scales.dense_zero < weight.scales.dense_one
    with scannery.connect(store.uri) as client:
        index = client.index("talks")
        for query in ("a volcano erupts near the harbour", "unheard words", "the cat"):
            whole = {hit.id: hit.score for hit in index.search(query, 80, alpha=0.5)}
            some = index.search(query, 80, alpha=0.5, where={"id": {"$in": sorted(whole)[::9]}})
            assert {hit.id: hit.score for hit in some} == {hit.id: whole[hit.id] for hit in some} != {}
            dense = {hit.id: hit.score for hit in index.search(query, 80, mode="dense")}
            words = {hit.id: hit.score for hit in index.search(query, 80, mode="lexical")}
            highest = {hit.id: hit.score for hit in index.search(f"{query} unheard", 80, mode="lexical")}
            assert words == highest  # words that no row has change no score by words,
            for hit in some:
                value = (dense[hit.id] - weight.scales.dense_zero) / (
                    weight.scales.dense_one - weight.scales.dense_zero
                )
                assert hit.score >= 0.5 * value - 1e-6
                assert (hit.id in words) == (hit.score > 0.5 * value + 1e-6)
        # but they leave less of it: words that are missing speak for the rows that are near.
        first = index.search("volcano", 1, alpha=0.5)[0]
        second = index.search("volcano zzz yyy", 80, alpha=0.5)
        [same] = [hit for hit in second if hit.id == first.id]
        assert same.lexical_score == first.lexical_score


@pytest.mark.system
def test_what_is_measured_does_not_depend_on_the_number_of_shards(store, write, tmp_path):
    run(store, write("a.jsonl", records(0, 80)), spec=SPEC)
    other = Store.open(tmp_path / "sharded", create=True)
    run(other, write("a.jsonl", records(0, 80)), spec={**SPEC, "shards": 4})
    first, second = manifest_of(store, "talks"), manifest_of(other, "talks")
    assert len({entry.shard for entry in second.segments}) == 4
    assert first.fusion is not None
    assert first.relevance is not None
    assert (first.fusion, first.relevance) == (second.fusion, second.relevance)


@pytest.mark.system
def test_a_version_of_an_earlier_release_is_measured_again_and_loses_nothing_without_the_model(store, write):
    run(store, write("a.jsonl", records(0, 80)), spec=SPEC)
    manifest = manifest_of(store, "talks")
    weight = weight_of(store).model_copy(update={"scales": None})
    earlier = manifest.model_copy(update={"fusion": weight})
    assert with_measured_search(manifest, earlier, store, {}).fusion == weight
    encoder = Encoder.load(SPEC["encoder"]["model"])
    assert with_measured_search(manifest, earlier, store, {"": lambda: encoder}).fusion == manifest.fusion


@pytest.mark.system
def test_texts_that_the_encoder_cannot_tell_apart_give_dense_search_no_weight(store, write):
    # Letters of Lisu, of which the model's vocabulary has none: texts with as many words have the same vector.
    rng = random.Random(1)
    words = ["".join(chr(rng.randrange(0xA4D0, 0xA4F8)) for _ in range(5)) for _ in range(300)]
    sizes = [1 + row % 20 for row in range(220)]
    texts = [
        {"id": f"t{row}", "text": " ".join(rng.choices(words, k=size))} for row, size in enumerate(sizes)
    ]
    run(store, write("unknown.jsonl", texts), spec={**SPEC, "lexical": {"language": "none"}})
    weight = weight_of(store)
    assert (weight.alpha, weight.dense < weight.lexical / 4) == (0, True)
    with scannery.connect(store.uri) as client:
        query = " ".join(texts[17]["text"].split()[:3])
        best = client.index("talks").search(query, 1, mode="hybrid", alpha=0.3)
        assert best[0].id == client.index("talks").search(query, 1, mode="lexical")[0].id


def test_a_compaction_that_finds_its_segments_keeps_the_weight(store, write):
    run(store, write("a.jsonl", records(0, 80)), spec=SPEC)
    weight = weight_of(store)
    with scannery.connect(store.uri) as client:
        client.index("talks").delete(["d1"])
    seal(store, "talks")
    assert [compact("talks", store.uri).version, weight_of(store)] == [3, weight]
    rollback(store, "talks", 2)
    assert [compact("talks", store.uri).version, weight_of(store)] == [5, weight]


@pytest.mark.system
def test_a_compaction_without_the_model_measures_nothing(store, write, tmp_path, monkeypatch):
    model = make_model("static", tmp_path)
    spec = SPEC | {"encoder": {"model": str(model)}}
    with monkeypatch.context() as patch:
        patch.setattr(search_measurement, "LEAST_QUESTIONS", 1000)  # so that the builds measure nothing
        run(store, write("a.jsonl", records(0, 80)), spec=spec)
        run(store, write("b.jsonl", records(80, 85)), spec=spec)
    shutil.rmtree(model)
    with scannery.connect(store.uri) as client:
        client.index("talks").delete(["d1"])
    seal(store, "talks")
    report = compact("talks", store.uri)
    assert (report.up_to_date, manifest_of(store, "talks").fusion) == (False, None)


@pytest.mark.system
def test_a_compaction_without_the_model_keeps_what_was_measured_of_fewer_rows(store, write, tmp_path):
    model = make_model("static", tmp_path)
    run(store, write("a.jsonl", records(0, 80)), spec=SPEC | {"encoder": {"model": str(model)}})
    before = manifest_of(store, "talks")
    assert before.relevance is not None
    with scannery.connect(store.uri) as client:
        client.index("talks").upsert([{"id": each["id"], "text": each["text"]} for each in records(80, 140)])
    seal(store, "talks")
    shutil.rmtree(model)
    compact("talks", store.uri)
    after = manifest_of(store, "talks")
    assert (after.version, after.rows) == (3, 140)
    assert (after.fusion, after.relevance) == (before.fusion, before.relevance)


@pytest.mark.system
def test_an_index_that_shrinks_below_the_least_number_of_passages_keeps_what_was_measured(store, write):
    run(store, write("a.jsonl", records(0, 80)), spec=SPEC)
    before = manifest_of(store, "talks")
    with scannery.connect(store.uri) as client:
        client.index("talks").delete([f"d{number}" for number in range(40)])
    seal(store, "talks")
    compact("talks", store.uri)
    after = manifest_of(store, "talks")
    assert (after.rows, after.fusion, after.relevance) == (40, before.fusion, before.relevance)
    with scannery.connect(store.uri) as client:
        assert client.index("talks").search("a volcano erupts", 1, min_relevance=0)[0].relevance is not None


@pytest.mark.system
def test_versions_without_a_measured_weight_count_both_rankings_the_same(store, write):
    report = run(store, write("a.jsonl", records(0, 12)), spec=SPEC)
    manifest = manifest_of(store, "talks")
    assert manifest.fusion is None  # too few passages
    assert (report.alpha, report.alpha_questions) == (0.5, 0)
    hits = scannery.connect(store.uri).index("talks").search("a volcano", 5, explain=True)
    assert (explained(hits).fusion, explained(hits).alpha) == ("weighted_score", 0.5)


@pytest.mark.system
def test_manifests_of_earlier_releases_have_no_weight(store, write):
    run(store, write("a.jsonl", records(0, 12)), spec=SPEC)
    manifest = manifest_of(store, "talks")
    data = manifest.model_dump_json(exclude={"fusion"}).encode()
    assert Manifest.from_json(data, origin="an old manifest").fusion is None
    assert '"search"' not in manifest.to_json().decode()  # earlier releases refuse unknown keys of a spec


def test_the_better_search_has_more_weight():
    assert chosen_weight(0.5, 0.5) == 0.57
    assert chosen_weight(0.4, 0.5) == 0.36
    assert chosen_weight(0.5, 0.4) == 0.77
    weights = [chosen_weight(dense, 0.5) for dense in np.linspace(0.1, 1, 50)]
    assert weights == sorted(weights)
    assert 0 <= weights[0] < 0.05
    assert weights[-1] > 0.95


def test_a_search_that_is_far_worse_gets_no_weight():
    assert chosen_weight(0.1, 0.5) == chosen_weight(0, 0.5) == 0
    assert chosen_weight(0.5, 0.1) == chosen_weight(0.5, 0) == 1
    assert chosen_weight(0, 0) == 0.5


@pytest.mark.system
@pytest.mark.parametrize("unit", [1e-6, 1e6])
def test_vectors_of_any_length_have_scales_and_curves(store, write, unit):
    made = records(0, 80)
    vectors_ND = Encoder.load(SPEC["encoder"]["model"]).encode_documents([each["text"] for each in made])
    given = [
        each | {"v": (unit * vector_D).tolist()} for each, vector_D in zip(made, vectors_ND, strict=True)
    ]
    source = {"id": "id", "text": "text", "vector": "v"}
    run(store, write("long.jsonl", given), spec=SPEC | {"source": source, "distance": "dot"})
    scales = weight_of(store).scales
    assert scales is not None
    assert 0.1 * unit < scales.dense_one - scales.dense_zero < unit
    assert manifest_of(store, "talks").relevance is not None


@pytest.mark.system
def test_texts_that_are_all_the_same_have_no_part_in_the_scales(store, write):
    same = [
        {"id": f"s{row}", "text": "The text of this page will follow, in a few weeks."} for row in range(250)
    ]
    run(store, write("same.jsonl", same), spec=SPEC)
    assert manifest_of(store, "talks").fusion is None  # nothing tells them apart
    run(store, write("a.jsonl", records(0, 130)), spec=SPEC)  # half as many more: it is measured again
    scales = weight_of(store).scales
    assert scales is not None
    assert scales.dense_one - scales.dense_zero > 0.2
    # Words that no row has leave the answer to its meaning.
    index = scannery.connect(store.uri).index("talks")
    assert index.search("magma", 1)[0].id == index.search("magma", 1, mode="dense")[0].id
