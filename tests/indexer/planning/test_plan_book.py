import dataclasses
import json
import math
import os
import random
import signal
from pathlib import Path

import pytest

from scannery.indexer.planning.plan_book import FEWEST_AUDITS, PlanBook
from scannery.indexer.planning.plan_costs import PLANS, SHARES, CostFile, Costs, key_of

COSTS = Costs(
    row_us=0.05,
    cached_row_us=0.02,
    row_bytes=512,
    gather_us=0.1,
    product_us=0.01,
    scan_us=[60.0, 55.0, 50.0, 45.0, 40.0],
    proposed_us=[40.0, 50.0, 90.0, 150.0, 250.0],
    leaves_reached=[4, 5, 6, 9, 12],
)
ROWS = 100_000


def audit(book: PlanBook, true: Costs, share: float, *, slow: float = 1.0, dear: float = 1.0) -> None:
    """Record what the plans take: `slow` times as long on a slow machine, `leaves` also by `dear`."""
    assert book.timed is not None
    measured = {plan: slow * cost for plan, cost in true.by_plan(1, int(share * ROWS), share, 10).items()}
    measured["leaves"] *= dear
    predicted = book.timed.by_plan(1, int(share * ROWS), share, 10)
    finite = {plan: cost for plan, cost in measured.items() if math.isfinite(cost)}
    book.audited(finite, predicted)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("factor", [10.0, 0.1])
def test_wrong_costs_of_one_plan_are_corrected_by_audits(plan: str, factor: float) -> None:
    book = PlanBook(costs=COSTS.scaled({plan: factor}))
    generator = random.Random(0)
    for _ in range(2 * FEWEST_AUDITS):
        audit(book, COSTS, generator.choice(SHARES), slow=generator.uniform(0.5, 4))
    assert book.due
    for share in SHARES:
        rows = int(share * ROWS)
        true = COSTS.by_plan(1, rows, share, 10)
        assert true[book.choose(1, rows, share, 10)] <= 1.25 * min(true.values())


def test_a_slow_machine_alone_corrects_nothing() -> None:
    book = PlanBook(costs=COSTS)
    for number in range(100):
        audit(book, COSTS, SHARES[number % 5], slow=1 + number % 7)
    assert not book.due
    assert book.costs == COSTS


def test_one_kind_of_filter_does_not_change_the_costs_of_others() -> None:
    book = PlanBook(costs=COSTS)
    for number in range(100):
        # Filters against the query make `leaves` dear; half of all are.
        audit(book, COSTS, SHARES[number % 5], dear=8.0 if number % 2 else 1.0)
    assert not book.drifted


def test_corrections_end_when_costs_are_timed_again_and_when_audits_agree_again(tmp_path: Path) -> None:
    book = PlanBook(CostFile(tmp_path), COSTS.scaled({"leaves": 10}))
    for _ in range(FEWEST_AUDITS):
        audit(book, COSTS, 0.2)
    assert book.drifted
    book.replace(COSTS)
    assert not book.due
    assert book.costs == COSTS
    for _ in range(FEWEST_AUDITS):
        audit(book, COSTS, 0.2, dear=8.0)
    assert book.drifted
    for _ in range(FEWEST_AUDITS):
        audit(book, COSTS, 0.2)
    assert not book.drifted


def test_costs_that_another_process_timed_are_read(tmp_path: Path) -> None:
    one, other = PlanBook(CostFile(tmp_path)), PlanBook(CostFile(tmp_path))
    assert other.choose(1, 90_000, 0.9, 10) == "exact_allowed"
    one.replace(COSTS)
    other.refresh()
    assert other.timed == COSTS
    assert other.choose(1, 90_000, 0.9, 10) == "scann_allowed"


@pytest.mark.parametrize(
    "text",
    ["", "{}", "[]", "null", COSTS.to_json().replace("0.05", "-1"), COSTS.to_json().replace("0.05", "NaN"),
     COSTS.to_json().replace("[4, 5", "[5"), COSTS.to_json()[:-1] + ', "more": 1}'],
)  # fmt: skip
def test_a_damaged_file_is_no_costs(tmp_path: Path, text: str) -> None:
    file = CostFile(tmp_path)
    file.write(COSTS)
    assert file.read() == COSTS
    file.path.write_text(text)
    assert file.read() is None


def test_only_one_process_times_at_once(tmp_path: Path) -> None:
    file = CostFile(tmp_path)
    with file.claimed() as first, CostFile(tmp_path).claimed() as second:
        assert (first, second) == (True, False)
    with file.claimed() as again:
        assert again
    with CostFile(tmp_path / "missing").claimed() as missing:
        assert not missing


def test_the_key_is_of_model_instructions_and_cores() -> None:
    first = "processor\t: 0\nmodel name\t: AMD EPYC\nmodel\t\t: 2\ncpu MHz\t\t: {}\nflags\t\t: fpu avx2 {}\n"
    info = first + "\nprocessor\t: 1\n"
    here = key_of(info.format(2000, "avx512f"), 2)
    assert key_of(info.format(3000, "avx512f smap"), 2) == here
    others = {
        key_of(info.format(2000, ""), 2),
        key_of(info.format(2000, "avx512f"), 4),
        key_of(info.format(2000, "avx512f").replace("model\t\t: 2", "model\t\t: 3"), 2),
        key_of("", 2),
    }
    assert here not in others
    assert len(others) == 4


def test_rows_in_the_caches_cost_less() -> None:
    few, many = 1000, 1_000_000
    assert COSTS.exact(few, 1) == pytest.approx(few * COSTS.cached_row_us)
    assert COSTS.exact(many, 1) == pytest.approx(many * COSTS.row_us)
    assert dataclasses.replace(COSTS, row_bytes=1 << 20).exact(few, 1) == pytest.approx(few * COSTS.row_us)


@pytest.mark.parametrize("text", [
    "",
    '{"row_us": 1',
    "null",
    "[" * 60_000,
    json.dumps(dataclasses.asdict(COSTS) | {"row_bytes": 10**400}),
    json.dumps(dataclasses.asdict(COSTS) | {"scan_us": "00000"}),
    json.dumps(dataclasses.asdict(COSTS) | {"row_us": math.nan}),
], ids=["empty", "truncated", "null", "deep", "huge", "digits", "nan"])  # fmt: skip
def test_a_damaged_file_has_no_costs(tmp_path: Path, text: str) -> None:
    file = CostFile(tmp_path)
    file.path.write_text(text)
    book = PlanBook(file)
    assert (book.costs, book.due, book.choose(1, 10, 0.1, 10)) == (None, True, "exact_allowed")
    book.replace(COSTS)
    assert file.read() == COSTS


def test_a_named_pipe_has_no_costs(tmp_path: Path) -> None:
    file = CostFile(tmp_path)
    os.mkfifo(file.path)
    signal.alarm(20)
    try:
        assert file.read() is None
    finally:
        signal.alarm(0)


def test_an_error_while_plans_are_timed_is_raised_as_it_is(tmp_path: Path) -> None:
    file = CostFile(tmp_path)
    with pytest.raises(OSError, match="no space"), file.claimed() as alone:
        assert alone
        raise OSError("no space")
    with file.claimed() as again:
        assert again
