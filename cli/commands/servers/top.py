"""`scannery top`: show a server's metrics, live."""

from __future__ import annotations

import http.client
import re
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, TypeAlias

import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table

from scannery.cli.output import console, size_text
from scannery.client import UnavailableError
from scannery.runtime.histograms import quantile

__all__ = ["Sample", "parse_metrics", "top", "view"]

Sample: TypeAlias = dict[str, dict[tuple[tuple[str, str], ...], float]]
"""Name → labels → value."""

_LINE = re.compile(r"(?P<name>[a-z_]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
MIB = 1 << 20


def top(
    metrics: Annotated[
        str,
        typer.Argument(metavar="URL", help="Address of the metrics: HOST:PORT of `serve --metrics-listen`."),
    ],
    every: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two samples.", min=0.2)] = 1.0,
    once: Annotated[
        bool, typer.Option("--once", help="Show the difference of two samples once, and end.")
    ] = False,
) -> None:
    """Show requests per second, latencies, load, recall and memory of a server until Ctrl-C."""
    url = metrics if "://" in metrics else f"http://{metrics}/metrics"
    out = console()
    before, started_s = _fetched(url), time.monotonic()
    with Live(console=out, auto_refresh=False, transient=once) as live:
        while True:
            time.sleep(every)
            sample, now_s = _fetched(url), time.monotonic()
            shown = view(before, sample, now_s - started_s)
            live.update(shown, refresh=True)
            if once:
                break
            before, started_s = sample, now_s
    if once:
        out.print(shown)


def parse_metrics(text: str) -> Sample:
    """Return the samples in a text in Prometheus' format."""
    sample: Sample = defaultdict(dict)
    for line in text.splitlines():
        match = None if line.startswith("#") else _LINE.fullmatch(line)
        if match:
            labels = tuple((name, value) for name, value in _LABEL.findall(match["labels"] or ""))
            sample[match["name"]][labels] = float(match["value"])
    return sample


def view(before: Sample, now: Sample, seconds: float) -> Group:
    """Return the tables of the changes between two samples taken `seconds` apart."""
    return Group(_server(before, now, seconds), _requests(before, now, seconds), _indexes(now), _memory(now))


def _server(before: Sample, now: Sample, seconds: float) -> Table:
    table = Table(
        "workers", "in flight", "limit", "refused/s", "cached texts", "batch", "private", "resident"
    )
    cache = _delta(before, now, "scannery_query_vectors_total")
    hits = sum(value for labels, value in cache.items() if ("cache", "hit") in labels)
    texts = sum(_delta(before, now, "scannery_encoder_batch_texts_sum").values())
    batches = sum(_delta(before, now, "scannery_encoder_batch_texts_count").values())
    table.add_row(
        f"{_total(now, 'scannery_workers'):.0f}",
        f"{_total(now, 'scannery_in_flight'):.0f}",
        f"{_total(now, 'scannery_in_flight_limit'):.0f}",
        f"{sum(_delta(before, now, 'scannery_refused_total').values()) / seconds:.1f}",
        _share(hits, sum(cache.values())),
        f"{texts / batches:.1f}" if batches else "–",
        f"{_total(now, 'scannery_private_bytes') / MIB:.0f} MiB",
        f"{_total(now, 'scannery_resident_bytes') / MIB:.0f} MiB",
    )
    return table


def _requests(before: Sample, now: Sample, seconds: float) -> Table:
    table = Table("method", "index", "plan", "answer", "per s", "p50 ms", "p99 ms")
    buckets = _delta(before, now, "scannery_request_seconds_bucket")
    series: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = defaultdict(list)
    for labels, count in buckets.items():
        series[labels[:-1]].append((float(labels[-1][1]), count))
    for labels, counts in sorted(series.items()):
        counts.sort()
        total = counts[-1][1]
        if total:
            named = dict(labels)
            bounds = [bound for bound, _ in counts[:-1]]
            below = [0.0, *(count for _, count in counts)]
            observations = [after - before for before, after in pairwise(below)]
            table.add_row(
                named.get("method", ""),
                named.get("index", ""),
                named.get("plan", ""),
                named.get("code", ""),
                f"{total / seconds:.1f}",
                f"{1000 * (quantile(bounds, observations, 0.5) or 0.0):.1f}",
                f"{1000 * (quantile(bounds, observations, 0.99) or 0.0):.1f}",
            )
    return table


def _indexes(now: Sample) -> Table:
    table = Table(
        "index",
        "version",
        "datapoints",
        "in memory",
        "answers in",
        "recall (sampled)",
        "recall now",
        "effective target",
        "failures",
    )
    for labels, version in sorted(now.get("scannery_index_version", {}).items()):
        rows, memory, up, hits, lookups = (
            now.get(name, {}).get(labels, 0.0)
            for name in (
                "scannery_index_rows",
                "scannery_memory_rows",
                "scannery_index_up",
                "scannery_recall_hits_total",
                "scannery_recall_wanted_total",
            )
        )
        table.add_row(
            dict(labels)["index"],
            f"{version:.0f}",
            f"{rows:,.0f}",
            f"{memory:,.0f}",
            f"{up:.0f} workers",
            f"{hits / lookups:.3f} of {lookups:,.0f}" if lookups else "–",
            _with_error(now, labels),
            _effective(now, labels),
            # Of the newest version, or of its encoders; `index show` tells why.
            f"{now.get('scannery_index_failures', {}).get(labels, 0.0):.0f}",
        )
    return table


def _memory(now: Sample) -> Table:
    """Return what each index, and the processes, need of memory by component, and what else is mapped."""
    needed, mapped = (_by_index(now.get(f"scannery_{name}_bytes", {})) for name in ("memory", "mapped"))
    ceiling = _total(now, "scannery_memory_ceiling_bytes")
    total = sum(sum(each.values()) for each in needed.values())
    title = f"memory needed: {size_text(int(total))}" + (f" of {size_text(int(ceiling))}" if ceiling else "")
    table = Table("index", "needed", "by component", "mapped", title=title, title_justify="left")
    for index in sorted({*needed, *mapped}):
        parts = sorted(needed[index].items(), key=lambda part: -part[1])
        table.add_row(
            index or "(processes)",
            size_text(int(sum(needed[index].values()))),
            ", ".join(f"{name} {size_text(int(size))}" for name, size in parts),
            size_text(int(sum(mapped[index].values()))),
        )
    return table


def _by_index(samples: Mapping[tuple[tuple[str, str], ...], float]) -> Mapping[str, dict[str, float]]:
    """Return the values by index and component."""
    values: dict[str, dict[str, float]] = defaultdict(dict)
    for labels, value in samples.items():
        named = dict(labels)
        values[named["index"]][named["component"]] = value
    return values


def _with_error(now: Sample, labels: tuple[tuple[str, str], ...]) -> str:
    """Return the recall of the latest sampled queries with its standard error."""
    recall, error = (now.get(f"scannery_recall_{name}", {}).get(labels) for name in ("now", "error"))
    return "–" if recall is None or error is None else f"{recall:.3f} ± {error:.3f}"


def _effective(now: Sample, labels: tuple[tuple[str, str], ...]) -> str:
    """Return the target that chooses the settings, and the one that is to be met."""
    effective, target = (
        now.get(f"scannery_recall_{name}", {}).get(labels) for name in ("effective_target", "target")
    )
    return "–" if effective is None or target is None else f"{effective:.4f} for {target:.3f}"


def _delta(before: Sample, now: Sample, name: str) -> Mapping[tuple[tuple[str, str], ...], float]:
    old = before.get(name, {})
    return {labels: value - old.get(labels, 0.0) for labels, value in now.get(name, {}).items()}


def _total(sample: Sample, name: str) -> float:
    return sum(sample.get(name, {}).values())


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "–"


def _fetched(url: str) -> Sample:
    if not url.startswith(("http://", "https://")):
        raise typer.BadParameter(f"{url!r} is not a URL of metrics")
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return parse_metrics(response.read().decode())
    except (OSError, http.client.HTTPException, UnicodeDecodeError) as error:
        raise UnavailableError(f"no metrics at {url}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, http.client.HTTPException | UnicodeDecodeError):
        return "the server at this address does not speak HTTP"
    reason = getattr(error, "reason", error)
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
