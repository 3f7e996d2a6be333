"""States of searches with a model for queries: what builds, other models, other encoders and backups make of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.cli.main import main
from scannery.indexer import IndexSpec, Manifest, Store, parse_spec
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.versions.creation import alter_index, promote_index
from scannery.pipelines import build, building
from scannery.pipelines.execution.run import execute
from scannery.pipelines.planning.planned_encoder import encoder_sources
from scannery.training.errors import PromotionRefusedError
from scannery.training.gate.evaluation import encoded_questions
from scannery.training.judged import question_digest
from scannery.training.promotion import promote, promoted_state, rollback
from tests.cli.models.test_query_side import (
    NAME,
    QUICK,
    few_questions,
    query_vector,
    spec_of,
    trained,
    with_model,
)
from tests.cli.models.test_train import SIDES, SPEC, TOPICS, built, current, records, store
from tests.served import MINILM, copied

pytestmark = pytest.mark.system
__all__ = ["built", "few_questions", "store", "with_model"]


@pytest.fixture
def copy(with_model: Path, tmp_path: Path) -> Path:
    return copied(with_model, tmp_path)


@pytest.fixture
def talks(tmp_path: Path) -> str:
    (tmp_path / "talks.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records()))
    return str(tmp_path / "talks.jsonl")


def forced(store: Store, reference: str) -> Manifest:
    """Promote a model whatever it was compared with."""
    model = ModelRegistry(store).read(reference)

    def promoted(parent: Manifest) -> Manifest:
        former = (*parent.former, parent.search_state)
        return parent.with_search_state(promoted_state(model, parent)).model_copy(update={"former": former})

    return promote_index(store, "talks", promoted)


def other_questions(folder: Path) -> Path:
    """Write the spec of a training with questions of which none is one of `judged`."""
    folder.mkdir()
    pairs = [(topic, side) for topic in TOPICS for side in SIDES]
    lines = [json.dumps({"_id": f"{t}-{s}", "text": f"{s} of a {t}"}) for t, s in pairs]
    (folder / "queries.jsonl").write_text("\n".join(lines))
    qrels = [f"{t}-{s}\t{t}-{s}\t1" for t, s in pairs]
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *qrels]))
    spec = folder / "train.yaml"
    spec.write_text("name: orders\nindex: talks\nevaluate: {queries: queries.jsonl, qrels: qrels.tsv}\n")
    return spec


def test_an_order_over_a_model_for_queries_leaves_both_comparable(copy: Path, tmp_path: Path) -> None:
    opened, spec = Store.open(copy), other_questions(tmp_path / "orders")
    registry = ModelRegistry(opened)
    first = registry.read(NAME).evaluation
    promote(opened, NAME, "talks")
    for _ in range(2):  # the second one with the same questions as the first
        assert main(["train", str(spec), "--store", str(copy)]) == 0
        newest = registry.read("orders").reference
        forced(opened, newest)
    orders = [registry.read(f"orders@{number}").evaluation for number in (1, 2)]
    assert orders[0] is not None
    assert orders[1] is not None
    assert orders[1].target.queries == len(TOPICS) * len(SIDES), "the encoder was not fitted to any of them"
    assert orders[1].target.current == pytest.approx(orders[0].target.candidate)

    again = trained(spec_of(tmp_path), copy).evaluation
    assert first is not None
    assert again is not None
    assert again.compared_with == "orders@2"
    assert again.target.current == pytest.approx(first.target.candidate), (
        "today's encoder knows these queries"
    )


@pytest.mark.parametrize("what", ["another model", "a rollback", "a model"])
def test_a_build_keeps_what_was_promoted_or_rolled_back_while_it_ran(
    copy: Path, talks: str, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Store.open(copy)
    before = current(copy).search_state
    if what != "a model":
        forced(opened, NAME)
    if what == "another model":
        trained(spec_of(tmp_path, f"{QUICK}seed: 5\n"), copy)
    change = {
        "another model": lambda: forced(opened, "animals@2"),
        "a rollback": lambda: rollback(opened, "talks"),
        "a model": lambda: forced(opened, NAME),
    }[what]
    changed = list[Manifest]()

    def interrupted(*arguments: Any) -> Any:
        if not changed:
            changed.append(change())
        return execute(*arguments)

    monkeypatch.setattr(building, "execute", interrupted)
    (tmp_path / "more.jsonl").write_text(json.dumps(records()[0] | {"id": "more"}))
    build(SPEC, [str(tmp_path / "more.jsonl")], str(copy))
    after = current(copy)
    assert after.version > changed[0].version
    assert after.search_state == changed[0].search_state
    assert after.former == changed[0].former
    if what == "a rollback":
        assert after.search_state == before
    else:
        assert rollback(opened, "talks").search_state == changed[0].former[-1]


def test_deletions_keep_what_was_promoted_while_they_ran(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Store.open(copy)
    forced(opened, NAME)
    changed = list[Manifest]()

    def interrupted(*arguments: Any) -> Any:
        if not changed:
            changed.append(rollback(opened, "talks"))
        return execute(*arguments)

    monkeypatch.setattr(building, "execute", interrupted)
    build(SPEC, [], str(copy), deletes=["chess-prices"])
    assert current(copy).search_state == changed[0].search_state


def test_other_words_leave_the_model_for_queries_promoted(copy: Path, talks: str) -> None:
    opened = Store.open(copy)
    promote(opened, NAME, "talks")
    german = SPEC | {"lexical": {"language": "german"}}
    for _ in range(2):
        build(german, [talks], str(copy), mode="full")
        state = current(copy).search_state
        assert (state.model, state.query_model, state.ranker) == (NAME, f"store:{NAME}", None)
    state = rollback(opened, "talks").search_state
    assert (state.model, state.query_model, state.query_encoder) == (None, None, None)


def test_a_build_on_another_device_keeps_the_model_for_queries(copy: Path, talks: str) -> None:
    state = promote(Store.open(copy), NAME, "talks").search_state
    build(SPEC | {"encoder": {"model": MINILM, "device": "cpu", "dtype": "float32"}}, [talks], str(copy))
    assert current(copy).search_state == state
    encoder = current(copy).spec.encoder
    assert encoder is not None
    assert encoder.device == "cpu"


def test_a_model_is_of_the_encoder_that_it_was_trained_beside(tmp_path: Path) -> None:
    # Without words, and with too few rows for anything to be measured.
    (tmp_path / "talks.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records()))
    store = tmp_path / "store"
    spec = SPEC | {"lexical": False}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scannery.pipelines.tuning.search_measurement.LEAST_QUESTIONS", 1000)
        build(spec, [str(tmp_path / "talks.jsonl")], str(store))
        model = trained(spec_of(tmp_path), store)
        assert model.search is not None
        assert model.search.measured == ()
        opened = Store.open(store)
        forced(opened, NAME)
        build(
            spec | {"encoder": {"model": MINILM, "dimensions": 128}},
            [str(tmp_path / "talks.jsonl")],
            str(store),
            mode="full",
        )
    assert current(store).query_encoder is None
    with pytest.raises(PromotionRefusedError, match="train it again"):
        forced(opened, NAME)


def test_a_model_is_not_compared_with_queries_of_another_one(copy: Path) -> None:
    opened, model = Store.open(copy), ModelRegistry(Store.open(copy)).read_encoder(NAME)
    assert model.search is not None

    def by_hand(parent: Manifest) -> IndexSpec:
        assert parent.spec.encoder is not None
        encoder = parent.spec.encoder.model_copy(update={"query_model": "sentence-transformers/other"})
        return parent.spec.model_copy(update={"encoder": encoder})

    fingerprint = {**(model.search.query_encoder or {}), "digest": "another"}
    alter_index(opened, "talks", by_hand, queries=lambda spec, name: fingerprint)
    with pytest.raises(PromotionRefusedError, match="but sentence-transformers/other orders the hits today"):
        promote(opened, NAME, "talks")


def test_damaged_values_are_named(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    opened = Store.open(copy)
    evaluation = ModelRegistry(opened).read(NAME).evaluation
    assert evaluation is not None
    promote(opened, NAME, "talks")
    opened.write(evaluation.values, b"PAR1 is no table")
    capsys.readouterr()
    assert main(["train", str(spec_of(tmp_path)), "--kind", "query_side", "--store", str(copy)]) != 0
    assert f"{evaluation.values} is damaged" in " ".join(capsys.readouterr().err.split())


def test_a_backup_has_what_another_model_is_compared_with(copy: Path, tmp_path: Path) -> None:
    promote(Store.open(copy), NAME, "talks")
    restored, backup = tmp_path / "restored", str(tmp_path / "backup")
    assert main(["index", "snapshot", "talks", "--store", str(copy), "--to", backup]) == 0
    assert main(["index", "restore", "talks", "--store", str(restored), "--from", backup]) == 0
    evaluation = ModelRegistry(Store.open(restored)).read(NAME).evaluation
    assert evaluation is not None
    values = [ModelRegistry(Store.open(each)).read_values(evaluation.values) for each in (copy, restored)]
    assert values[0].equals(values[1])


def test_named_vectors_are_measured_with_their_model_for_queries(copy: Path) -> None:
    encoder = {"model": MINILM, "query_model": f"store:{NAME}"}
    spec = parse_spec(SPEC | {"named_vectors": {"title": {"encoder": encoder, "from": "text"}}})
    sources = encoder_sources(spec, str(copy))
    [vector_D] = sources["title"]().encode_queries(["chess and prices"])
    assert np.allclose(vector_D, query_vector(copy, NAME, "chess and prices"), atol=1e-5)
    assert not np.allclose(vector_D, sources[""]().encode_queries(["chess and prices"])[0], atol=1e-2)


def test_questions_that_the_encoder_of_documents_was_fitted_to_are_known(copy: Path) -> None:
    registry, manifest = ModelRegistry(Store.open(copy)), current(copy)
    assert encoded_questions(registry, manifest) == frozenset()
    assert manifest.spec.encoder is not None
    encoder = manifest.spec.encoder.model_copy(update={"model": "store:animals@1"})
    built_with = manifest.model_copy(update={"spec": manifest.spec.model_copy(update={"encoder": encoder})})
    questions = {question_digest(f"{topic} and {side}") for topic in TOPICS for side in SIDES}
    assert encoded_questions(registry, built_with) == questions
