"""Views for notebooks: what they show, and that no text of an index becomes HTML."""

from __future__ import annotations

import datetime as dt
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np

import scannery
from scannery.client.response.notebook import marked_html
from tests.served import DIMENSIONS, copied

EVIL = '<script>alert(1)</script><img src=x onerror=alert(2)>" onmouseover="alert(3) $x$ \x1b[31m'


class Elements(HTMLParser):
    """Collects tags, attributes and text; a page that is not balanced is an error."""

    def __init__(self, view: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(view)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.names |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.words)


def test_what_is_in_an_index_is_text_and_never_html(library: Path, tmp_path: Path) -> None:
    evil: Any = {
        "id": EVIL.replace("\x1b", ""),
        "title": EVIL,
        "text": EVIL * 40,
        "vector": np.ones(DIMENSIONS),
    }
    evil["attributes"] = {"show": EVIL, "tags": [EVIL], "published": dt.datetime(2024, 5, 1)}
    with scannery.connect(copied(library, tmp_path)) as client:
        index = client.index("library")
        index.upsert([evil])
        hits = index.search(np.ones(DIMENSIONS), 30)
        views = [view._repr_html_() for view in (hits, hits[0], index, index.stats(), client.indexes())]
        assert hits[0].title == EVIL
        missing = client.index(EVIL)._repr_html_()
    for view in (*views, missing):
        elements = Elements(view)
        assert elements.tags <= {"div", "span", "table", "thead", "tbody", "tr", "th", "td", "strong", "em"}
        assert elements.names <= {"class", "style"}
        assert "\x1b" not in view
    shown = Elements(views[0])
    assert "<script>alert(1)</script>" in shown.text
    assert "30 hits, 20 shown" in shown.text
    assert "2024-05-01" in shown.text
    assert len(views[0]) < 60_000
    assert "601" in Elements(views[2]).text
    assert {"flat", "library"} <= set(Elements(views[4]).words)


async def test_views_without_anything_to_show(library: Path) -> None:
    assert "No hits" in scannery.Hits()._repr_html_()
    async with scannery.aio.connect(library) as client:
        assert "await index.stats()" in client.index("library")._repr_html_()
        assert "library" in (await client.indexes())._repr_html_()


def test_invisible_characters_of_words_are_kept_in_html() -> None:
    family, scotland = (
        "\U0001f468\u200d\U0001f469\u200d\U0001f467",
        "\U0001f3f4\U000e0067\U000e0062\U000e007f",
    )
    text = (
        f"{family} {scotland} \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 co\u00adop \U0001fae8 \ue000"
    )
    assert marked_html(text, [(0, len(family))], "mark") == text.replace(family, f"<mark>{family}</mark>")
    assert marked_html("a\x1bb\u202ec\u2066d\x00 <e>\n", [], "mark") == "a bcd  &lt;e&gt;"
