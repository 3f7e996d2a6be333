"""Filters at every selectivity, by every plan: hits = min(k, matches) and recall on target, whatever the filter."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from scannery.client.request.calls import search, search_many
from scannery.indexer import (
    AllowedRows,
    RowsBetween,
    Segment,
    Store,
    ValueOrder,
    exact_search,
    parse_spec,
    search_ready,
    unit_length,
)
from scannery.indexer.planning.planner import SegmentHits
from scannery.indexer.tuning.settings_choice import SearchSettings, recall_by_score
from scannery.indexer.vectors.exact_search import all_scores
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.services.search import Service
from tests.data import clustered, datapoints, first_quick
from tests.served import publish_version

pytestmark = pytest.mark.system

ROWS, DIMENSIONS, K, TARGET = 24_000, 32, 10, 0.95
SHARES = (1.0, 0.5, 0.1, 0.01, 0.001, 0.0001)
DISTANCES = ("cosine", "dot", "squared_l2")


@pytest.fixture(scope="module", params=first_quick(DISTANCES))
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Service:
    """One index of one ScaNN segment with a number to filter by: `part` is uniform in 0 to 1."""
    folder = tmp_path_factory.mktemp(request.param)
    spec = parse_spec(
        {
            "index": "many",
            "source": {"vector": "v"},
            "distance": request.param,
            "attributes": {"part": "float", "shelf": "int"},
        }
    )
    vectors_ND = clustered(ROWS, DIMENSIONS, seed=3, clusters=300)
    vectors_ND *= np.random.default_rng(4).lognormal(0, 0.2, (ROWS, 1)).astype(np.float32)
    part = np.random.default_rng(1).permutation(ROWS) / ROWS
    columns = {"part": part.tolist(), "shelf": (np.arange(ROWS) % 7).tolist()}
    store = Store.open(folder / "store", create=True)
    publish_version(store, spec, datapoints(spec, vectors_ND, columns=columns), folder)
    return Service(open_embedded_catalog(folder / "store"))


@pytest.fixture(scope="module")
def segment(service: Service) -> Segment:
    [segment] = service._catalog.snapshot("many").segments
    assert segment.entry.kind == "scann"
    return segment


def queries(segment: Segment, count: int = 100) -> np.ndarray:
    """Half near to stored vectors, half between two of them."""
    generator = np.random.default_rng(9)
    rows = generator.integers(0, segment.rows, (2, count))
    one, other = segment.vectors(rows[0]), segment.vectors(rows[1])
    near = one + 0.2 * generator.standard_normal(one.shape)
    mixed = 0.7 * one + 0.3 * other
    return np.where(np.arange(count)[:, None] % 2, near, mixed).astype(np.float32)


def truth(segment: Segment, query_1D: np.ndarray, mask_N: np.ndarray) -> np.ndarray:
    if segment.distance == "cosine":
        query_1D = unit_length(query_1D)
    return exact_search(segment.searched_ND, query_1D, K, segment.distance, mask_N)[1]


@lru_cache(maxsize=400)
def ranked(segment: Segment, query: bytes) -> np.ndarray:
    """Return all rows, nearest first."""
    scores_N = exact_scores(segment, np.frombuffer(query, np.float32)[None])
    return np.argsort(-scores_N)


def exact_scores(segment: Segment, query_1D: np.ndarray) -> np.ndarray:
    if segment.distance == "cosine":
        query_1D = unit_length(query_1D)
    return all_scores(segment.searched_ND, query_1D, segment.distance)[0]


def random_mask(segment: Segment, query_1D: np.ndarray, share: float, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).permutation(segment.rows) < round(share * segment.rows)


def nearest_mask(segment: Segment, query_1D: np.ndarray, share: float, seed: int) -> np.ndarray:
    """The filter allows what is nearest to the query."""
    mask_N = np.zeros(segment.rows, bool)
    mask_N[ranked(segment, query_1D.tobytes())[: round(share * segment.rows)]] = True
    return mask_N


def farthest_mask(segment: Segment, query_1D: np.ndarray, share: float, seed: int) -> np.ndarray:
    """The filter allows what is farthest from the query."""
    mask_N = np.zeros(segment.rows, bool)
    mask_N[ranked(segment, query_1D.tobytes())[segment.rows - round(share * segment.rows) :]] = True
    return mask_N


def clustered_mask(segment: Segment, query_1D: np.ndarray, share: float, seed: int) -> np.ndarray:
    """The filter allows whole leaves, picked at random, and a few rows besides."""
    assert segment.leaves is not None
    generator = np.random.default_rng(seed)
    leaves_N = np.repeat(generator.random(len(segment.leaves.sizes_L)) < share, segment.leaves.sizes_L)
    return leaves_N | (generator.random(segment.rows) < share / 10)


def range_of(mask_N: np.ndarray, seed: int) -> RowsBetween:
    """Return the rows of a mask as a range of an order in which others come before and after them."""
    generator = np.random.default_rng(seed)
    sides_N = generator.choice([-1, 1], len(mask_N))
    sides_N[mask_N] = 0
    order_N = np.lexsort((generator.random(len(mask_N)), sides_N)).astype(np.int32)
    start = int(np.count_nonzero(sides_N < 0))
    return RowsBetween(ValueOrder(order_N, len(mask_N)), start, start + int(np.count_nonzero(mask_N)))


MASKS = (random_mask, nearest_mask, farthest_mask, clustered_mask)
Mask = Callable[[Segment, np.ndarray, float, int], np.ndarray]
Plan = Callable[[Segment, np.ndarray, AllowedRows], SegmentHits]


def planned(segment: Segment, query_1D: np.ndarray, allowed: AllowedRows) -> SegmentHits:
    settings = segment.settings_for(TARGET)
    return segment.find(query_1D, K, settings=settings, allowed=allowed, target_recall=TARGET)


def by_leaves(segment: Segment, query_1D: np.ndarray, allowed: AllowedRows) -> SegmentHits:
    assert segment._planner is not None
    return segment._planner.scan(search_ready(query_1D, segment.distance), K, allowed, TARGET)


def by_scann(
    segment: Segment, query_1D: np.ndarray, allowed: AllowedRows, settings: SearchSettings | None = None
) -> SegmentHits:
    settings = settings or segment.settings_for(TARGET)
    assert segment._planner is not None
    assert settings is not None
    costs = segment._planner.book.timed
    assert costs is not None
    return segment._planner.propose(
        search_ready(query_1D, segment.distance), K, allowed, settings, TARGET,
        more_leaves=costs.more_leaves(allowed.share),
    )  # fmt: skip


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(
    ("plan", "share"),
    [
        *((planned, share) for share in SHARES),
        *((plan, share) for plan in (by_leaves, by_scann) for share in (0.5, 0.1, 0.01)),
    ],
)
def test_recall_holds_and_no_hit_is_missing(segment: Segment, plan: Plan, mask: Mask, share: float) -> None:
    recalls = []
    for number, query_D in enumerate(queries(segment)):
        mask_N = mask(segment, query_D[None], share, number)
        mask_N.setflags(write=False)
        allowed = segment.allow(range_of(mask_N, number) if number % 4 >= 2 else mask_N)
        found = plan(segment, query_D[None], allowed)
        matches = min(K, allowed.count)
        rows = found.rows_QK[0]
        assert (rows >= 0).tolist() == [position < matches for position in range(K)]
        assert mask_N[rows[:matches]].all()
        assert len(set(rows[:matches].tolist())) == matches
        assert (np.diff(found.scores_QK[0][:matches]) <= 0).all()
        if matches:
            right = truth(segment, query_D[None], mask_N)[:, :matches]
            recalls.append(recall_by_score(found.scores_QK[:, :matches], right)[0])
    # ScaNN builds a somewhat different tree each time: of twelve, the mean was 0.977, the standard deviation 0.013; for
    # the worst of these cases 0.963 and 0.016. A plan that loses what it should not is far below: 0.7 was seen.
    assert not recalls or np.mean(recalls) >= TARGET - 0.08


def test_a_query_unlike_all_data_is_answered_too(segment: Segment) -> None:
    """Nothing that was measured on held-out queries fits them."""
    generator = np.random.default_rng(2)
    mask_N = random_mask(segment, queries(segment)[:1], 0.2, 5)
    mask_N.setflags(write=False)
    allowed = segment.allow(mask_N)
    odd_QD = np.concatenate([-queries(segment, 10), generator.standard_normal((10, DIMENSIONS)) * 100])
    recalls = []
    for query_D in odd_QD.astype(np.float32):
        found = by_leaves(segment, query_D[None], allowed)
        recalls.append(recall_by_score(found.scores_QK, truth(segment, query_D[None], mask_N))[0])
    # Twenty queries of ten hits, and another tree in each build: the mean varies by 0.023.
    assert np.mean(recalls) >= 0.85


def by_all_of_scann(segment: Segment, query_1D: np.ndarray, allowed: AllowedRows) -> SegmentHits:
    """Score every row: ScaNN approximates a batch by other kernels than a single query."""
    assert segment.leaves is not None
    settings = SearchSettings(leaves=len(segment.leaves.sizes_L), rescore=segment.rows)
    return by_scann(segment, query_1D, allowed, settings)


def test_a_batch_gets_the_answers_of_each(segment: Segment) -> None:
    batch_QD = queries(segment, 150)
    mask_N = random_mask(segment, batch_QD[:1], 0.3, 8)
    mask_N.setflags(write=False)
    allowed = segment.allow(mask_N)
    for plan in (by_leaves, by_all_of_scann):
        together = plan(segment, batch_QD, allowed)
        for number in (0, 63, 64, 149):
            alone = plan(segment, batch_QD[number : number + 1], allowed)
            assert together.scores_QK[number] == pytest.approx(alone.scores_QK[0], rel=1e-5)
            assert together.leaves_Q[number] == alone.leaves_Q[0]


@pytest.mark.parametrize("share", SHARES)
def test_filters_through_the_service(service: Service, segment: Segment, share: float) -> None:
    where = {"part": {"$lt": share}}
    queries_QD = queries(segment, 400)
    request = search_many("many", queries_QD, K, where=where, target_recall=TARGET).request
    many = service.search_many(request, Deadline.after(60))
    exact = service.search_many(
        search_many("many", queries_QD, K, where=where, exact=True).request, Deadline.after(60)
    )
    recalls = []
    for found, right in zip(many.results, exact.results, strict=True):
        assert len(found.hits) == len(right.hits) == min(K, math.ceil(share * ROWS))
        scores = [np.array([[hit.score for hit in result.hits]]) for result in (found, right)]
        recalls.append(recall_by_score(*scores)[0])
        assert all(hit.datapoint.attributes["part"].float_value < share for hit in found.hits)
    # A query between two clusters may lose most of its hits, and each build has another tree and other settings: the
    # mean of this many varies by 0.015.
    assert np.mean(recalls) >= TARGET - 0.07


def test_an_answer_explains_itself(service: Service, segment: Segment) -> None:
    query_D = queries(segment)[0]

    def explained(**options: Any) -> tuple[str, int, int]:
        request = search("many", query_D, K, explain=True, **options).request
        response = service.search(request, Deadline.after(60))
        [plan] = response.explanation.segments
        assert (plan.rows, plan.segment) == (ROWS, segment.entry.sha256[:12])
        stages = [stage.stage for stage in response.explanation.stages]
        assert stages == ["encode", "filter", "search", "crowd", "hydrate"]
        # Nothing was measured for the knobs of an expert.
        assert (0 if "leaves" in options else 0.9) <= response.explanation.expected_recall <= 1
        return plan.plan, plan.rows_allowed, plan.candidates

    assert explained()[:2] == ("scann", ROWS)
    assert explained(exact=True) == ("exact", ROWS, ROWS)
    assert explained(where={"part": {"$lt": 0.001}}) == ("exact_allowed", 24, 24)
    assert explained(where={"part": {"$lt": 0.5}}, exact=True) == ("exact_allowed", ROWS // 2, ROWS // 2)
    assert explained(leaves=2, rescore=50)[2] == 50
    assert explained(where={"part": -1}) == ("none", 0, 0)
    request = search_many("many", query_D[None], K, explain=True, where={"shelf": 3}).request
    [result] = service.search_many(request, Deadline.after(60)).results
    assert result.explanation.segments[0].rows_allowed == len(range(3, ROWS, 7))
