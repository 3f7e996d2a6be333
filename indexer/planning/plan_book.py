"""The costs of a segment's plans as they are used: those that were timed, compared with what searches take.

The server takes the processor time of a sample of searches, and keeps a few of these queries. When it is idle it asks
one of them by every plan (an *audit*). All plans of an audit run within the same moments, so a slow machine makes all
of them slow, and what the audit tells is only the ratio between them. If nine of ten audits agree that a plan is
cheaper, or dearer, than its costs say, these are corrected by the median: so a plan heals that was never chosen, since
its costs on disk were too high. A single kind of filter that makes a plan dear does not change the choice for the
others. Costs with such a drift are also due to be timed again.

Safe to use from several threads: values are replaced, not changed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from scannery.indexer.planning.plan_costs import PLANS, CostFile, Costs

if TYPE_CHECKING:
    from scannery.indexer.planning.allowed_rows import AllowedRows
    from scannery.indexer.tuning.settings_choice import SearchSettings

__all__ = ["EVERY", "PlanBook", "SampledSearch"]

CHOSEN = 1024
"""Size of the cache of choices: filters repeat."""
EVERY = 16
"""One search in EVERY is timed: the clock takes about half a microsecond."""
KEPT_QUERIES = 16
AUDITS = 48
"""Audits that are remembered."""
FEWEST_AUDITS = 8
AGREEING = 0.1
"""Share of the audits that may disagree."""
DRIFT, SETTLED = math.log(1.5), math.log(1.2)
"""Ratio between two plans, compared with that of their costs, above which costs are corrected, and below which they no
longer are."""
MOST_CORRECTED = math.log(64)


@dataclass(frozen=True, slots=True)
class SampledSearch:
    """A search among allowed rows, to be repeated by other plans."""

    queries_QD: np.ndarray
    k: int
    allowed: AllowedRows
    settings: SearchSettings
    target_recall: float


class PlanBook:
    """Chooses plans by costs, and corrects these."""

    def __init__(self, file: CostFile | None = None, costs: Costs | None = None) -> None:
        """Take the costs.

        Args:
            file: where they are kept; None: nowhere.
            costs: None: those of the file, if it has any.

        """
        self.file = file
        self._changed = file.changed() if file else 0
        self._sums: dict[str, tuple[float, float]] = {}
        self._samples: deque[SampledSearch] = deque(maxlen=KEPT_QUERIES)
        self.calls = 0
        """Searches so far; one of EVERY is timed."""
        self._timed = costs or (file.read() if file else None)
        self._start(self._timed)

    @property
    def costs(self) -> Costs | None:
        """The costs in use, corrected; None: `exact_allowed` is the only plan."""
        return self._costs

    @property
    def timed(self) -> Costs | None:
        """The costs as they were timed."""
        return self._timed

    @property
    def factors(self) -> Mapping[str, float]:
        """By which the timed costs are corrected; 1 for each plan if they are not."""
        return self._factors

    def replace(self, costs: Costs) -> None:
        """Use costs that were just timed, and keep them in the file."""
        if self.file is not None:
            self.file.write(costs)
            self._changed = self.file.changed()
        self._start(costs)

    def refresh(self) -> None:
        """Use the costs of the file if another process timed them since."""
        changed = self.file.changed() if self.file else 0
        if changed != self._changed and self.file is not None:
            self._changed = changed
            costs = self.file.read()
            if costs is not None:
                self._start(costs)

    @property
    def due(self) -> bool:
        """Whether the plans should be timed again: never timed, disturbed by other processes, or drifted since."""
        return self._timed is None or self._timed.disturbed or self.drifted

    @property
    def drifted(self) -> bool:
        """Whether audits disagree with the costs."""
        return any(factor != 1 for factor in self._factors.values())

    def predicted_us(self, plan: str, queries: int, rows: int, share: float, k: int) -> float:
        """Return the cost of a plan in microseconds; 0 if costs are unknown."""
        cost = self._costs.by_plan(queries, rows, share, k)[plan] if self._costs else 0.0
        return cost if math.isfinite(cost) else 0.0

    def note(self, plan: str, predicted_us: float, measured_us: float, search: SampledSearch) -> None:
        """Record the processor time of a search."""
        predicted, measured = self._sums.get(plan, (0.0, 0.0))
        self._sums[plan] = predicted + predicted_us, measured + measured_us
        self._samples.append(search)

    def next_asked(self) -> SampledSearch | None:
        """Return a timed search that was not audited, and forget it; None if there is none."""
        try:
            return self._samples.popleft()
        except IndexError:
            return None

    def taken(self) -> dict[str, tuple[float, float]]:
        """Return predicted and measured time of the timed searches since the last call, in microseconds, by plan."""
        return {plan: self._sums.pop(plan) for plan in list(self._sums)}

    def audited(self, measured_us: Mapping[str, float], predicted_us: Mapping[str, float]) -> None:
        """Record what one query took by each of several plans within the same moments.

        Args:
            measured_us: processor time by plan.
            predicted_us: by the costs as they were timed, without corrections.

        """
        logs = {
            plan: math.log(took / predicted_us[plan])
            for plan, took in measured_us.items()
            if took > 0 and 0 < predicted_us.get(plan, 0) < math.inf
        }
        if len(logs) < 2:
            return
        middle = sum(logs.values()) / len(logs)
        for plan, value in logs.items():
            self._audits[plan].append(value - middle)
        self._correct()

    def _correct(self) -> None:
        agreed = {plan: _agreed(list(values)) for plan, values in self._audits.items()}
        drift = max(agreed.values()) - min(agreed.values())
        bound = SETTLED if self.drifted else DRIFT
        factors = {
            plan: math.exp(min(max(value, -MOST_CORRECTED), MOST_CORRECTED)) if drift > bound else 1.0
            for plan, value in agreed.items()
        }
        if self._timed is not None and any(
            abs(math.log(factor / self._factors[plan])) > SETTLED
            or (factor == 1) != (self._factors[plan] == 1)
            for plan, factor in factors.items()
        ):
            self._use(self._timed.scaled(factors), factors)

    def _start(self, costs: Costs | None) -> None:
        self._timed = costs
        self._audits: dict[str, deque[float]] = {plan: deque(maxlen=AUDITS) for plan in PLANS}
        self._use(costs, dict.fromkeys(PLANS, 1.0))

    def _use(self, costs: Costs | None, factors: Mapping[str, float]) -> None:
        self._factors = factors
        self._costs = costs
        # A new cache: that of a method would keep the choices by earlier costs.
        self.choose: Callable[[int, int, float, int], str] = (
            lru_cache(maxsize=CHOSEN)(costs.choose) if costs else _exact
        )
        """Returns the cheapest plan; arguments as `Costs.by_plan`."""


def _agreed(values: list[float]) -> float:
    """Return the median of the audits; 0 if more than AGREEING of them disagree on its sign."""
    if len(values) < FEWEST_AUDITS:
        return 0.0
    values.sort()
    least, high = values[int(AGREEING * len(values))], values[-1 - int(AGREEING * len(values))]
    return values[len(values) // 2] if least > 0 or high < 0 else 0.0


def _exact(queries: int, rows: int, share: float, k: int) -> str:
    """Return `exact_allowed`, the only plan of a segment whose plans were not timed."""
    return "exact_allowed"
