"""What the scores of named vectors and of a cross-encoder mean: measured by a build, kept, and used by searches."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import scannery
from scannery.cli.main import app, main
from scannery.embed import Reranker
from scannery.embed.reranker import reranker_digest
from scannery.indexer import Store, read_manifest
from scannery.indexer.manifest import RERANK, Manifest, ModelCurve, Relevance
from scannery.indexer.reader import open_index
from scannery.live.maintenance.seal import seal
from scannery.pipelines import build, compact
from scannery.pipelines.tuning import search_measurement
from scannery.pipelines.tuning.foreign_questions import foreign_questions
from scannery.pipelines.tuning.model_curves import (
    LEAST_RERANKED,
    RERANK_SECONDS,
    RankedQuestion,
    reranked_curve,
)
from scannery.pipelines.tuning.passage_searches import PASSAGE, QuestionSearch, Ranked, questions_about
from scannery.pipelines.tuning.search_measurement import with_measured_search
from tests.cli.indexes.test_calibrate import judged
from tests.embed.tiny_models import make_cross_encoder
from tests.pipelines.conftest import manifest_of, run
from tests.pipelines.tuning.test_fusion_weight import SPEC, records
from tests.pipelines.tuning.test_relevance_curves import unused
from tests.served import copied, serving

pytestmark = pytest.mark.system

TEXT = "a volcano erupts over the harbour"
NAMED = {
    "title": {"encoder": SPEC["encoder"]},
    "body": {"encoder": SPEC["encoder"], "from": "text"},
    "image": {"dimensions": 3},
}
KEYS = {RERANK, "vectors.title", "vectors.body"}


def talks(first: int, last: int) -> list[dict[str, str]]:
    """Return records whose titles have the first words of their texts."""
    return [{**each, "title": " ".join(each["text"].split()[:4])} for each in records(first, last)]


def with_models(reranker: Path) -> dict[str, Any]:
    return SPEC | {
        "source": {"id": "id", "title": "title", "text": "text"},
        "reranker": {"model": str(reranker)},
        "named_vectors": NAMED,
    }


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cross-encoder that tells questions about the talks from foreign ones, and hardly a text from another."""
    texts = [each["text"] for each in talks(0, 60)]
    pairs = [(text[: len(text) // 2], text, 1.0) for text in texts]
    pairs += [
        (question, text, 0.0) for question, text in zip(foreign_questions("english"), texts, strict=False)
    ]
    return make_cross_encoder(tmp_path_factory.mktemp("cross"), pairs=pairs)


@pytest.fixture(autouse=True)
def few_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_measurement, "LEAST_QUESTIONS", 10)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, reranker: Path) -> Path:
    folder = tmp_path_factory.mktemp("talks")
    (folder / "talks.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in talks(0, 80)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search_measurement, "LEAST_QUESTIONS", 10)
        build(with_models(reranker), [str(folder / "talks.jsonl")], str(folder / "store"))
    return folder / "store"


def current(store: Path) -> Manifest:
    return read_manifest(Store.open(store), "talks")


def relevance_of(manifest: Manifest) -> Relevance:
    assert manifest.relevance is not None
    return manifest.relevance


def expected(manifest: Manifest, key: str, scores: list[float | None]) -> list[float]:
    curve = relevance_of(manifest).all_curves[key]
    found: list[float] = curve.probabilities(np.array(scores, np.float32)).tolist()
    return found


def test_a_build_measures_each_model(built: Path, reranker: Path) -> None:
    relevance = relevance_of(current(built))
    assert set(relevance.models) == KEYS
    assert set(relevance.all_curves) == {"dense", "lexical", "hybrid", *KEYS}
    for key, each in relevance.models.items():
        assert each.curve is not None
        assert each.curve.separation > 0.9
        assert (each.questions, each.foreign_questions) == (16, 48)
        named = current(built).named_vectors.get(key.removeprefix("vectors."))
        digest = reranker_digest(reranker) if named is None else (named.encoder or {})["digest"]
        assert each.model == digest
    shown = CliRunner().invoke(app, ["index", "show", "--store", str(built), "talks"], env={"COLUMNS": "900"})
    for key in KEYS:
        assert f"{key} 50 % at a score of" in shown.output


def test_reranked_hits_have_the_relevance_of_their_scores(built: Path) -> None:
    manifest = current(built)
    with scannery.connect(built) as client:
        index = client.index("talks")
        first = {hit.id: hit.relevance for hit in index.search(TEXT, 20)}
        for mode in ("dense", "lexical", "hybrid"):
            hits = index.search(TEXT, 20, rerank=20, mode=mode)
            relevances = [hit.relevance for hit in hits]
            assert relevances == pytest.approx(
                expected(manifest, RERANK, [hit.rerank_score for hit in hits]), abs=1e-6
            )
            least = relevances[7]
            kept = [hit for hit in hits if (hit.relevance or 0) >= (least or 0)]
            options: dict[str, Any] = {"rerank": 20, "mode": mode, "min_relevance": least}
            assert list(index.search(TEXT, 20, **options)) == kept
            assert list(index.search(TEXT, 3, offset=2, **options)) == kept[2:5]
        nothing = index.search(TEXT, 3, rerank=20, min_relevance=1)
        assert (list(nothing), nothing.nothing_relevant) == ([], True)
        # Hits that the cross-encoder does not read keep the relevance of the search.
        some = index.search(TEXT, 20, rerank=5)
        assert {hit.id: hit.relevance for hit in some if hit.rerank_score is None} == {
            hit.id: first[hit.id] for hit in some[5:]
        }
        [near], [far] = index.search_many([TEXT, "how to make a yoghurt cake"], 1, rerank=10)
        assert (far.relevance or 0) < 0.3 < (near.relevance or 0)


def test_hits_of_a_named_vector_have_the_relevance_of_their_scores(built: Path) -> None:
    manifest = current(built)
    with scannery.connect(built) as client:
        index = client.index("talks")
        for name in ("title", "body"):
            hits = index.search(TEXT, 10, mode="dense", vectors=name)
            relevances = expected(manifest, f"vectors.{name}", [hit.score for hit in hits])
            assert [hit.relevance for hit in hits] == pytest.approx(relevances, abs=1e-6)
            [vector] = index.embed([TEXT])
            for by_vector in (
                index.search(vector, 10, vectors=name),
                *index.search_many([vector], 10, vectors=name),
            ):
                assert [hit.relevance for hit in by_vector] == pytest.approx(relevances, abs=1e-5)
            least = hits[4].relevance
            kept = [hit for hit in hits if (hit.relevance or 0) >= (least or 0)]
            assert list(index.search(TEXT, 10, mode="dense", vectors=name, min_relevance=least)) == kept
            assert index.search(TEXT, 3, mode="dense", vectors=name, min_relevance=1).nothing_relevant
        index.upsert([{"id": "d1", "text": "a lake", "vectors": {"image": [0.0, 1.0, 0.0]}}])
        for query, vectors in ((TEXT, ["title", "body"]), ([0.0, 1.0, 0.0], "image")):
            hits = index.search(query, 3, mode="dense", vectors=vectors)
            assert {hit.relevance for hit in hits} == {None}
            with pytest.raises(scannery.InvalidArgumentError, match="min_relevance: "):
                index.search(query, 3, mode="dense", vectors=vectors, min_relevance=0.5)


def test_servers_give_the_same_relevance(built: Path) -> None:
    asks: list[dict[str, Any]] = [
        {"rerank": 12},
        {"rerank": 12, "min_relevance": 0.3},
        {"rerank": 12, "min_relevance": 1},
        {"mode": "dense", "vectors": "title"},
        {"mode": "dense", "vectors": "title", "min_relevance": 0.5},
    ]
    with serving(built, device="cpu") as server, scannery.connect(built) as embedded:
        for http in (False, True):
            target = f"http://127.0.0.1:{server.http_port}" if http else server.address
            with scannery.connect(target, http=http) as client:
                for options in asks:
                    answers = [each.index("talks").search(TEXT, 15, **options) for each in (embedded, client)]
                    assert list(answers[0]) == list(answers[1])
                    assert answers[0].nothing_relevant == answers[1].nothing_relevant


def test_another_cross_encoder_has_no_relevance_until_a_build(
    built: Path, reranker: Path, tmp_path: Path
) -> None:
    store = copied(built, tmp_path)
    another = make_cross_encoder(tmp_path / "another", seed=3)
    before = current(store)
    with scannery.connect(store) as client:
        index = client.index("talks")
        first = {hit.id: hit.relevance for hit in index.search(TEXT, 12)}
        index.alter(reranker=str(another))
    assert relevance_of(current(store)) == relevance_of(before)
    with scannery.connect(store) as client:
        hits = client.index("talks").search(TEXT, 12, rerank=12)
        assert {hit.id: hit.relevance for hit in hits} == first
        least = sorted(first.values(), key=lambda each: -(each or 0))[4]
        relevant = client.index("talks").search(TEXT, 12, rerank=12, min_relevance=least)
        assert {hit.id for hit in relevant} == {
            name for name, each in first.items() if (each or 0) >= (least or 0)
        }
    # The server's own model goes before that of the spec.
    with (
        serving(store, device="cpu", reranker=str(reranker)) as server,
        scannery.connect(server.address) as client,
    ):
        hits = client.index("talks").search(TEXT, 12, rerank=12)
        relevances = expected(before, RERANK, [hit.rerank_score for hit in hits])
        assert [hit.relevance for hit in hits] == pytest.approx(relevances, abs=1e-6)
    opened, path = Store.open(store), tmp_path / "more.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in talks(80, 84)))
    run(opened, str(path), spec=with_models(another))
    after = relevance_of(current(store))
    assert after.models[RERANK].model == reranker_digest(another)
    assert after == relevance_of(before).model_copy(update={"models": after.models})
    assert {key: each for key, each in after.models.items() if key != RERANK} == {
        key: each for key, each in relevance_of(before).models.items() if key != RERANK
    }


def test_small_updates_keep_what_was_measured_and_a_model_that_is_gone_fails_no_build(
    built: Path, reranker: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = copied(built, tmp_path)
    opened, before = Store.open(store), relevance_of(current(store))
    with scannery.connect(store) as client:
        client.index("talks").delete(["d1"])
    seal(opened, "talks")
    assert compact("talks", str(store)).version
    assert relevance_of(current(store)) == before
    path = tmp_path / "more.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in talks(80, 84)))
    spec = with_models(reranker)
    run(opened, str(path), spec=spec)
    assert relevance_of(current(store)) == before
    gone = tmp_path / "gone"
    for folder in (gone, reranker):
        path.write_text("".join(f"{json.dumps(record)}\n" for record in talks(84, 86 + (folder == gone))))
        run(opened, str(path), spec=spec | {"reranker": {"model": str(folder)}})
        assert relevance_of(current(store)) == before
    assert "is not known" in caplog.text
    # A model that is there and cannot be used tells nothing, and is not tried again.
    broken = Path(shutil.copytree(reranker, tmp_path / "broken"))
    (broken / "tokenizer.json").write_text("{}")
    path.write_text("".join(f"{json.dumps(record)}\n" for record in talks(90, 92)))
    run(opened, str(path), spec=spec | {"reranker": {"model": str(broken)}})
    after = relevance_of(current(store))
    assert after.models == before.models | {RERANK: ModelCurve(model=reranker_digest(broken))}


def test_a_model_that_is_gone_keeps_its_curve_when_all_else_is_measured_again(
    built: Path, reranker: Path, tmp_path: Path
) -> None:
    store = copied(built, tmp_path)
    before, path = relevance_of(current(store)), tmp_path / "more.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in talks(80, 200)))
    spec = with_models(reranker) | {"reranker": {"model": str(tmp_path / "gone")}}
    run(Store.open(store), str(path), spec=spec)
    after = relevance_of(current(store))
    assert (before.rows, after.rows) == (80, 200)
    assert after.models[RERANK] == before.models[RERANK]
    assert after.models.keys() == KEYS


def test_hits_without_relevance_are_dropped_by_a_least_one_above_0(built: Path) -> None:
    with scannery.connect(built) as client:
        index = client.index("talks")
        hits = index.search(TEXT, 10, rerank=3, fusion="reciprocal_rank")
        assert [hit.relevance is None for hit in hits] == [False] * 3 + [True] * 7
        zero = index.search(TEXT, 10, rerank=3, fusion="reciprocal_rank", min_relevance=0)
        assert [(hit.id, hit.relevance) for hit in zero] == [(hit.id, hit.relevance) for hit in hits]
        some = index.search(TEXT, 10, rerank=3, fusion="reciprocal_rank", min_relevance=1e-9)
        assert [hit.id for hit in some] == [hit.id for hit in hits[:3]]


def test_without_such_models_nothing_is_measured(store: Store, write: Any) -> None:
    run(store, write("a.jsonl", records(0, 80)), spec=SPEC)
    assert relevance_of(manifest_of(store, "talks")).models == {}


def test_a_model_that_nothing_can_be_asked_about_is_not_measured_again(
    store: Store, write: Any, reranker: Path, tmp_path: Path
) -> None:
    short = [{"id": f"s{row}", "text": "a red shoe"} for row in range(80)]
    run(store, write("a.jsonl", short), spec=SPEC)
    run(
        store,
        write("b.jsonl", [{"id": "s80", "text": "a red shoe"}]),
        spec=SPEC | {"reranker": {"model": str(reranker)}},
    )
    manifest = manifest_of(store, "talks")
    assert relevance_of(manifest).models == {RERANK: ModelCurve(model=reranker_digest(reranker))}
    empty = Store.open(tmp_path / "empty", create=True)  # without the segments, which would be read
    assert with_measured_search(manifest, manifest, empty, {"": unused}) == manifest


def test_an_index_of_named_vectors_alone_has_both(store: Store, write: Any, reranker: Path) -> None:
    spec = with_models(reranker) | {
        "encoder": None,
        "lexical": False,
        "named_vectors": {"title": NAMED["title"]},
    }
    run(
        store,
        write("a.jsonl", talks(0, 80)),
        spec={key: each for key, each in spec.items() if each is not None},
    )
    manifest = manifest_of(store, "talks")
    assert set(relevance_of(manifest).all_curves) == {RERANK, "vectors.title"}
    with scannery.connect(store.uri) as client:
        plain = client.index("talks").search(TEXT, 8)
        ordered = client.index("talks").search(TEXT, 8, rerank=8)
    relevances = expected(manifest, "vectors.title", [hit.score for hit in plain])
    assert [hit.relevance for hit in plain] == pytest.approx(relevances, abs=1e-6)
    relevances = expected(manifest, RERANK, [hit.rerank_score for hit in ordered])
    assert [hit.relevance for hit in ordered] == pytest.approx(relevances, abs=1e-6)


def test_passages_are_found_by_the_title_of_their_document(store: Store, write: Any) -> None:
    spec = SPEC | {
        "source": {
            "id": "id",
            "title": "title",
            "text": "text",
            "chunk": {"max_tokens": 24, "overlap_tokens": 0},
        },
        "named_vectors": {"title": NAMED["title"]},
    }
    long = [{**each, "text": f"{each['text']} {each['text']}"} for each in talks(0, 80)]
    run(store, write("a.jsonl", long), spec=spec)
    manifest = manifest_of(store, "talks")
    assert manifest.rows > 160
    curve = relevance_of(manifest).models["vectors.title"].curve
    assert curve is not None
    assert curve.separation > 0.8


def test_calibration_fits_all_curves(built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = copied(built, tmp_path)
    before = relevance_of(current(store))
    arguments = ("index", "calibrate", "talks", "--store", str(store), *judged(tmp_path, 40))
    assert main(list(arguments)) == 0
    printed = capsys.readouterr().out
    after = relevance_of(current(store))
    assert set(after.all_curves) == set(before.all_curves)
    for key, curve in before.all_curves.items():
        assert after.all_curves[key] != curve
        assert f"{key}: error" in printed
    assert {key: each.model for key, each in after.models.items()} == {
        key: each.model for key, each in before.models.items()
    }


def test_the_time_of_reranking_is_bounded(built: Path, reranker: Path) -> None:
    index = open_index(Store.open(built), "talks")
    about = questions_about(index)
    rows = Ranked(np.array([PASSAGE, 0, 1], np.int64), np.array([0.9, 0.5, 0.4]))
    no_search = QuestionSearch(rows, None, ((0.0, 0.0),) * 2, (0.0, 0.0), np.empty(0, np.int64))  # type: ignore[arg-type]
    questions = [
        RankedQuestion(each.question.text, no_search, rows, each.question.rests[1]) for each in about
    ]
    foreign = [RankedQuestion("why do cats purr", no_search, Ranked(rows.keys_H[1:], rows.scores_H[1:]))] * 16
    model = Reranker.load(reranker, device="cpu")
    seconds = iter(range(10_000))
    whole = reranked_curve(index, questions, foreign, model, clock=lambda: 0.0)
    assert (whole.questions, whole.foreign_questions) == (16, 16)
    assert whole.curve is not None
    part = reranked_curve(index, questions, foreign, model, clock=lambda: next(seconds) * RERANK_SECONDS / 3)
    assert (part.questions, part.foreign_questions) == (LEAST_RERANKED + 2,) * 2
    assert part.curve is not None
    assert part.model == model.digest
    few = reranked_curve(index, questions[: LEAST_RERANKED - 1], foreign, model)
    assert (few.questions, few.curve) == (LEAST_RERANKED - 1, None)
