"""The synchronous halves of the client are what the generator makes of the asynchronous ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.data import ROOT
from tests.tools.generate_sync import generate

pytestmark = pytest.mark.system


def test_what_is_committed_is_what_is_generated(tmp_path: Path) -> None:
    client = ROOT / "client"
    made = {path.relative_to(tmp_path): path.read_text() for path in generate(client, tmp_path)}
    assert len(made) >= 8
    there = {path.relative_to(client): path.read_text() for path in client.glob("**/_sync/*.py")}
    assert there.keys() == made.keys()
    for name, text in made.items():
        assert there[name] == text, f"run `make sync`: {name}"
    assert not any("await" in text or "asyncio" in text for text in made.values())
