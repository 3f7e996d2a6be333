"""The model of a cluster that plans sizes: it must do what roots do, and what arithmetic says where that is known."""

from __future__ import annotations

import pytest

from benchmarks.cluster_machines import Work
from benchmarks.cluster_model import Failure, Shape, simulate

WORK = Work(root_s=0.0, root_group_s=0.0, leaf_s=0.003, hop_s=0.0001)
PAUSING = Work(root_s=0.0, root_group_s=0.0, leaf_s=0.003, hop_s=0.0001, pauses_per_s=0.5)


def test_the_same_seed_has_the_same_answers() -> None:
    shape = Shape(groups=2, replicas=2, rate=200, queries=300)
    one, again, other = (simulate(shape, PAUSING, seed).latencies_s for seed in (1, 1, 2))
    assert one == again != other


def test_processes_that_share_cores_answer_as_many_queries_as_the_cores_can() -> None:
    work = Work(root_s=0.002, root_group_s=0.001, leaf_s=0.003, caller_s=0.001, hop_s=0.0001)
    shape = Shape(groups=4, shared_cores=2, root_cores=2, leaf_cores=2, callers=8, queries=500)
    outcome = simulate(shape, work)
    assert outcome.rate == pytest.approx(2 / (0.002 + 4 * 0.001 + 4 * 0.003 + 0.001), rel=0.05)


def test_a_process_uses_no_more_cores_than_it_has() -> None:
    work = Work(root_s=0.001, root_group_s=0.0, leaf_s=0.005, hop_s=0.0001)
    outcome = simulate(Shape(groups=1, shared_cores=4, callers=8, queries=500), work)
    assert outcome.rate == pytest.approx(1 / 0.005, rel=0.05)


@pytest.mark.system
def test_hedges_shorten_the_tail_of_leaves_that_pause_within_their_budget() -> None:
    shape = {"groups": 4, "replicas": 2, "leaf_cores": 8, "root_cores": 8, "rate": 200.0, "queries": 600}
    with_hedges, without = (simulate(Shape(**shape, hedged=each), PAUSING) for each in (True, False))  # type: ignore[arg-type]
    assert with_hedges.quantiles_ms(0.99)[0] < without.quantiles_ms(0.99)[0] / 2
    assert 0 < with_hedges.hedges <= 4 * 10 + 0.05 * with_hedges.calls
    assert without.hedges == 0


@pytest.mark.parametrize("kind", ["dead", "paused"])
def test_no_query_fails_while_a_group_has_another_leaf(kind: str) -> None:
    away = (Failure(kind, 1, 0, 2.0, 6.0),)
    outcome = simulate(Shape(groups=2, replicas=2, leaf_cores=4, rate=100, queries=1000, failures=away), WORK)
    assert outcome.failed == 0
    assert outcome.hedges + outcome.failovers > 0
    assert max(outcome.latencies_s) < 2.5


def test_queries_fail_while_a_group_has_no_leaf_and_no_longer() -> None:
    away = (Failure("dead", 1, 0, 2.0, 4.0),)
    outcome = simulate(Shape(groups=2, leaf_cores=4, rate=100, queries=1000, failures=away), WORK)
    # Two seconds, and until the next status call.
    assert 150 < outcome.failed < 300
    assert len(outcome.latencies_s) + outcome.failed == 1000
