"""Every option at once, on random data, against brute force: thousands of cases, each known by its seed."""

from __future__ import annotations

import datetime as dt
import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery import Like
from scannery.client.request.calls import search
from scannery.indexer import Store, parse_spec, unit_length
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.services.search import Service
from scannery.v1 import search_pb2 as pb
from tests.data import clustered, datapoints, first_quick, repeated, without_ids
from tests.served import library_columns, publish_version
from tests.serving.snapshot.test_filter_cache import matches

pytestmark = pytest.mark.system

QUICK_DATASETS, DATASETS = 6, repeated(24)
CASES_EACH = 70
JUNE = dt.datetime(2020, 6, 1, tzinfo=dt.timezone.utc)
WHERES: list[dict[str, Any]] = [
    {"show": "gotime"},
    {"show": {"$ne": "gotime"}},
    {"year": {"$gte": 2012, "$lt": 2020}},
    {"tags": {"$in": ["a", "b"]}},
    {"$or": [{"live": True}, {"rating": {"$gt": 4}}]},
    {"$not": {"tags": "c"}},
    {"published": {"$gte": JUNE}, "live": {"$exists": True}},
    {"document_id": {"$in": ["doc1", "doc2", "doc3", "none"]}},
    {"id": {"$lte": "d3"}},
    {"year": 1},
]
GROUPS = [None, "show", "year", "live", "rating", "published"]


class Library:
    """Random datapoints as an index, and as plain Python."""

    def __init__(self, folder: Path, seed: int, rows: int, deleted: float = 0, **spec: Any) -> None:
        rng = np.random.default_rng(seed)
        self.dimensions = int(rng.integers(2, 20))
        self.distance = ("cosine", "dot", "squared_l2")[seed % 3]
        attributes = {"show": "string", "tags": "string_list", "year": "int", "rating": "float",
                      "live": "bool", "published": "timestamp"}  # fmt: skip
        parsed = parse_spec(
            {
                "index": "any",
                "source": {"vector": "v"},
                "distance": self.distance,
                "attributes": attributes,
                **spec,
            }
        )
        self.vectors_ND = clustered(rows, self.dimensions, seed=seed)
        self.vectors_ND[rng.integers(0, rows, rows // 20)] = self.vectors_ND[0]  # equal scores
        table = datapoints(parsed, self.vectors_ND, columns=library_columns(rows, seed=seed))
        store = Store.open(folder / f"store{seed}", create=True)
        publish_version(store, parsed, table, folder, shards=int(rng.integers(1, 4)))
        self.live = sorted(rng.choice(rows, rows - int(deleted * rows), replace=False).tolist())
        if len(self.live) < rows:
            without_ids(store, "any", {f"d{row}" for row in range(rows)} - {f"d{row}" for row in self.live})
        self.service = Service(open_embedded_catalog(folder / f"store{seed}"))
        self.records = table.drop_columns(["embedding"]).to_pylist()

    def scores(self, query_D: np.ndarray) -> np.ndarray:
        """Return the score of every row in float64."""
        vectors_ND, query_1D = self.vectors_ND.astype(np.float64), query_D[None].astype(np.float64)
        if self.distance == "cosine":
            vectors_ND, query_1D = unit_length(self.vectors_ND), unit_length(query_D[None])
        if self.distance == "squared_l2":
            distances_N: np.ndarray = -np.square(vectors_ND - query_1D).sum(axis=1)
            return distances_N
        products_N: np.ndarray = (vectors_ND @ query_1D.T)[:, 0]
        return products_N

    def expected(self, scores_N: np.ndarray, k: int, own: int | None, options: dict[str, Any]) -> list[float]:
        """Return the right scores."""
        seen: Counter[Any] = Counter()
        kept: list[float] = []
        live = set(self.live)
        for row in np.argsort(-scores_N, kind="stable").tolist():
            record = self.records[row]
            if row not in live or row == own or not matches(record, options.get("where", {})):
                continue
            if scores_N[row] < options.get("min_score", -np.inf):
                continue
            group = record[options.get("group_by") or "document_id"]
            group = ("alone", row) if group is None else group
            seen[group] += 1
            if seen[group] <= options.get("max_per_group", len(self.records)):
                kept.append(float(scores_N[row]))
        offset = options.get("offset", 0)
        return kept[offset : offset + k]

    def check_promises(self, hits: list[pb.Hit], own: int | None, options: dict[str, Any]) -> None:
        """Check what holds of every answer, exact or not."""
        records = [self.records[int(hit.datapoint.id[1:])] for hit in hits]
        assert len({record["id"] for record in records}) == len(records)
        assert {int(hit.datapoint.id[1:]) for hit in hits} <= set(self.live)
        assert all(matches(record, options.get("where", {})) for record in records)
        assert own is None or f"d{own}" not in {record["id"] for record in records}
        scores = [hit.score for hit in hits]
        assert scores == sorted(scores, reverse=True)
        assert all(score >= options.get("min_score", -np.inf) for score in scores)
        for one, other in itertools.pairwise(hits):
            assert one.score > other.score or one.datapoint.id < other.datapoint.id
        if "max_per_group" in options:
            groups = [record[options.get("group_by") or "document_id"] for record in records]
            counts = Counter(group for group in groups if group is not None)
            assert max(counts.values(), default=0) <= options["max_per_group"]


def any_case(library: Library, rng: random.Random) -> tuple[Any, np.ndarray, int | None, int, dict[str, Any]]:
    """Return a query, its vector, its own row, k and options."""
    own = rng.choice(library.live) if rng.random() < 0.25 else None
    if own is None:
        row = rng.randrange(len(library.records))  # near a deleted one, too
        noise = np.random.default_rng(rng.randrange(1 << 30)).standard_normal(library.dimensions)
        query_D = (library.vectors_ND[row] + 0.5 * noise).astype(np.float32)
    else:
        query_D = library.vectors_ND[own]
    options: dict[str, Any] = {}
    if rng.random() < 0.6:
        options["where"] = rng.choice(WHERES)
    if rng.random() < 0.4:
        options["max_per_group"] = rng.choice([1, 2, 7])
        options["group_by"] = rng.choice(GROUPS)
    if rng.random() < 0.3:
        options["offset"] = rng.choice([1, 9, 60, 5000])
    if rng.random() < 0.2 and len(library.records) > 2:
        scores_N = library.scores(query_D)
        # Between two scores, so that rounding decides nothing.
        low, high = np.sort(scores_N)[[len(scores_N) // 2, len(scores_N) // 2 + 1]]
        options["min_score"] = float((low + high) / 2)
        if high - low < 1e-3:
            del options["min_score"]
    if rng.random() < 0.2:
        options["exact"] = True
    query = query_D if own is None else Like(f"d{own}")
    return query, query_D, own, rng.choice([1, 3, 10, 50, 1000]), options


def answered(library: Library, query: Any, k: int, options: dict[str, Any]) -> list[pb.Hit]:
    return list(library.service.search(search("any", query, k, **options).request, Deadline.after(60)).hits)


@pytest.mark.parametrize("dataset", first_quick(range(QUICK_DATASETS + DATASETS), QUICK_DATASETS))
def test_answers_are_those_of_brute_force(tmp_path: Path, dataset: int) -> None:
    rng = random.Random(dataset)
    rows = rng.choice([1, 20, 150, 400])
    library = Library(tmp_path, dataset, rows, deleted=rng.choice([0, 0.1, 0.6]))
    for case in range(CASES_EACH):
        seed = dataset * 1000 + case
        query, query_D, own, k, options = any_case(library, random.Random(seed))
        hits = answered(library, query, k, options)
        right = library.expected(library.scores(query_D), k, own, options)
        print(f"seed {seed}: k={k} own={own} {options}")  # shown if the test fails
        library.check_promises(hits, own, options)
        assert [hit.score for hit in hits] == pytest.approx(right, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("built", first_quick([(102, 0.02), (100, 0.2), (101, 0)]))
def test_promises_hold_where_scann_searches_too(tmp_path: Path, built: tuple[int, float]) -> None:
    """Hits are as many as brute force finds, obey every option, and recall is near its target."""
    dataset, deleted = built
    library = Library(tmp_path, dataset, 2000, deleted, scann={"exact_below_rows": 1000})
    recalls = []
    for case in range(100):
        seed = dataset * 1000 + case
        query, query_D, own, k, options = any_case(library, random.Random(seed))
        hits = answered(library, query, k, options)
        right = library.expected(library.scores(query_D), k, own, options)
        print(f"seed {seed}: k={k} own={own} {options}")
        library.check_promises(hits, own, options)
        # Which hits are found decides how many of a group or above a score there are to skip.
        if "min_score" not in options:
            assert len(hits) == len(right)
        if right:
            least = right[-1] - 1e-4 * max(1, abs(right[-1]))
            recalls.append(sum(hit.score >= least for hit in hits) / len(right))
    # Many ask for one hit, which is there or is not, and each build has another tree and other settings.
    assert np.mean(recalls) >= 0.88
