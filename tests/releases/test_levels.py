"""Levels of stores: what may be used in which store, and golden stores of former releases."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

import scannery
from scannery.cli.main import app
from scannery.indexer import (
    FormatError,
    LevelError,
    Store,
    VectorsInfo,
    alter_index,
    collect_garbage,
    create_index,
    parse_spec,
    read_manifest,
)
from scannery.indexer.manifest import Manifest, Mirror
from scannery.indexer.spec.model import later_keys
from scannery.indexer.versions.creation import altered_spec
from scannery.indexer.versions.dropping import drop_index
from scannery.indexer.versions.levels import (
    LAST_RELEASES,
    LEVEL,
    LEVEL_KEY,
    check_keys,
    keys_of,
    level_of,
    raise_level,
)
from scannery.indexer.versions.versions import change_aliases
from scannery.live.maintenance.copies import restore, snapshot
from tests.releases.former import GOLDEN, Written
from tests.releases.steps import keys, models_in, take

RANKING = {"search": {"ranking": {"newest": "score * 2"}}}
IGNORED = {
    "fusion.scales": "a build measures them again",
    "relevance": "a build measures it again",
    "query_encoder": "only with `encoder.query_model`",
    "named_vectors.query_encoder": "only with `encoder.query_model`",
}
"""Keys of manifests that former releases ignore, and why nothing is lost if they leave them out of the next version."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def begin(store: Store, name: str, **changes: Any) -> Manifest:
    spec = {"index": name, "source": {"vector": "v", "text": "t"}} | changes
    return create_index(store, parse_spec(spec), vectors={"": VectorsInfo(dimensions=4)})


def alter(store: Store, name: str, changes: dict[str, Any]) -> Manifest:
    return alter_index(store, name, lambda parent: altered_spec(parent.spec, changes))


def of_former_release(store: Store, level: int = 1) -> None:
    """Make the store one that a release from before levels has begun, or one of a level."""
    store.delete(LEVEL_KEY)
    if level > 1:
        store.write(LEVEL_KEY, json.dumps({"format": 1, "store": {"level": level}}).encode())


def since(key: str) -> int:
    """Return the level since which a key may be used, by its path; that of what contains it, if that is higher."""
    level = 0
    model: type[BaseModel] = Manifest
    for part in key.split("."):
        mark = later_keys(model).get(part)
        level = max(level, mark.level if mark else 0)
        model = next(models_in(model.model_fields[part].annotation), model)
    return level


@pytest.mark.parametrize("level", LAST_RELEASES)
def test_each_key_that_a_former_release_does_not_know_has_its_level(level: int):
    known = set((GOLDEN / f"level-{level}" / "keys.txt").read_text().split())
    new = {key for key in keys() if since(key) <= level} - known
    ignored = {key for key in new if any(f"{key}.".startswith(f"{each}.") for each in IGNORED)}
    assert not new - ignored, "give these `Since(…)`, or say in IGNORED why nothing is lost"
    assert not known - set(keys()), "former releases write keys that this one does not know"


@pytest.mark.parametrize("level", LAST_RELEASES)
def test_a_store_of_a_former_release_opens_and_takes_writes(
    level: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path / "cache"))
    shutil.unpack_archive(GOLDEN / f"level-{level}" / "store.tar.xz", tmp_path, filter="tar")
    path = tmp_path / "store"
    golden = Written("golden", json.loads((GOLDEN / f"level-{level}" / "rows.json").read_text()))
    answers = take(str(path), [golden.rows, ["aliases"]])
    assert answers == [{"value": golden.expected}, {"value": {"live": "golden"}}]
    answers = take(
        str(path), [golden.upsert(range(10, 14), 2), golden.delete(5), golden.run("seal"), golden.rows]
    )
    assert answers[-1] == {"value": golden.expected}
    assert level_of(Store.open(path)) == 1
    assert json.loads((path / LEVEL_KEY).read_text()) == {"format": 1, "store": {"level": 1}}


def test_a_new_store_has_the_newest_level_and_one_from_before_levels_the_first(store: Store):
    assert level_of(store) == LEVEL
    begin(store, "a", **RANKING)
    assert json.loads(store.read(LEVEL_KEY)) == {"format": 1, "store": {"level": LEVEL}}
    of_former_release(store)
    assert level_of(store) == 1
    assert raise_level(store, 2) == level_of(store) == 2
    assert raise_level(store, 1) == 2


def test_no_index_begins_to_use_a_key_above_the_level_and_each_keeps_its_keys(store: Store):
    begin(store, "a")
    begin(store, "b", **RANKING)
    of_former_release(store)
    with pytest.raises(LevelError, match=r"`scannery store upgrade STORE` raises the level") as refused:
        alter(store, "a", RANKING)
    assert refused.value.field == "search.ranking"
    assert LAST_RELEASES[1] in refused.value.message
    with pytest.raises(LevelError, match=r"live\.foreign_vectors"):
        begin(store, "c", live={"foreign_vectors": "refuse"})
    assert read_manifest(store, "a").version == 1
    assert alter(store, "b", {"target_recall": 0.9}).spec.search.ranking  # it has the key already
    raise_level(store, LEVEL)
    assert alter(store, "a", RANKING).version == 2


def test_what_no_user_sets_is_called_by_its_command(store: Store):
    mirror = Mirror(index="a", index_id="0" * 32, base=1, changes={}, switches=0, floor=0)
    changed = begin(store, "a").model_copy(update={"mirror": mirror})
    with pytest.raises(LevelError, match=r"^`scannery index migrate`: needs a store of level 3"):
        check_keys(2, changed, None)
    check_keys(3, changed, None)
    spec = parse_spec({"index": "a", "source": {"text": "t"}, "encoder": {"model": "store:m@1"}})
    with pytest.raises(LevelError, match="store:NAME@N"):
        check_keys(2, spec, None)
    assert {"`scannery model promote`", "encoder.query_model"} <= set(keys_of(3))


def test_defaults_of_new_indexes_are_those_that_the_level_allows(store: Store):
    passages = {"source": {"vector": "v", "text": "t", "document_id": "d"}, "lexical": True}
    begin(store, "a")
    of_former_release(store)
    old = begin(store, "b", **passages)
    raise_level(store, LEVEL)
    new = begin(store, "c", **passages)
    assert old.spec.lexical and old.spec.lexical.scope is None
    assert new.spec.lexical and new.spec.lexical.scope == "document"


def test_a_store_of_a_later_release_is_read_and_not_written(store: Store):
    with scannery.connect(store.uri) as client:
        begin(store, "a")
        client.index("a").upsert([{"id": "x", "vector": [1, 2, 3, 4]}])
    of_former_release(store, LEVEL + 1)
    for write in (
        lambda: alter(store, "a", {"target_recall": 0.9}),
        lambda: begin(store, "b"),
        lambda: change_aliases(store, lambda aliases: {**aliases, "c": "a"}),
        lambda: collect_garbage(store, "a"),
        lambda: drop_index(store, "a", force=True),
        lambda: raise_level(store, 1),
    ):
        with pytest.raises(FormatError, match=rf"has level {LEVEL + 1}, and this release writes up to"):
            write()
    with scannery.connect(store.uri) as client:
        assert client.index("a").count() == 1
        with pytest.raises(scannery.FailedPreconditionError, match=f"level {LEVEL + 1}"):
            client.index("a").upsert([{"id": "y", "vector": [1, 2, 3, 4]}])


def upgrade(store: Store, *options: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["store", "upgrade", store.uri, *options])
    return result.exit_code, result.output


def test_upgrade_says_what_former_releases_cannot_open(store: Store):
    begin(store, "a")
    begin(store, "b", **RANKING)
    of_former_release(store)
    code, text = upgrade(store, "--status")
    assert code == 0 and text.startswith(f"level 1 of {LEVEL}\n")
    for expected in (*LAST_RELEASES.values(), "search.synonyms", "`scannery index migrate`"):
        assert expected in text
    assert "b uses already: search.ranking\n" in text
    code, text = upgrade(store)
    assert code == 2 and level_of(store) == 1  # it asks, and there is no terminal
    assert upgrade(store, "--to", "2", "--yes")[0] == 0 and level_of(store) == 2
    code, text = upgrade(store, "--yes", "--json")
    assert code == 0 and json.loads(text)["level"] == level_of(store) == LEVEL
    assert json.loads(text)["in_use_above"] == {"a": [], "b": ["search.ranking"]}
    assert upgrade(store)[0] == 0  # nothing to ask


def test_a_copy_begins_a_store_at_the_level_of_its_origin(store: Store, tmp_path: Path):
    begin(store, "a")
    of_former_release(store, 2)
    copy, newer = Store.open(tmp_path / "copy", create=True), Store.open(tmp_path / "newer", create=True)
    snapshot(store, "a", copy)
    assert level_of(copy) == 2
    begin(newer, "b")
    restore(copy, "a", newer)
    assert level_of(newer) == LEVEL


def test_a_new_store_can_begin_at_a_former_level(store: Store):
    assert upgrade(store, "--to", "1")[0] == 0
    with pytest.raises(LevelError):
        begin(store, "a", **RANKING)
