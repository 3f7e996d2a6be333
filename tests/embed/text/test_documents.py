from __future__ import annotations

import pytest

from scannery.embed import Encoder, InvalidTextError
from scannery.embed.text.documents import cut, cut_all


def test_texts_cut_side_by_side_are_cut_as_one_by_one(minilm: Encoder) -> None:
    chunker = minilm.chunker(16, 4)
    texts = [None, "", *(f"Sentence {n} says little. " * n for n in range(40))]
    assert cut_all(texts, chunker) == [cut(text, chunker) for text in texts]
    assert [len(own) for own in cut_all(texts, None)] == [1] * len(texts)
    assert cut_all([], chunker) == []


def test_an_error_in_one_text_is_the_callers(minilm: Encoder) -> None:
    with pytest.raises(InvalidTextError):
        cut_all(["good", "bad \ud800", "good"], minilm.chunker(16, 4))
