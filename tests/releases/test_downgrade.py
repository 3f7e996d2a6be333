"""Former releases and this one write to one store in turns, and no row is lost."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import Store, read_manifest
from scannery.indexer.versions.levels import LAST_RELEASES, level_of
from tests.data import at_full_length
from tests.embed.tiny_models import make_model
from tests.releases.former import NOW, Release, Written, release_of

pytestmark = pytest.mark.system

STORE = ("--store", "STORE")
LEVELS = [
    pytest.param(level, marks=[pytest.mark.long] if level < max(LAST_RELEASES) else [])
    for level in LAST_RELEASES
]


@pytest.fixture(scope="module")
def releases(pytestconfig: pytest.Config) -> Path:
    """Return a folder that stays: to compile the kernels of a release takes half a minute."""
    return pytestconfig.cache.mkdir("releases")


def take(release: Release, store: Path, *steps: Sequence[Any], holding: Sequence[Written]) -> list[Any]:
    """Take steps by a release, check that the indexes hold what they must then, and return values of the steps."""
    values = release.take(store, *steps, *(written.rows for written in holding))
    for written, rows in zip(holding, values[len(steps) :], strict=True):
        assert rows == written.expected, (release, written.index)
    return values[: len(steps)]


@pytest.mark.parametrize("level", LEVELS)
def test_writes_of_both_releases_outlast_upgrade_downgrade_and_upgrade(
    level: int, releases: Path, tmp_path: Path
):
    former, store = release_of(level, releases), tmp_path / "store"
    talks = Written("talks")
    keys = ("--file", str(tmp_path / "keys.json"))
    copy, restored = str(tmp_path / "copy"), str(tmp_path / "restored")
    first = [
        ["create", "talks", Written.SPEC],
        talks.upsert(range(40), 0),
        talks.delete(3, 4),
        ["alias", "live", "talks"],
        ["command", "keys", "create", "first", *keys],
        talks.run("seal"),
        talks.upsert(range(5, 15), 1),
        talks.delete(20),
    ]
    take(former, store, *first, holding=[talks])

    second = [
        talks.rows,  # of the log that the former release has begun
        talks.upsert(range(10, 20), 2),
        talks.delete(5, 30),
        talks.run("seal"),
        talks.upsert(range(40, 60), 2),
        ["alter", "talks", {"attributes": {"language": "string"}, "target_recall": 0.9}],
        talks.run("seal"),
        talks.run("merge"),
        talks.upsert(range(3), 3),
        ["alias", "other", "talks"],
        ["command", "keys", "create", "second", *keys],
        ["feedback", "talks", [1.0] * 8],
        ["branch", "talks", "trial"],
        ["command", "index", "snapshot", "talks", *STORE, "--to", copy],
    ]
    trial = talks.branched("trial")
    take(NOW, store, *second, trial.upsert(range(98, 99), 2), holding=[talks, trial])

    copied = len(talks.expected)
    third = [
        talks.upsert(range(30, 45), 4),
        talks.delete(50),
        talks.run("seal"),
        ["alter", "talks", {"attributes": {"place": "string"}}],
        talks.upsert(range(2, 4), 5),
        talks.run("compact"),
        talks.run("gc"),
        trial.upsert(range(97, 98), 4),
        trial.run("seal"),
        ["command", "index", "restore", "talks", "--from", copy, "--store", restored],
        ["command", "count", "--index", "talks", "--store", restored],
        ["aliases"],
        ["command", "keys", "list", *keys],
    ]
    *_, count, aliases, listed = take(former, store, *third, holding=[talks, trial])
    assert int(count) == copied
    assert aliases == {"live": "talks", "other": "talks"}
    assert "first" in listed and "second" in listed

    fourth = [
        talks.upsert(range(60, 70), 6),
        talks.delete(0),
        talks.run("seal"),
        talks.run("merge"),
        talks.run("verify"),
        trial.run("verify"),
        ["ids", "talks", "number 65", {"k": 1, "mode": "lexical"}],
    ]
    *_, hits = take(NOW, store, *fourth, holding=[talks, trial])
    assert hits == ["d65"]
    assert level_of(Store.open(store)) == level_of(Store.open(copy)) == 1
    assert read_manifest(Store.open(store), "talks").spec.attributes.keys() >= {"language", "place"}


@pytest.mark.long
# In each log one of the releases. What the first does with its log in the store is done above, though not at random.
@pytest.mark.parametrize(
    ("level", "log"),
    [
        pytest.param(*case, marks=at_full_length("a minute")) if case[1] == "in the store" else case
        for case in zip(LAST_RELEASES, ["in the store", "in PostgreSQL"], strict=True)
    ],
)
def test_random_writes_of_both_releases_in_four_turns(
    level: int,
    log: str,
    releases: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
):
    if log == "in PostgreSQL":
        monkeypatch.setenv("SCANNERY_LOG", request.getfixturevalue("postgres").new_database())
    former, store = release_of(level, releases), tmp_path / "store"
    talks, chosen = Written("talks"), random.Random(level)
    take(former, store, ["create", "talks", Written.SPEC], talks.upsert(range(1000), 0), holding=[talks])
    for turn in range(1, 4):
        steps = []
        for part in range(4):
            start = chosen.randrange(2000)
            steps.append(talks.upsert(range(start, start + chosen.randrange(1, 300)), 10 * turn + part))
            ids = chosen.sample(sorted(talks.expected), 50)
            steps.append(talks.delete(*(int(name[1:]) for name in ids)))
            if task := chosen.choice(("seal", "merge", "compact", "")):
                steps.append(talks.run(task))
        take(NOW if turn % 2 else former, store, *steps, holding=[talks])
    NOW.take(store, talks.run("verify"))
    assert (store / "talks" / "log" / "log.sqlite").exists() == (log == "in the store")


@pytest.mark.long
@pytest.mark.parametrize("level", [min(LAST_RELEASES)])
def test_builds_and_new_indexes_until_the_level_is_raised(level: int, releases: Path, tmp_path: Path):
    former, store = release_of(level, releases), tmp_path / "store"
    model = str(make_model("bert-cls", tmp_path))
    talks, notes = Written("talks", with_vectors=False), Written("notes", with_vectors=False)
    attributes = {"show": "string", "year": "int"}
    spec = tmp_path / "spec.yaml"
    options = {"encoder": {"model": model}, "attributes": attributes, "lexical": True}
    spec.write_text(json.dumps({"index": "talks", "source": {"text": "text"}, **options}))

    def build(numbers: range, revision: int) -> list[str]:
        records = [
            {"id": each["id"], "text": each["text"], **each["attributes"]}
            for each in talks.records(numbers, revision)
        ]
        path = tmp_path / f"{revision}.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return ["command", "build", str(spec), "--input", str(path), *STORE]

    passages = {**options, "chunk": {"max_tokens": 32, "overlap_tokens": 4}}
    take(former, store, build(range(30), 0), talks.upsert(range(5), 1), holding=[talks])
    second = [
        build(range(20, 40), 2),
        talks.upsert(range(3, 8), 3),
        ["create", "notes", options],
        notes.upsert(range(10), 3),
        ["create", "passages", passages],
        ["upsert", "passages", [{"id": "p", "text": "volcano river fox " * 30}]],
        ["command", "model", "add", model, "--name", "tiny", *STORE],
    ]
    take(NOW, store, *second, holding=[talks, notes])

    migrate = [
        "command",
        "index",
        "migrate",
        "talks",
        "--encoder",
        json.dumps({"model": model, "dimensions": 8}),
    ]
    refused = NOW.attempt(
        store,
        [*migrate, *STORE],
        ["alter", "talks", {"search": {"ranking": {"newest": "score + year"}}}],
        ["create", "stored", {**options, "encoder": {"model": "store:tiny@1"}}],
        talks.rows,
    )
    assert all("`scannery store upgrade STORE`" in answer["error"] for answer in refused[:-1]), refused
    assert refused[-1]["value"] == talks.expected

    third = [
        build(range(35, 45), 4),
        talks.upsert(range(6, 12), 5),
        talks.run("seal"),
        notes.upsert(range(8, 12), 5),
        notes.run("seal"),
        ["upsert", "passages", [{"id": "q", "text": "guitar ocean dog " * 30}]],
        ["ids", "passages", "ocean", {"k": 1, "mode": "lexical"}],
    ]
    *_, hits = take(former, store, *third, holding=[talks, notes])
    assert hits[0].startswith("q#")

    fourth: list[Sequence[Any]] = [
        talks.run("verify"),
        ["command", "store", "upgrade", "STORE", "--yes"],
        [*migrate, *STORE],
        ["alter", "notes", {"search": {"ranking": {"newest": "score + year"}}}],
        talks.upsert(range(50, 52), 6),
    ]
    take(NOW, store, build(range(44, 47), 6), *fourth, holding=[talks, notes])
    answer = former.attempt(store, ["rows", "notes", False])[0]
    assert "was written by a later Scannery: spec.search.ranking is unknown" in answer["error"]
