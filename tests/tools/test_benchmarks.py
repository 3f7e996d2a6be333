"""Every benchmark can be imported and tells how it is used, and pages name only those that there are."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import pytest

from tests.data import ROOT

MODULES = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if path.stem != "__init__")
COMMANDS = [
    name for name in MODULES if '__name__ == "__main__"' in (ROOT / f"benchmarks/{name}.py").read_text()
]


@pytest.mark.system
@pytest.mark.parametrize("name", MODULES)
def test_it_tells_how_it_is_used(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    if name not in COMMANDS:
        return
    monkeypatch.setattr(sys, "argv", [f"benchmarks.{name}", "--help"])
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert not ended.value.code
    assert "usage:" in capsys.readouterr().out


def test_pages_name_commands_that_there_are() -> None:
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    named = [(page, found) for page in pages for found in re.findall(r"benchmarks\.([a-z_]+)", _text(page))]
    assert [(page.name, name) for page, name in named if name not in MODULES] == []


def test_cases_that_pages_name_are_those_of_the_module() -> None:
    pattern = re.compile(
        r"-m benchmarks\.(quality|features|live|foreign|embed|buckets|host|cluster|query) ([a-z]+)"
    )
    for page in (ROOT / "docs").rglob("*.md"):
        for name, case in pattern.findall(_text(page)):
            source = (ROOT / f"benchmarks/{name}.py").read_text()
            assert re.search(rf'"{case}"', source), (page.name, name, case)


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")
