"""The look-up of short texts gives the library's ids, or leaves a text to it."""

from __future__ import annotations

import string
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from scannery.embed import Encoder
from scannery.embed.wordpiece import MOST_CHARS, PlainWords

PIECES = st.sampled_from([
    "word", "Unaffable", " ", "  ", "3.14", "x" * 101, "'s", "[MASK]", "[mask]", "##ing", "$5", "C++", "qzxj", "-", "é",
    "\t",
])  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(minilm: Encoder) -> Any:
    made = Tokenizer.from_str(minilm.tokenizer_json or "")
    made.no_truncation()
    made.no_padding()
    return made


@pytest.fixture(scope="module")
def words(tokenizer: Any) -> PlainWords:
    made = PlainWords.of(tokenizer)
    assert made is not None
    return made


@pytest.mark.system
@settings(max_examples=300, deadline=None)
@given(text=st.one_of(st.text(string.printable, max_size=60), st.lists(PIECES, max_size=12).map("".join)))
def test_ids_are_those_of_the_library(words: PlainWords, tokenizer: Any, text: str) -> None:
    found = words.ids(text)
    assert found is None or found == tokenizer.encode(text, add_special_tokens=False).ids


def test_plain_questions_are_handled_and_others_are_not(words: PlainWords) -> None:
    assert words.ids("What did they say about C++ in 2024?")
    assert words.ids("") == []
    for text in ("naïve", "two\nlines", "a [MASK] b", "x" * (MOST_CHARS + 1)):
        assert words.ids(text) is None


def test_capitals_matter_to_a_tokenizer_that_keeps_them() -> None:
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "A": 1, "##b": 2, "a": 3}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=False)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    words = PlainWords.of(made)
    assert words is not None
    assert words.ids("A Ab ab aB b") == [1, 1, 2, 3, 2, 0, 0]


def test_other_tokenizers_have_none() -> None:
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    assert PlainWords.of(made) is None
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    assert PlainWords.of(made) is None
