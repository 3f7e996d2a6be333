"""`scannery index show` tells which ScaNN configurations a build tried, and the recall of each kind of queries."""

from __future__ import annotations

import io

from rich.console import Console

from scannery.cli.commands.indexes.show import _curve, _trial
from scannery.indexer import CurvePoint, SegmentEntry
from scannery.indexer.manifest import ConfigTrial, TriedConfig


def printed(table: object) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(table)
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def tried(**values: object) -> TriedConfig:
    one = {
        "leaves": 400, "soar": False, "dimensions_per_block": 2, "anisotropic_threshold": 0.2, "searched": 60,
        "rescore": 40, "recall": 0.95, "query_us": 66.2,
    }  # fmt: skip
    return TriedConfig.model_validate(one | values)


def test_what_was_tried_is_shown_with_what_it_costs() -> None:
    configs = (tried(), tried(soar=True, query_us=53.4, chosen=True), tried(query_us=None, recall=0.812))
    shown = printed(
        _trial(
            ConfigTrial(
                rows=4200,
                segment_rows=40_000,
                target=0.95,
                queries={"stored": 60, "given": 120},
                tried=configs,
            )
        )
    )
    assert "tried on 4,200 rows for recall 0.95 with queries: 60 stored, 120 given" in shown
    [chosen] = [line for line in shown.splitlines() if "chosen" in line]
    assert "yes" in chosen
    assert " 53 " in chosen
    assert "recall 0.812" in shown


def test_the_recall_of_each_kind_is_shown() -> None:
    point = CurvePoint(leaves=60, rescore=40, recall=0.957, error=0.001, query_us=53)
    entry = SegmentEntry(
        key=f"segments/{'0' * 64}.parquet", shard=0, rows=1, size_bytes=1, sha256="0" * 64, kind="scann", curve=(point,)
    )  # fmt: skip
    assert "stored" not in printed(_curve(entry, 0.95)), "segments of earlier releases have none"
    both = point.model_copy(update={"recalls": {"stored": 0.991, "given": 0.957}})
    shown = printed(_curve(entry.model_copy(update={"curve": (both,)}), 0.95))
    for text in ("stored", "given", "0.9910", "0.9570 ± 0.0010"):
        assert text in shown
