"""Which tests run for a change."""

from __future__ import annotations

import pytest

from tests.data import ROOT
from tests.tools.affected import EVERYTHING, affected_tests


@pytest.mark.system
def test_a_bridge_runs_its_own_tests_and_a_segment_those_of_all_that_search():
    bridge = affected_tests(ROOT, ["bridges/haystack/filters.py"])
    segment = affected_tests(ROOT, ["indexer/segment/segment.py"])
    assert bridge is not None and segment is not None
    assert "tests/bridges/haystack/test_retrievers.py" in bridge
    managed = affected_tests(ROOT, ["bridges/vertex/v2/filters.py"])
    assert managed is not None and "tests/bridges/vertex/test_collections.py" in managed
    assert not any(name.startswith(("tests/live/", "tests/embed/", "tests/pipelines/")) for name in bridge)
    assert {"tests/indexer/segment/test_segment.py", "tests/live/test_writes.py"} <= segment
    assert "tests/cli/test_commands.py" in segment  # which starts it by its name
    assert "tests/embed/text/test_chunking.py" not in segment


def test_a_file_that_all_tests_read_runs_all_of_them():
    assert affected_tests(ROOT, [EVERYTHING[0]]) is None
