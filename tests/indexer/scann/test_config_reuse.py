"""A segment gets what a trial chose for another one of the same index, if both have similarly many rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from scannery.indexer import build_segment, parse_spec
from scannery.indexer.manifest import ConfigTrial, SegmentEntry, TriedConfig
from scannery.indexer.scann import config as scann_config
from scannery.indexer.scann.config import choose_config, config_like
from tests.data import clustered, datapoints

ROWS = 3000


def trial(segment_rows: int = 2000, leaves: int = 45) -> ConfigTrial:
    def tried(leaves: int, *, chosen: bool) -> TriedConfig:
        return TriedConfig(
            leaves=leaves, soar=chosen, dimensions_per_block=2, anisotropic_threshold=0.2, searched=5, rescore=20,
            recall=0.95, query_us=1.0, chosen=chosen,
        )  # fmt: skip

    both = (tried(90, chosen=False), tried(leaves, chosen=True))
    return ConfigTrial(rows=500, segment_rows=segment_rows, target=0.95, queries={"stored": 60}, tried=both)


@pytest.mark.parametrize(
    ("segment_rows", "used"), [(2000, True), (12_000, True), (12_001, False), (749, False)]
)
def test_what_was_chosen_for_similarly_many_rows_is_used(segment_rows: int, used: bool) -> None:
    spec = parse_spec({"index": "i", "source": {"vector": "v"}, "scann": {"exact_below_rows": 1000}})
    config = choose_config(ROWS, 16, "dot", spec.scann)
    assert config is not None
    assert config_like(config, [], ROWS, None) is None
    found = config_like(config, [{"leaves": 1}, {"soar": True}], ROWS, trial(segment_rows))
    assert (found is not None) == used
    if found is not None:
        assert found.leaves == pytest.approx(config.leaves / 2, abs=1), "the leaves are in proportion"
        assert found.soar
    fixed = config_like(config, [{"soar": True}], ROWS, trial())
    assert fixed is not None
    assert fixed.leaves == config.leaves, "the spec fixes the leaves, so that they are not tried"


@pytest.mark.system
def test_a_segment_that_gets_a_known_configuration_has_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scann_config, "TRIAL_FROM_ROWS", 1000)
    spec = parse_spec({"index": "i", "source": {"vector": "v"}, "scann": {"exact_below_rows": 1000}})
    earlier = SegmentEntry.model_validate(
        {"key": f"segments/{0:064x}.parquet", "shard": 0, "rows": 2000, "size_bytes": 1, "sha256": f"{0:064x}",
         "kind": "scann", "trial": trial()}
    )  # fmt: skip
    table = datapoints(spec, clustered(ROWS, 16))
    built = build_segment(table, spec=spec, shard=0, directory=tmp_path, earlier=earlier)
    assert built.statistics["scann"]["soar"]
    assert built.statistics["scann"]["leaves"] == 55
    assert built.entry.trial == earlier.trial, "later merges use it too"
