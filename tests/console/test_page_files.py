"""The files of the page: what is vendored, and that all that is imported is there."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tests.data import ROOT

WEB = ROOT / "console" / "web"
VENDORED = "3b1713d9e43e5bd17dbe6461a484eef45f6b12b86f4367d61a9d9b6baf0453c8"
"""Of the file that `make console-vendor` makes of the versions in packaging/console."""
MAX_BYTES = 300_000
"""What the page adds to the wheel."""
MODULES = sorted(path for path in WEB.rglob("*.js") if "vendor" not in path.parts)
IMPORT = re.compile(r"""(?:from |import\()"([^"]+)\"""")


def test_the_vendored_file_is_what_its_sources_make():
    assert hashlib.sha256((WEB / "vendor" / "preact.js").read_bytes()).hexdigest() == VENDORED


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(WEB)))
def test_modules_import_what_exists(path: Path):
    for target in IMPORT.findall(path.read_text()):
        module = (path.parent / target).resolve()
        names = re.findall(rf"import \{{([^}}]+)\}} from \"{re.escape(target)}\"", path.read_text())
        exported = module.read_text()
        for name in (
            each.partition(" as ")[0].strip() for each in ",".join(names).split(",") if each.strip()
        ):
            assert re.search(
                rf"export (async )?(function|const|class|let) {name}\b|\bas {name}\b", exported
            ), (target, name)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(WEB)))
def test_no_text_becomes_markup(path: Path):
    # The Content Security Policy refuses them, too; here they have a line number.
    text = path.read_text()
    for sink in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "new Function",
        "style=",
        "srcdoc",
    ):
        assert sink not in text


def test_the_page_is_small():
    assert sum(path.stat().st_size for path in WEB.rglob("*") if path.is_file()) <= MAX_BYTES
