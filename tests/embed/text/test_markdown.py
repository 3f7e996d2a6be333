"""Markdown is cut at its headings, and its tables between rows; passages stay spans of the text."""

from __future__ import annotations

import random

import pytest

from scannery.embed import Chunker, Encoder
from scannery.embed.text.chunking import located
from scannery.embed.text.documents import cut, encode_passages, passage_columns
from scannery.embed.text.markdown import find_structure, front_matter_end, passage_title

GUIDE = """---
title: The coffee guide
tags: [coffee]
---
Read this first.

# Guide

## Brewing

Water and time.

### Espresso

Nine bars of pressure for thirty seconds.

## Storing

```python
# not a heading
```

Beans
-----

Keep them dry.
"""


@pytest.fixture(scope="module")
def chunker(minilm: Encoder) -> Chunker:
    return minilm.chunker(32, 8, headings=True)


def trails(text: str) -> list[tuple[str | None, str]]:
    return [
        (one.trail, text[one.start : one.end].split("\n", maxsplit=1)[0])
        for one in find_structure(text).sections
    ]


def test_sections_have_the_trail_of_their_headings():
    assert trails(GUIDE) == [
        (None, "Read this first."),
        ("Guide > Brewing", "# Guide"),  # a heading without a text is part of the next section
        ("Guide > Brewing > Espresso", "### Espresso"),
        ("Guide > Storing", "## Storing"),
        ("Guide > Beans", "Beans"),
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("# A [link](http://x) and *more* `code` ##\nx", "A link and more code"),
        ("#hashtag\nx", None),
        ("    # code\nx", None),
        ("~~~\n# a\n~~~\nx", None),
        ("a\n\n- item\n---\nx", None),
        ("two lines\nof text\n---\nx", None),
        ("Title\n=====\nx", "Title"),
        ("# C#\nx", "C#"),
        ("#\nx", None),
        ("# snake_case_name\nx", "snake_case_name"),
        ("# " + "a" * 400 + "\nx", "a" * 159 + "…"),
    ],
)
def test_headings(text: str, expected: str | None):
    assert find_structure(text).sections[-1].trail == expected


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("---\na: 1\n---\nx", "x"), ("\ufeff---\r\na: 1\r\n...\r\nx", "x"), ("---\n\ntext\n---\nx", None),
        ("---\na: 1\n", None), ("text\n---\na: 1\n---\n", None), ("", None),
    ],
)  # fmt: skip
def test_front_matter(text: str, body: str | None):
    assert text[front_matter_end(text) :] == (text if body is None else body)


def test_a_text_of_headings_alone_is_not_a_passage_per_line():
    text = "".join(f"{'#' * (1 + i % 6)} {i}\nx\n" for i in range(5000))
    assert len(find_structure(text).sections) <= len(text) / 32 + 1


def test_no_passage_crosses_a_heading(chunker):
    passages = chunker.split(GUIDE)
    assert [(one.section, (one.text or "").split("\n")[0]) for one in passages] == [
        (None, "Read this first."), ("Guide > Brewing", "# Guide"), ("Guide > Brewing > Espresso", "### Espresso"),
        ("Guide > Storing", "## Storing"), ("Guide > Beans", "Beans"),
    ]  # fmt: skip
    assert all(one.text == GUIDE[one.start : one.end] for one in passages)
    assert located(GUIDE, [*passages], headings=True) == passages


def test_without_headings_a_text_is_cut_as_before(minilm):
    [passage] = minilm.chunker(128, 8).split(GUIDE)
    assert (passage.section, passage.page, passage.text) == (None, None, GUIDE.strip())


def test_the_trail_is_embedded_in_front_and_is_the_title(chunker, minilm):
    passages = cut(GUIDE, chunker, "Guide to coffee")
    columns = passage_columns(["Guide to coffee"], [passages])
    assert columns["title"] == [
        "Guide to coffee", "Guide to coffee > Brewing", "Guide to coffee > Brewing > Espresso",
        "Guide to coffee > Storing", "Guide to coffee > Beans",
    ]  # fmt: skip
    assert columns["section"][2] == "Guide > Brewing > Espresso"
    [vectors_PD], [problem] = encode_passages(["Guide to coffee"], [passages], minilm, chunker)
    expected_PD = minilm.encode_documents(
        [f"{title}\n{one.text}" for title, one in zip(columns["title"], passages, strict=True)]
    )
    assert problem is None
    assert abs(vectors_PD - expected_PD).max() < 1e-5


@pytest.mark.parametrize(
    ("title", "section", "expected"),
    [(None, None, None), ("a", None, "a"), (None, "b > c", "b > c"), ("a", "b", "a > b"), ("The B", "b", "The B")],
)  # fmt: skip
def test_passage_title(title, section, expected):
    assert passage_title(title, section) == expected


HEADER = "| month | harvest |\n| --- | --- |\n"


def rows(count: int) -> str:
    return "".join(f"| {i} | about {i * 7} kilograms |\n" for i in range(count))


def test_a_table_that_fits_is_not_cut(minilm):
    chunker = minilm.chunker(64, 8, headings=True)
    for words in range(0, 60, 3):
        text = "word " * words + f"end.\n\n{HEADER}{rows(3)}\nAnd what follows the table is here."
        table = f"{HEADER}{rows(3)}".strip()
        assert any(table in (one.text or "") for one in chunker.split(text)), words


def test_a_long_table_is_cut_between_rows_below_its_header(minilm):
    chunker = minilm.chunker(64, 8, headings=True)
    text = f"Intro.\n\n{HEADER}{rows(40)}\nOutro."
    passages = chunker.split(text)
    assert len(passages) > 5
    assert all(one.tokens <= 64 for one in passages)
    for one in passages:
        assert one.text == text[one.start : one.end]
        lines = one.embedding_text.splitlines()
        assert all(line.count("|") in (0, 3) for line in lines)
        if "kilograms" in one.embedding_text:
            assert HEADER in one.embedding_text
    found = [line for one in passages for line in (one.text or "").splitlines() if "kilograms" in line]
    assert found == rows(40).splitlines()


def test_a_row_that_does_not_fit_is_cut_at_words(minilm):
    chunker = minilm.chunker(32, 8, headings=True)
    text = f"{HEADER}| 1 | {'long word ' * 100}|\n| 2 | short |\n"
    passages = chunker.split(text)
    assert all(one.tokens <= 32 for one in passages)
    assert all((one.text or "").split()[0] in {"long", "word", "|"} for one in passages)


def test_pages_are_those_between_form_feeds(minilm):
    passages = minilm.chunker(8, 0).split(
        "one two three four.\n\n\ffive six seven eight.\n\n\f\n\n\fnine ten eleven twelve."
    )
    assert [one.page for one in passages] == [1, 2, 4]


@pytest.mark.system
def test_any_text_is_covered_by_its_passages(minilm):
    chunker = minilm.chunker(16, 4, headings=True)
    random.seed(5)
    pieces = ["# a\n", "## bb\n", "text and more. ", "\n", "| a | b |\n", "|---|---|\n", "| 1 | 2 |\n", "```\n",
              "---\n", "[00:01] ", "**Ann:** hi\n", "x" * 40, "é\u0301 ", "- item\n", "===\n"]  # fmt: skip
    for _ in range(200):
        text = "x\n" + "".join(random.choices(pieces, k=random.randint(1, 40)))
        passages = chunker.split(text)
        assert all(one.text == text[one.start : one.end] and one.tokens <= 16 for one in passages), text
        spans = [(one.start or 0, one.end or 0) for one in passages]
        assert spans == sorted(spans)
        covered = set().union(*(range(*span) for span in spans))
        hidden = {
            i
            for start in range(len(text))
            if text.startswith("[00:01]", start)
            for i in range(start, start + 7)
        }
        assert not any(text[i].isalnum() for i in set(range(len(text))) - covered - hidden), text
