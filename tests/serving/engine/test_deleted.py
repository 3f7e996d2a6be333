"""A version with deleted rows answers as an index that never had them: every mode, every way to ask."""

from __future__ import annotations

import random
from typing import Any

import pytest

import scannery
from scannery import Like
from scannery.indexer import Store, parse_spec
from tests.data import clustered, datapoints, without_ids
from tests.served import publish_version
from tests.serving.engine.test_lexical import COLUMNS, IDS, ROWS, query_of

VECTORS_ND = clustered(ROWS, 12, seed=3)
GONE = frozenset(random.Random(4).sample(IDS, 150))
LEFT = [row for row, name in enumerate(IDS) if name not in GONE]
OPTIONS: list[dict[str, Any]] = [
    {"k": 10}, {"k": ROWS}, {"k": 7, "offset": 3}, {"k": 10, "where": {"even": True}},
    {"k": 5, "where": {"$not": {"id": "d3"}}}, {"k": 9, "max_per_group": 1, "group_by": "third"},
]  # fmt: skip


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> tuple[scannery.Index, scannery.Index]:
    """The index with deleted rows, and the one that never had them."""
    folder = tmp_path_factory.mktemp("deleted")
    store = Store.open(folder / "store", create=True)
    for name, rows in (("marked", range(ROWS)), ("clean", LEFT)):
        spec = parse_spec(
            {
                "index": name,
                "source": {"vector": "v", "text": "text"},
                "lexical": {"language": "none"},
                "attributes": {"even": "bool", "third": "string"},
            }
        )
        columns = {column: [values[row] for row in rows] for column, values in COLUMNS.items()}
        table = datapoints(spec, VECTORS_ND[list(rows)], ids=[IDS[row] for row in rows], columns=columns)
        publish_version(store, spec, table, folder, shards=3)
    without_ids(store, "marked", GONE)
    client = scannery.connect(folder / "store")
    return client.index("marked"), client.index("clean")


def check_equal(indexes: tuple[scannery.Index, scannery.Index], query: Any, options: dict[str, Any]) -> None:
    marked, clean = (index.search(query, **options) for index in indexes)
    assert [hit.id for hit in marked] == [hit.id for hit in clean], options
    assert [hit.score for hit in marked] == pytest.approx([hit.score for hit in clean], rel=1e-5)


@pytest.mark.system
@pytest.mark.parametrize("seed", range(10))
def test_every_mode_answers_as_if_the_rows_had_never_been(
    indexes: tuple[scannery.Index, scannery.Index], seed: int
) -> None:
    own = IDS[random.Random(seed).choice(LEFT)]
    for options in OPTIONS:
        check_equal(indexes, VECTORS_ND[seed], options)
        check_equal(indexes, query_of(seed), options | {"mode": "lexical"})
        for mode in ("dense", "lexical", "hybrid"):
            check_equal(indexes, Like(own), options | {"mode": mode})


def test_deleted_datapoints_are_unknown(indexes: tuple[scannery.Index, scannery.Index]) -> None:
    marked, clean = indexes
    gone = sorted(GONE)[0]
    with pytest.raises(scannery.NotFoundError, match=f"no datapoint '{gone}'"):
        marked.search(Like(gone))
    wanted = [gone, IDS[LEFT[0]], IDS[LEFT[-1]]]
    got = marked.get(wanted)
    assert [point and point.id for point in got] == [None, *wanted[1:]]
    assert got == clean.get(wanted)
    assert marked.search(VECTORS_ND[0], k=1, where={"id": gone}) == []


def test_counts_are_of_live_rows(indexes: tuple[scannery.Index, scannery.Index]) -> None:
    marked, clean = indexes
    assert marked.stats().rows == clean.stats().rows == ROWS - len(GONE)
    assert sum(segment.rows for segment in marked.stats().segments) == ROWS - len(GONE)
