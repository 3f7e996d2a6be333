from __future__ import annotations

import pytest

from scannery.embed import Encoder, InvalidTextError
from scannery.embed.text.documents import cut, cut_ahead


@pytest.mark.system
def test_texts_cut_side_by_side_are_cut_as_one_by_one(minilm: Encoder) -> None:
    chunker = minilm.chunker(16, 4)
    texts = [None, "", *(f"Sentence {n} says little. " * n for n in range(40))]
    titles = [None] * len(texts)
    with_blocks = [text if text is None else text + " and more" * 20_000 for text in texts[:6]]
    for some in (texts, with_blocks):
        found = [document.passages for document in cut_ahead(some, titles[: len(some)], chunker)]
        assert found == [cut(text, chunker) for text in some]
    assert [len(document.passages) for document in cut_ahead(texts, titles, None)] == [1] * len(texts)
    assert [*cut_ahead([], [], chunker)] == []


def test_an_error_in_one_text_is_the_callers(minilm: Encoder) -> None:
    with pytest.raises(InvalidTextError):
        [*cut_ahead(["good", "bad \ud800", "good"], [None] * 3, minilm.chunker(16, 4))]
