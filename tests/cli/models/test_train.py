"""`scannery train` and `scannery model`: from judged queries to the order of hits, and back."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.cli.main import main
from scannery.indexer import Manifest, Store, read_manifest
from scannery.indexer.manifest import SearchState
from scannery.indexer.models.manifest import RankingVersion
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.versions.creation import promote_index
from scannery.live.maintenance.seal import seal
from scannery.pipelines import build
from scannery.pipelines.tuning import search_measurement
from scannery.training.errors import PromotionRefusedError
from scannery.training.promotion import check_fits
from tests.served import copied, made_once

pytestmark = pytest.mark.system

TOPICS = [
    "volcano", "bread", "chess", "battery", "orchestra", "harbour", "glacier", "satellite", "beekeeping", "railway",
    "pottery", "sailing", "astronomy", "cheese", "marathon", "origami", "lighthouse", "mushroom", "violin", "cathedral",
]  # fmt: skip
SIDES = ["history", "repair", "weather", "prices", "people"]
SPEC: dict[str, Any] = {
    "index": "talks",
    "source": {"id": "id", "text": "text", "chunk": {"max_tokens": 40}},
    "encoder": {"model": "sentence-transformers/all-MiniLM-L6-v2"},
    "lexical": True,
}


def records() -> list[dict[str, str]]:
    """Return short talks that are about a topic and a side, and long ones that name all topics a few times."""
    short = [
        {
            "id": f"{topic}-{side}",
            "text": f"This talk is about the {side} of {topic}. We ask about {side} first.",
        }
        for topic in TOPICS
        for side in SIDES
    ]
    digests = [
        {
            "id": f"digest-{side}",
            "text": " ".join(f"Then somebody says {topic} and {side}, {topic}." for topic in TOPICS),
        }
        for side in SIDES
    ]
    return short + digests


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the index `talks`, which is not changed."""

    def make(folder: Path) -> None:
        (folder / "talks.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(search_measurement, "LEAST_QUESTIONS", 10)
            build(SPEC, [str(folder / "talks.jsonl")], str(folder / "store"))

    return made_once(tmp_path_factory, "talks", make) / "store"


@pytest.fixture(scope="module")
def with_ranker(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the index, and the version `animals@1` that was trained by `judged(…, short_talk)`."""

    def make(folder: Path) -> None:
        assert main(["train", str(judged(folder, short_talk)), "--store", str(copied(built, folder))]) == 0

    return made_once(tmp_path_factory, "talks-ranker", make) / "copy"


@pytest.fixture
def store(built: Path, tmp_path: Path) -> Path:
    return copied(built, tmp_path)


@pytest.fixture
def trained(with_ranker: Path, tmp_path: Path) -> Path:
    return copied(with_ranker, tmp_path)


def judged(folder: Path, answer: Callable[[str, str], str], *, pairs: slice = slice(None)) -> Path:
    """Write queries about topics and sides, the document that answers each, and a spec; return the spec."""
    asked = [(topic, side) for topic in TOPICS for side in SIDES][pairs]
    queries = (json.dumps({"_id": f"{t}-{s}", "text": f"{t} and {s}"}) for t, s in asked)
    (folder / "queries.jsonl").write_text("\n".join(queries))
    lines = (f"{t}-{s}\t{answer(t, s)}\t1" for t, s in asked)
    (folder / "qrels.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]))
    spec = folder / "train.yaml"
    spec.write_text("name: animals\nindex: talks\nevaluate: {queries: queries.jsonl, qrels: qrels.tsv}\n")
    return spec


def short_talk(topic: str, side: str) -> str:
    """Return the document that people want here, which the default order has behind a long one."""
    return f"{topic}-{side}"


def long_talk(_: str, side: str) -> str:
    """Return the document that the default order has first."""
    return f"digest-{side}"


def current(store: Path) -> Manifest:
    return read_manifest(Store.open(store), "talks")


def first_hits(store: Path, question: str = "chess and prices") -> list[str]:
    with scannery.connect(store) as client:
        return [
            hit.document_id for hit in client.index("talks").search(question, 5, max_per_group=1, fields=[])
        ]


def test_a_ranker_is_trained_promoted_kept_by_writes_and_rolled_back(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, where, before = judged(tmp_path, short_talk), ("--store", str(store)), current(store)
    assert first_hits(store)[0] == "digest-prices"
    assert main(["train", str(spec), *where, "--json"]) == 0
    model = json.loads(capsys.readouterr().out)
    assert (model["name"], model["version"], model["kind"]) == ("animals", 1, "ranking")
    assert model["evaluation"]["target"]["low"] > 0.2
    assert model["evaluation"]["refused"] == []
    assert model["ranker"]["weights"]["document_words"] < 0
    assert current(store) == before, "nothing is published by training"

    assert main(["model", "promote", "animals", "-i", "talks", *where, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["model"] == "animals@1"
    after = current(store)
    assert (after.version, after.parent) == (before.version + 1, before.version)
    assert [entry.sha256 for entry in after.segments] == [entry.sha256 for entry in before.segments]
    assert first_hits(store)[0] == "chess-prices"
    assert main(["model", "promote", "animals@1", "-i", "talks", *where]) == 0
    assert current(store) == after, "it is there already"

    with scannery.connect(store) as client:
        client.index("talks").upsert([{"id": "late", "text": "A late talk about chess."}])
    assert seal(Store.open(store), "talks") is not None
    assert current(store).ranker == after.ranker
    assert main(["index", "show", "talks", *where]) == 0
    assert "animals@1, fitted to 100 judged queries" in capsys.readouterr().out

    assert main(["train", str(spec), *where]) == 0
    assert "It may not be promoted: it is not better" in " ".join(capsys.readouterr().out.split())
    assert main(["model", "promote", "animals@2", "-i", "talks", *where]) == 1
    assert "animals@2 may not be promoted" in capsys.readouterr().err
    assert main(["model", "rollback", "-i", "talks", *where]) == 0
    assert current(store).ranker is None
    assert first_hits(store)[0] == "digest-prices"
    assert main(["model", "rollback", "-i", "talks", *where]) == 3


def ranking_of(registry: ModelRegistry, reference: str) -> RankingVersion:
    version = registry.read(reference)
    assert isinstance(version, RankingVersion)
    return version


def copy_of(model: RankingVersion, name: str, number: int, compared_with: str | None) -> RankingVersion:
    """Return a version of a model with the weights of another one, compared with some order."""
    return model.model_copy(
        update={
            "name": name,
            "version": number,
            "ranker": model.ranker.model_copy(update={"model": f"{name}@{number}"}),
            "evaluation": model.evaluation.model_copy(update={"compared_with": compared_with}),
        }
    )


def test_a_model_that_was_compared_with_another_order_is_refused(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, where = trained, ("--store", str(trained))
    assert main(["train", str(judged(tmp_path, short_talk)), *where]) == 0
    assert main(["model", "promote", "animals@1", "-i", "talks", *where]) == 0
    capsys.readouterr()
    assert main(["model", "promote", "animals@2", "-i", "talks", *where]) == 1
    assert "is better than the measured weight, but animals@1 orders the hits" in capsys.readouterr().err
    assert main(["model", "rollback", "-i", "talks", *where]) == 0
    assert main(["model", "promote", "animals@2", "-i", "talks", *where]) == 0
    former = tuple(SearchState(model=f"animals@{number}") for number in range(1, 40))
    promote_index(Store.open(store), "talks", lambda parent: parent.model_copy(update={"former": former}))
    registry = ModelRegistry(Store.open(store))
    first = ranking_of(registry, "animals@1")
    registry.register("birds", lambda number: copy_of(first, "birds", number, "animals@2"))
    assert main(["model", "promote", "birds", "-i", "talks", *where]) == 0
    after = current(store)
    assert after.model == "birds@1"
    assert [each.model for each in after.former] == [each.model for each in former[-19:]] + ["animals@2"]


def test_a_rollback_brings_the_model_before_back(trained: Path) -> None:
    store, where = trained, ("--store", str(trained))
    registry = ModelRegistry(Store.open(store))
    first = ranking_of(registry, "animals@1")
    registry.register("birds", lambda number: copy_of(first, "birds", number, "animals@1"))
    registry.register("fishes", lambda number: copy_of(first, "fishes", number, "birds@1"))
    for name in ("animals", "birds", "fishes"):
        assert main(["model", "promote", name, "-i", "talks", *where]) == 0
    seen = []
    while (ranker := current(store).ranker) is not None:
        seen.append(ranker.model)
        assert main(["model", "rollback", "-i", "talks", *where]) == 0
    assert seen == ["fishes@1", "birds@1", "animals@1"]


def test_a_rollback_passes_over_models_for_queries_that_the_store_does_not_have(store: Path) -> None:
    before = current(store)
    gone = before.search_state.model_copy(update={"model": "gone@1", "query_model": "store:gone@1"})
    promoted = {"former": (before.search_state, gone), "model": "other@1"}
    promote_index(Store.open(store), "talks", lambda parent: parent.model_copy(update=promoted))
    assert main(["model", "rollback", "-i", "talks", "--store", str(store)]) == 0
    after = current(store)
    assert (after.search_state, after.former) == (before.search_state, ())


def test_a_damaged_version_does_not_end_the_training_of_the_next(trained: Path, tmp_path: Path) -> None:
    spec, store, where = judged(tmp_path, short_talk), trained, ("--store", str(trained))
    assert main(["train", str(spec), *where]) == 0
    Store.open(store).write("_models/animals/versions/00000001.json", b"{")
    assert main(["train", str(spec), *where]) == 0
    assert ranking_of(ModelRegistry(Store.open(store)), "animals@3").evaluation.earlier == 2


def test_old_models_go_unless_an_index_needs_them(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, where = trained, ("--store", str(trained))
    registry = ModelRegistry(Store.open(store))
    first = ranking_of(registry, "animals@1")

    for _ in range(5):
        registry.register("animals", lambda number: copy_of(first, "animals", number, "animals@1"))
    for reference in ("animals@1", "animals@3"):
        assert main(["model", "promote", reference, "-i", "talks", *where]) == 0
    capsys.readouterr()
    assert main(["model", "gc", *where, "--keep", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "removed": ["animals@2", "animals@4"],
        "files": 0,
        "freed_bytes": 0,
    }
    assert registry.versions("animals") == [1, 3, 5, 6]
    assert Store.open(store).exists(first.evaluation.values), "later versions have the same values"
    assert main(["model", "rollback", "-i", "talks", *where]) == 0
    ranker = current(store).ranker
    assert ranker is not None
    assert ranker.model == "animals@1"
    assert main(["model", "gc", *where]) == 0
    assert "Nothing to remove" in capsys.readouterr().out


def test_candidates_that_were_removed_count_among_those_compared_on_the_same_queries(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec, where = judged(tmp_path, short_talk), ("--store", str(trained))
    earlier = [ranking_of(ModelRegistry(Store.open(trained)), "animals").evaluation.earlier]
    for _ in range(2):
        capsys.readouterr()
        assert main(["train", str(spec), *where, "--json"]) == 0
        earlier.append(json.loads(capsys.readouterr().out)["evaluation"]["earlier"])
        assert main(["model", "gc", *where, "--keep", "1"]) == 0
    assert earlier == [0, 1, 2]


def test_judgements_that_tell_nothing_are_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--store", str(store))
    # The default order answers these already.
    assert main(["train", str(judged(tmp_path, long_talk)), *where]) == 0
    assert "it is not better with certainty" in " ".join(capsys.readouterr().out.split())
    few = judged(tmp_path, short_talk, pairs=slice(0, 100, 5))
    assert main(["train", str(few), *where]) == 0
    assert "20 judged queries are too few" in " ".join(capsys.readouterr().out.split())
    assert main(["model", "promote", "animals", "-i", "talks", *where]) == 1
    assert main(["train", str(judged(tmp_path, short_talk, pairs=slice(0, 3))), *where]) == 2
    assert "3 judged queries are too few to fit anything" in capsys.readouterr().err
    assert main(["train", str(judged(tmp_path, lambda *_: "nothing")), *where]) == 0
    assert current(store).ranker is None


def test_queries_with_equal_texts_are_one(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = judged(tmp_path, short_talk)
    lines = [json.loads(line) for line in (tmp_path / "queries.jsonl").read_text().splitlines()]
    repeated = [
        {"_id": f"{line['_id']}-{number}", "text": text}
        for line in lines[:20]
        for number, text in enumerate(
            [line["text"], line["text"].upper(), f" {line['text']}  ", line["text"]]
        )
    ]
    (tmp_path / "queries.jsonl").write_text("\n".join(map(json.dumps, repeated)))
    (tmp_path / "qrels.tsv").write_text(
        "\n".join(f"{line['_id']}\t{line['_id'].rpartition('-')[0]}\t1" for line in repeated)
    )
    assert main(["train", str(spec), "--store", str(store)]) == 0
    assert "20 judged queries are too few to tell" in " ".join(capsys.readouterr().out.split())


def test_an_alias_stands_for_the_index_and_commands_can_be_copied(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spaced = tmp_path / "a store"
    store.rename(spaced)
    where = ("--store", str(spaced))
    assert main(["index", "alias", "speeches", "talks", *where]) == 0
    spec = judged(tmp_path, short_talk)
    spec.write_text(spec.read_text().replace("index: talks", "index: speeches"))
    capsys.readouterr()
    assert main(["train", str(spec), *where]) == 0
    [command] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Promote it: ")]
    assert main(shlex.split(command.removeprefix("Promote it: scannery "))) == 0
    assert current(spaced).ranker is not None


def test_a_guard_that_loses_is_refused(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(tmp_path, long_talk, pairs=slice(60, 100))
    (tmp_path / "queries.jsonl").rename(tmp_path / "others.jsonl")
    (tmp_path / "qrels.tsv").rename(tmp_path / "others.tsv")
    spec = judged(tmp_path, short_talk, pairs=slice(0, 60))
    spec.write_text(
        "name: animals\nindex: talks\nevaluate:\n  queries: queries.jsonl\n  qrels: qrels.tsv\n"
        "  guards: [{name: long talks, queries: others.jsonl, qrels: others.tsv}]\n"
    )
    assert main(["train", str(spec), "--store", str(store)]) == 0
    assert "it is worse for long talks" in " ".join(capsys.readouterr().out.split())
    others = ("--queries", str(tmp_path / "others.jsonl"), "--qrels", str(tmp_path / "others.tsv"))
    assert (
        main(["model", "evaluate", "animals", "-i", "talks", "--store", str(store), *others, "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["candidate"] < 0.8


def test_guards_are_queries_that_the_ranker_was_not_fitted_to(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--store", str(store), "--json")
    judged(tmp_path, long_talk)
    (tmp_path / "queries.jsonl").rename(tmp_path / "others.jsonl")
    (tmp_path / "qrels.tsv").rename(tmp_path / "others.tsv")
    spec = judged(tmp_path, short_talk, pairs=slice(0, 70))
    guards = "  guards: [{name: long talks, queries: others.jsonl, qrels: others.tsv}]\n"
    spec.write_text(
        f"name: animals\nindex: talks\nevaluate:\n  queries: queries.jsonl\n  qrels: qrels.tsv\n{guards}"
    )
    assert main(["train", str(spec), *where]) == 0
    assert json.loads(capsys.readouterr().out)["evaluation"]["guards"]["long talks"]["queries"] == 30
    judged(tmp_path, short_talk)
    spec.write_text(
        f"name: animals\nindex: talks\nevaluate:\n  queries: queries.jsonl\n  qrels: qrels.tsv\n{guards}"
    )
    assert main(["train", str(spec), *where]) == 2
    assert "all of others.jsonl are among the queries" in capsys.readouterr().err


def test_another_index_and_another_analyser_do_not_get_the_model(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judged(tmp_path, short_talk)
    store, where = trained, ("--store", str(trained))
    (tmp_path / "few.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records()[:8]))
    build({**SPEC, "index": "few"}, [str(tmp_path / "few.jsonl")], str(store))
    assert main(["model", "promote", "animals", "-i", "few", *where]) == 1
    assert "was trained on another index" in capsys.readouterr().err
    # Versions of earlier releases have no identity.
    model = ranking_of(ModelRegistry(Store.open(store)), "animals").model_copy(update={"index_id": None})
    with pytest.raises(PromotionRefusedError, match="another index"):
        check_fits(model, current(store).model_copy(update={"index_id": None, "index": "few"}))
    check_fits(model, current(store).model_copy(update={"index_id": None}))
    assert main(["train", str(tmp_path / "train.yaml"), "--store", str(tmp_path / "none")]) == 3
    text = (tmp_path / "train.yaml").read_text()
    (tmp_path / "train.yaml").write_text(text.replace("talks", "few"))
    assert main(["train", str(tmp_path / "train.yaml"), *where]) == 2
    assert "has no hybrid search by default with measured scales" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name: animals\n", "index"),
        ("name: Animals\nindex: talks\nevaluate: {queries: a, qrels: b}\n", "name"),
        ("name: animals\nindex: talks\nevaluate: {queries: a, qrels: b, guard: []}\n", "evaluate.guard"),
        ("name: [", "is no YAML"),
        ("- name", "must be a mapping"),
        ("", "must be a mapping"),
    ],
)
def test_a_wrong_spec_names_its_key(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    (tmp_path / "train.yaml").write_text(text)
    assert main(["train", str(tmp_path / "train.yaml"), "--store", str(store)]) == 2
    assert message in capsys.readouterr().err
