"""What an account may hold, who loses, and that everything comes back."""

from __future__ import annotations

import gc
import random

import pytest

from scannery.runtime.errors import OverloadedError
from scannery.serving.scheduling.permits import Budget, Share


def filled(budget: Budget, account: str, amount: int = 1) -> list[Share]:
    shares = []
    while True:
        try:
            shares.append(budget.take(account, amount))
        except OverloadedError as error:
            assert error.retry_after_s
            return shares


@pytest.mark.system
@pytest.mark.parametrize("accounts", [1, 2, 3, 10])
def test_accounts_have_equal_parts_and_one_more_has_room(accounts: int) -> None:
    budget = Budget(1000, "bytes")
    shares = {name: filled(budget, name) for name in map(str, range(accounts))}
    for _ in range(20):  # who came first gives back, and takes what it may have now
        for name in list(shares):
            for share in shares.pop(name):
                share.close()
            shares[name] = filled(budget, name)
    part = 1000 / (accounts + 1)
    assert [len(mine) for mine in shares.values()] == pytest.approx([part] * accounts, abs=5)
    assert len(filled(budget, "new")) == pytest.approx(part / 2, abs=5)


def test_the_account_that_holds_most_loses_first() -> None:
    budget = Budget(100, "bytes")
    lost: list[str] = []
    large = budget.take("greedy", 30, lambda: lost.append("large"))
    small = budget.take("greedy", 20, lambda: lost.append("small"))
    other = budget.take("other", 20, lambda: lost.append("other"))
    assert lost == []
    theirs = budget.take("modest", 19, lambda: lost.append("modest"))
    assert lost == ["large"]
    large.resize(90)  # what was lost takes nothing any more
    assert budget.held == 59
    with pytest.raises(OverloadedError, match="31 bytes"):
        small.resize(31)
    assert small.amount == 20
    for share in (large, small, other, theirs):
        share.close()
        share.close()
    assert budget.held == 0


def test_what_cannot_be_lost_stays() -> None:
    budget = Budget(100, "bytes")
    kept = budget.take("greedy", 50)
    with pytest.raises(OverloadedError):
        budget.take("modest", 30)
    assert budget.take("modest", 25).amount == 25
    assert kept.amount == 50


@pytest.mark.system
def test_a_forgotten_share_comes_back() -> None:
    budget = Budget(100, "bytes")
    budget.take("a", 50, lambda: None)
    gc.collect()
    assert budget.held == 0
    assert budget.take("a", 50).amount == 50


@pytest.mark.system
def test_the_sum_is_that_of_the_shares() -> None:
    rng, budget = random.Random(0), Budget(1000, "bytes")
    shares: list[Share] = []
    for _ in range(3000):
        try:
            if not shares or rng.random() < 0.4:
                shares.append(budget.take(rng.choice("abcdef"), rng.randrange(60), lambda: None))
            elif rng.random() < 0.5:
                rng.choice(shares).resize(rng.randrange(120))
            else:
                shares.pop(rng.randrange(len(shares))).close()
        except OverloadedError:
            pass
        held = [share for share in shares if share._budget is not None]
        assert budget.held == sum(share.amount for share in held) <= 1000
        for name in "abcdef":
            assert budget._accounts[name] == sum(share.amount for share in held if share.account == name)
    for share in shares:
        share.close()
    assert (budget.held, budget._accounts) == (0, {})
