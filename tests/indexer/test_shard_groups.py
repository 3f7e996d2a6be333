"""Which shards a group has."""

from __future__ import annotations

from pathlib import Path

import pytest

from scannery.indexer import NO_SHARDS, ShardGroup, Store, open_index
from tests.served import make_library_store


@pytest.mark.parametrize("groups", [1, 2, 3, 8, 11])
def test_each_shard_is_in_one_group(groups: int) -> None:
    made = [ShardGroup.parse(f"{number}/{groups}") for number in range(groups)]
    for shard in range(40):
        assert [group.number for group in made if group.has(shard)] == [shard % groups]
    assert [str(group) for group in made] == [f"{number}/{groups}" for number in range(groups)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8/8", "must be 0 to 7 with 8 groups, got 8"),
        ("3/0", "at least 1, got 0"),
        ("x", "such as 3/8, got 'x'"),
        ("", "got ''"),
        ("-1/8", "got '-1/8'"),
        ("1/2/3", "got '1/2/3'"),
        ("1.0/2", "got '1.0/2'"),
        (" 1/2", "got ' 1/2'"),
        ("٣/8", "such as 3/8"),
    ],
)
def test_other_texts_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="group") as caught:
        ShardGroup.parse(text)
    assert message in str(caught.value)


@pytest.mark.system
def test_a_selection_opens_only_its_segments(tmp_path: Path) -> None:
    store = Store.open(make_library_store(tmp_path))
    whole = open_index(store, "library")
    parts = [open_index(store, "library", shards=ShardGroup(number, 2)) for number in range(2)]
    assert [[entry.shard for entry in part.manifest.segments] for part in parts] == [[0, 2], [1]]
    assert [len(part.segments) for part in parts] == [2, 1]
    assert sum(part.manifest.rows for part in parts) == whole.manifest.rows
    none = open_index(store, "library", shards=NO_SHARDS)
    assert (none.segments, none.alive, none.manifest.segments) == ((), (), ())
    for part in (*parts, none):
        assert part.manifest.model_copy(update={"segments": whole.manifest.segments}) == whole.manifest


@pytest.mark.system
def test_segments_of_another_selection_are_used_again(tmp_path: Path) -> None:
    store = Store.open(make_library_store(tmp_path))
    group = open_index(store, "library", shards=ShardGroup(0, 2))
    whole = open_index(store, "library", reuse=group)
    again = open_index(store, "library", reuse=whole, shards=ShardGroup(0, 2))
    assert len(whole.segments) == 3
    assert [id(each.ids) for each in again.segments] == [id(each.ids) for each in group.segments]
