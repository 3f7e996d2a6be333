"""Links of the pages lead to files and headings that are there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest

from tests.data import ROOT

_FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)


def pages() -> list[str]:
    """Return the pages, by their paths in the repository."""
    if not (ROOT / ".git").exists():
        return sorted(
            str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
        )
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.splitlines()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in _HEADING.findall(_FENCE.sub("", page.read_text())):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while (name := anchor + (f"-{number}" if number else "")) in found:
            number += 1
        found.add(name)
    return found


def leads_nowhere(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):  # other sites are not looked at
        return False
    file, _, anchor = unquote(link).partition("#")
    target = page.parent / file if file else page
    if not target.exists():
        return True
    return bool(anchor) and target.suffix == ".md" and anchor not in anchors(target)


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    links = _LINK.findall(_FENCE.sub("", path.read_text()))
    assert [link for link in links if leads_nowhere(path, link)] == []


def test_a_link_to_nothing_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b` (c), d\n\n```sh\n# no heading\n```\n\n## Two\n\n## Two\n")
    assert anchors(page) == {"a-b-c-d", "two", "two-1"}
    assert [
        link for link in ("#two", "#two-1", "page.md#a-b-c-d", "https://a.b/c") if leads_nowhere(page, link)
    ] == []
    assert all(
        leads_nowhere(page, link) for link in ("#three", "#no-heading", "other.md", "../none/page.md#two")
    )
