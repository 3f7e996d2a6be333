"""The signals of a ranking expression for the rows of a segment."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from scannery.indexer import Store, open_index
from scannery.indexer.ranking.parsing import program_of
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving.snapshot.filter_cache import FilterCache
from scannery.serving.snapshot.signal_table import Signals
from tests.served import make_library_store

pytestmark = pytest.mark.system


def test_one_signal_of_many_attributes_checks_the_deadline(tmp_path: Path) -> None:
    opened = open_index(Store.open(make_library_store(tmp_path, shards=1)), "library")
    spec = opened.manifest.spec
    program = program_of("score + " + " + ".join(["rating * year"] * 10), spec.attributes)
    assert len(program.signals) == 1
    signals = Signals(program, 0.0, spec, FilterCache(), (0.0, 1.0))
    seconds = itertools.count()
    with pytest.raises(DeadlineError):
        signals.table(opened.segments[0], Deadline(5.5, lambda: float(next(seconds))))
    assert next(seconds) == 7
