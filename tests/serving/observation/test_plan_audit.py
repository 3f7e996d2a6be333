"""Costs of plans that are wrong heal while a server runs."""

import dataclasses
import itertools
import math
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import scannery
from scannery.indexer import (
    Manifest,
    OpenIndex,
    Segment,
    SegmentCache,
    Store,
    datapoint_schema,
    open_index,
    parse_spec,
)
from scannery.indexer.planning.plan_book import EVERY, FEWEST_AUDITS
from scannery.indexer.planning.plan_costs import Costs
from scannery.indexer.planning.planner import Planner
from scannery.serving.encoding.encoder_pool import EncoderPool
from scannery.serving.observation.plan_audit import PlanAudit
from scannery.serving.scheduling.spare_time import SpareTime
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.metrics import ServerMetrics
from tests.data import clustered
from tests.served import publish_version, serving
from tests.serving.process.test_supervisor import wait_until

ROWS, DIMENSIONS = 12_000, 32
SPEC = parse_spec(
    {
        "index": "planned",
        "source": {"vector": "v"},
        "distance": "dot",
        "attributes": {"part": "float"},
        "scann": {"exact_below_rows": 1000},
    }
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planned")
    schema = datapoint_schema(SPEC, DIMENSIONS)
    ids = [str(row) for row in range(ROWS)]
    given = {
        "id": ids,
        "document_id": ids,
        "part": np.random.default_rng(1).permutation(ROWS) / ROWS,
        "embedding": list(clustered(ROWS, DIMENSIONS)),
    }
    arrays = [pa.array(given.get(field.name, [None] * ROWS), field.type) for field in schema]
    publish_version(Store.open(folder / "store", create=True), SPEC, pa.table(arrays, schema=schema), folder)
    return folder / "store"


@pytest.fixture
def segment(store: Path, tmp_path: Path) -> Segment:
    return open_index(Store.open(store), "planned", cache=SegmentCache(tmp_path)).segments[0]


def ask(segment: Segment, share: float, count: int) -> list[str]:
    """Search among a share of the rows; return the plans."""
    mask_N = np.random.default_rng(2).random(ROWS) < share
    mask_N.setflags(write=False)
    allowed, settings = segment.allow(mask_N), segment.settings_for(0.9)
    queries_QD = clustered(ROWS, DIMENSIONS)[:count]
    return [
        segment.find(queries_QD[i : i + 1], 10, settings=settings, allowed=allowed).plans[0]
        for i in range(count)
    ]


class Audit:
    """Audits of a snapshot with one segment, by a server with time for them."""

    def __init__(self, segment: Segment, **options: Any) -> None:
        self.metrics, self.requests = ServerMetrics(), lambda: 0
        self.audit = PlanAudit(
            lambda: [snapshot_of(segment)], self.metrics, **{"is_idle": lambda: True, **options}
        )

    def run(self) -> None:
        spare = SpareTime(self.requests)
        spare._saved_s = 100.0
        self.audit.run({}, spare)


def snapshot_of(segment: Segment) -> Snapshot:
    manifest = Manifest(
        index="planned",
        version=1,
        parent=None,
        created_at=datetime.now(timezone.utc),
        spec=SPEC,
        dimensions=DIMENSIONS,
        shards=1,
        segments=(segment.entry,),
    )
    return Snapshot(OpenIndex(manifest, (segment,), (None,)), EncoderPool())


def planner_of(segment: Segment) -> Planner:
    assert segment.planner is not None
    return segment.planner


def spoil(segment: Segment, plan: str, factor: float) -> Costs:
    """Write wrong costs of one plan to the cache, and return the true ones."""
    book = planner_of(segment).book
    assert book.timed is not None
    true = dataclasses.replace(book.timed, pressure=1.0)
    book.replace(true.scaled({plan: factor}))
    return true


def costs_of(costs: Costs | None, share: float) -> dict[str, float]:
    """Return the finite costs of the plans of one query, in microseconds."""
    assert costs is not None
    found = costs.by_plan(1, int(share * ROWS), share, 10)
    return {plan: cost for plan, cost in found.items() if 0 < cost < math.inf}


def distortion(costs: Costs | None, true: Costs, share: float) -> float:
    """Return by what factor costs prefer one plan to another one, where true costs do not."""
    now, before = costs_of(costs, share), costs_of(true, share)
    ratios = [now[plan] / before[plan] for plan in before]
    return max(ratios) / min(ratios)


@pytest.mark.system
@pytest.mark.parametrize("factor", [10.0, 0.02])
def test_wrong_costs_heal_in_service(segment: Segment, factor: float) -> None:
    share = 0.7
    [right] = ask(segment, share, 1)
    timed = costs_of(planner_of(segment).book.timed, share)
    plan = right if factor > 1 else max(timed, key=lambda each: timed[each])
    true = spoil(segment, plan, factor)
    book = planner_of(segment).book
    assert ask(segment, share, 1) != [right]
    assert distortion(book.costs, true, share) == pytest.approx(max(factor, 1 / factor))
    # Never idle: only what is asked tells.
    audit = Audit(segment, is_idle=lambda: False)
    metrics = audit.metrics
    for _ in range(2 * FEWEST_AUDITS):
        ask(segment, share, EVERY)
        audit.run()
    assert book.drifted
    # Other processes may have disturbed the first timing, too: what is compared is not the plan that is chosen.
    assert distortion(book.costs, true, share) < 5
    assert metrics.plan_correction.dump()["planned\x1f" + plan] != 1
    assert metrics.plan_measured.dump()
    assert metrics.plan_predicted.dump().keys() == metrics.plan_measured.dump().keys()
    # The first idle moment times them anew.
    audit = Audit(segment)
    audit.run()
    assert set(book.factors.values()) == {1.0}
    assert audit.metrics.plans_timed.dump() == {"planned": 1}
    assert distortion(book.costs, true, share) < 5
    assert book.file is not None
    assert book.file.read() == book.timed


def test_costs_that_other_processes_disturbed_are_timed_again_when_idle(segment: Segment) -> None:
    book = planner_of(segment).book
    assert book.timed is not None
    book.replace(dataclasses.replace(book.timed, pressure=1000.0))
    idle = False
    audit = Audit(segment, is_idle=lambda: idle)
    audit.run()
    assert book.timed.pressure == 1000
    idle = True
    audit.run()
    assert book.timed.pressure < 1000


def test_timing_ends_when_a_request_comes_and_waits_longer_each_time(segment: Segment) -> None:
    book = planner_of(segment).book
    assert book.timed is not None
    book.replace(dataclasses.replace(book.timed, pressure=1000.0))
    now, looks = [0.0], itertools.count()
    audit = Audit(segment, clock=lambda: now[0], first_wait_s=10.0)
    audit.requests = lambda: next(looks) > 5
    audit.run()
    assert book.timed.pressure == 1000
    assert next(looks) == 8, "it ended at the first request"
    audit.requests = lambda: 0
    now[0] = 9.0
    audit.run()
    assert book.timed.pressure == 1000
    now[0] = 11.0
    audit.run()
    assert book.timed.pressure < 1000


@pytest.mark.system
def test_a_server_heals_the_costs_in_its_cache_and_tells_times(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANNERY_CACHE_DIR", str(tmp_path))
    opened = open_index(Store.open(store), "planned").segments[0]
    true = spoil(opened, "leaves", 10.0)
    file = planner_of(opened).book.file
    assert file is not None
    with serving(store) as server, scannery.connect(server.address) as client:
        index, query = client.index("planned"), clustered(ROWS, DIMENSIONS)[3]
        [audit] = [each._task for each in server._observer._schedule if isinstance(each._task, PlanAudit)]
        audit._is_idle = lambda: True
        audit._every_s = audit._first_wait_s = 0.02

        def corrected() -> bool:
            for _ in range(EVERY):
                index.search(query, where={"part": {"$lt": 0.2}})
            return server.metrics.plan_correction.dump().get("planned\x1fleaves", 1.0) != 1

        def healed() -> bool:
            costs = file.read()
            return costs is not None and costs.scan_us[2] < 5 * true.scan_us[2]

        wait_until(corrected)
        # Requests end a timing: it is complete when none comes.
        wait_until(healed)
        explained = index.search(query, where={"part": {"$lt": 0.2}}, explain=True).explanation
        assert explained is not None
        [step] = explained.segments
        assert step.predicted_us > 0
        assert step.measured_us > 0
        explained = index.search(query, explain=True).explanation
        assert explained is not None
        [step] = explained.segments
        assert (step.plan, step.predicted_us) == ("scann", 0)
        assert step.measured_us > 0


def test_segments_are_audited_in_turn_by_a_server_with_time_for_one_at_a_time(
    store: Path, tmp_path: Path
) -> None:
    segments = [
        open_index(Store.open(store), "planned", cache=SegmentCache(tmp_path / str(number))).segments[0]
        for number in range(3)
    ]
    audit = PlanAudit(lambda: list(map(snapshot_of, segments)), ServerMetrics(), is_idle=lambda: False)
    for each in segments:
        ask(each, 0.3, 4 * EVERY)
    waiting = [len(each.planner.book._samples) for each in segments if each.planner]
    for _ in range(len(segments)):
        spare = SpareTime(lambda: 1)
        spare._saved_s = 100.0
        audit.run({}, spare)
    left = [len(each.planner.book._samples) for each in segments if each.planner]
    assert left == [count - 1 for count in waiting]
