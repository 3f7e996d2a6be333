"""What the requests of all callers share in one process: bytes, open streams, and whatever else has an end.

A caller is an account: the key or token that it shows, else the address that it calls from. A caller may hold half of
what the others leave. So a lone caller has half of all, each of two a third, and there is always room for a caller
that holds nothing. Where a caller would be refused although another one holds more, the one that holds most loses.

The callers of this module take their part before they do the work, and give it back whatever happens.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TypeVar

from scannery.runtime.errors import OverloadedError

__all__ = ["Budget", "Share", "heaviest"]

RETRY_S = 1.0
"""What is held is mostly given back within this time: callers read, and requests are answered."""

AccountT = TypeVar("AccountT")


def heaviest(amounts: Mapping[AccountT, float]) -> AccountT:
    """Return the account with the largest amount, the first one of equals."""
    return max(amounts, key=amounts.__getitem__)


class Share:
    """A part of a budget that an account holds, until it is given back, lost or garbage-collected."""

    __slots__ = ("__weakref__", "_budget", "_lose", "account", "amount")

    def __init__(self, budget: Budget, account: str, lose: Callable[[], object] | None) -> None:
        self._budget: Budget | None = budget
        self._lose = lose
        self.account = account
        self.amount = 0
        """Bytes, or what else the budget counts."""

    def resize(self, amount: int) -> None:
        """Hold another amount; raises OverloadedError and holds what it did if there is no room for more."""
        if self._budget is not None:
            self._budget._resize(self, amount)

    def close(self) -> None:
        """Hold nothing any more; a second call does nothing."""
        budget, self._budget, self._lose = self._budget, None, None
        if budget is not None:
            budget._give_back(self)

    def __del__(self) -> None:
        self.close()


class Budget:
    """An amount that accounts share. Safe to use from several threads."""

    def __init__(self, total: int, what: str) -> None:
        """Hold nothing yet.

        Args:
            total: bytes, or what else is counted.
            what: is counted, for messages, with its unit, such as "bytes of unread answers".

        """
        self.total, self._what = total, what
        # Reentrant: the collector may finish off a forgotten share while the lock is held.
        self._lock = threading.RLock()
        self._accounts: Counter[str] = Counter()
        self._losable: weakref.WeakValueDictionary[int, Share] = weakref.WeakValueDictionary()
        """Shares whose holder can be made to lose them."""
        self._held = 0

    @property
    def held(self) -> int:
        """Amount that all accounts hold."""
        return self._held

    def take(self, account: str, amount: int, lose: Callable[[], object] | None = None) -> Share:
        """Return a share of an account.

        Args:
            account: who holds it.
            amount: to hold at first.
            lose: ends what holds the share, from any thread; None: it cannot be ended. The share is given back then.

        Raises:
            OverloadedError: the account holds its part already.

        """
        share = Share(self, account, lose)
        share.resize(amount)
        return share

    def most_of(self, account: str) -> int:
        """Return the amount that an account may hold now."""
        return (self.total - self._held + self._accounts[account]) // 2

    def _resize(self, share: Share, amount: int) -> None:
        losers: list[Callable[[], object]] = []
        with self._lock:
            more = amount - share.amount
            held = self._accounts[share.account]
            while more > 0 and held + more > self.most_of(share.account):
                loser = self._loser(share, held + more)
                if loser is None:
                    break
                losers += filter(None, [loser._lose])
                loser.close()
            most = self.most_of(share.account)
            refused = more > 0 and held + more > most
            if not refused:
                self._add(share, more)
        for lose in losers:
            lose()
        if refused:
            raise OverloadedError(
                f"this caller would hold {held + more} {self._what}, and may hold {most} now of {self.total}",
                retry_after_s=RETRY_S,
            )

    def _loser(self, share: Share, amount: int) -> Share | None:
        """Return the largest share of the account that holds most; None: it has none, or no more than `amount`."""
        account = heaviest(self._accounts) if self._accounts else share.account
        if account == share.account or self._accounts[account] <= amount:
            return None
        shares = [each for each in self._losable.values() if each.account == account]
        return max(shares, key=lambda each: each.amount, default=None)

    def _add(self, share: Share, more: int) -> None:
        share.amount += more
        self._held += more
        self._accounts[share.account] += more
        if not self._accounts[share.account]:
            del self._accounts[share.account]
        if share._lose is not None and share.amount:
            self._losable[id(share)] = share

    def _give_back(self, share: Share) -> None:
        with self._lock:
            self._losable.pop(id(share), None)
            self._add(share, -share.amount)
