"""Counters, gauges and histograms of one process, and merging those of several.

An observation takes 0.3 µs and one lock; a worker publishes all its metrics at once. docs/adr/0015-metrics.md compares
this with prometheus-client's multi-process mode.
"""

from __future__ import annotations

import json
import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

__all__ = [
    "Counter",
    "Dump",
    "Family",
    "Gauge",
    "Histogram",
    "Ratio",
    "Registry",
    "merged",
    "rendered",
    "samples",
]

Labels: TypeAlias = tuple[str, ...]
Dump: TypeAlias = dict[str, dict[str, Any]]
"""Name → labels joined by `_SEPARATOR` → value; for a histogram, the sum and the count of each bucket."""

_SEPARATOR = "\x1f"
_MAX_SERIES = 2000
"""Limit of label combinations of one metric in one process: indexes come and go."""


class Family:
    """A metric: its values by those of its labels."""

    kind: Literal["counter", "gauge", "histogram"]

    def __init__(self, name: str, text: str, labels: Sequence[str] = ()) -> None:
        self.name, self.text, self.labels = name, text, tuple(labels)
        self._lock = threading.Lock()
        self._series: dict[Labels, Any] = {}

    def dump(self) -> dict[str, Any]:
        """Return the values by joined labels."""
        with self._lock:
            return {_SEPARATOR.join(labels): value for labels, value in self._series.items()}

    def restore(self, dumped: Mapping[str, Any]) -> None:
        """Continue from the values of another process."""
        with self._lock:
            self._series = {
                tuple(key.split(_SEPARATOR)) if key else (): value for key, value in dumped.items()
            }


class Counter(Family):
    """A value that only grows."""

    kind = "counter"

    def inc(self, labels: Labels = (), by: float = 1) -> None:
        """Add `by`."""
        with self._lock:
            if labels in self._series or len(self._series) < _MAX_SERIES:
                self._series[labels] = self._series.get(labels, 0) + by


class Gauge(Family):
    """A current value, computed at each publication or scrape."""

    kind = "gauge"

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str] = (),
        *,
        combine: Literal["sum", "max"] = "sum",
    ) -> None:
        super().__init__(name, text, labels)
        self.combine = combine
        """How the values of several processes are merged."""
        self._ask: Callable[[], Mapping[Labels, float]] = dict

    def asks(self, ask: Callable[[], Mapping[Labels, float]]) -> None:
        """Set the function that returns the values."""
        self._ask = ask

    def dump(self) -> dict[str, Any]:
        """Return the values by joined labels."""
        return {_SEPARATOR.join(labels): float(value) for labels, value in self._ask().items()}

    def restore(self, dumped: Mapping[str, Any]) -> None:
        """Do nothing: the values were those of an ended process."""


class Histogram(Family):
    """Counts of values by bucket."""

    kind = "histogram"

    def __init__(self, name: str, text: str, labels: Sequence[str] = (), *, buckets: Sequence[float]) -> None:
        super().__init__(name, text, labels)
        self.buckets = tuple(buckets)

    def observe(self, value: float, labels: Labels = ()) -> None:
        """Count a value."""
        bucket = bisect_left(self.buckets, value)
        with self._lock:
            series = self._series.get(labels)
            if series is None:
                if len(self._series) >= _MAX_SERIES:
                    return
                series = self._series[labels] = [0.0] + [0] * (len(self.buckets) + 1)
            series[0] += value
            series[bucket + 1] += 1

    def dump(self) -> dict[str, Any]:
        """Return sum and bucket counts by joined labels."""
        with self._lock:
            return {_SEPARATOR.join(labels): list(series) for labels, series in self._series.items()}


class Ratio(Family):
    """The quotient of two counters, computed after merging all processes."""

    kind = "gauge"

    def __init__(self, name: str, text: str, part: Counter, whole: Counter) -> None:
        super().__init__(name, text, part.labels)
        self._part, self._whole = part.name, whole.name

    def of(self, dump: Dump) -> dict[str, float]:
        """Return the values by joined labels, computed from a dump of the counters."""
        part, whole = dump.get(self._part, {}), dump.get(self._whole, {})
        return {labels: part.get(labels, 0) / count for labels, count in whole.items() if count}


class Registry:
    """The metrics of a process."""

    def __init__(self, families: Iterable[Family]) -> None:
        self.families = tuple(families)

    def dump(self) -> Dump:
        """Return the values of all families by name."""
        return {family.name: family.dump() for family in self.families}

    def restore(self, dump: Mapping[str, Mapping[str, Any]]) -> None:
        """Continue from the counters of an ended process, so that sums never decrease."""
        for family in self.families:
            family.restore(dump.get(family.name, {}))

    def to_bytes(self, *, gauges: bool = True) -> bytes:
        """Return `dump` as JSON bytes, with or without gauges."""
        dump = {f.name: f.dump() for f in self.families if gauges or not isinstance(f, Gauge)}
        return json.dumps(dump, separators=(",", ":")).encode()


def merged(families: Sequence[Family], dumps: Iterable[Dump]) -> Dump:
    """Merge the dumps of several processes."""
    total: Dump = {family.name: {} for family in families}
    for dump in dumps:
        for family in families:
            values = total[family.name]
            for key, value in dump.get(family.name, {}).items():
                current = values.get(key)
                values[key] = value if current is None else _merged_value(family, current, value)
    return total


def _merged_value(family: Family, first: Any, second: Any) -> Any:
    if isinstance(family, Histogram):
        return [a + b for a, b in zip(first, second, strict=True)]
    if isinstance(family, Gauge) and family.combine == "max":
        return max(first, second)
    return first + second


def samples(family: Family, dump: Dump) -> list[tuple[Labels, Any]]:
    """Return the values of a family in a merged dump, by values of its labels, sorted."""
    values = family.of(dump) if isinstance(family, Ratio) else dump.get(family.name, {})
    return [(tuple(key.split(_SEPARATOR)) if key else (), value) for key, value in sorted(values.items())]


def rendered(families: Sequence[Family], dump: Dump) -> str:
    """Return the Prometheus text format, version 0.0.4."""
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}"]
        for values, value in samples(family, dump):
            labels = list(zip(family.labels, values, strict=False))
            if isinstance(family, Histogram):
                lines += _histogram_lines(family, labels, value)
            else:
                lines.append(f"{family.name}{_braced(labels)} {_number(value)}")
    return "\n".join(lines) + "\n"


def _histogram_lines(family: Histogram, labels: list[tuple[str, str]], series: list[float]) -> list[str]:
    lines, count = [], 0.0
    for bound, number in zip((*family.buckets, math.inf), series[1:], strict=True):
        count += number
        lines.append(f"{family.name}_bucket{_braced([*labels, ('le', _number(bound))])} {_number(count)}")
    lines.append(f"{family.name}_sum{_braced(labels)} {_number(series[0])}")
    lines.append(f"{family.name}_count{_braced(labels)} {_number(count)}")
    return lines


def _braced(labels: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if value == math.inf:
        return "+Inf"
    return repr(int(value)) if value == int(value) else repr(float(value))
