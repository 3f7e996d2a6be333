"""What users, scripts and dashboards rely on is what was recorded."""

from __future__ import annotations

from difflib import unified_diff

import pytest

from tests.tools.record_contracts import CONTRACTS, FOLDER, text_of

pytestmark = pytest.mark.system


@pytest.mark.parametrize("name", CONTRACTS)
def test_contract_is_the_recorded_one(name: str) -> None:
    path = FOLDER / f"{name}.txt"
    lines = unified_diff(
        path.read_text().splitlines(), text_of(name).splitlines(), "recorded", "now", n=1, lineterm=""
    )
    if difference := "\n".join(lines):
        pytest.fail(
            f"{path.name}: others rely on this. If the change is meant: `make contracts`, and commit the file, "
            f"whose difference is reviewed.\n{difference}",
            pytrace=False,
        )
