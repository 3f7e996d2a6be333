"""The bulk tokenizer gives the library's ids and offsets, or leaves a text to it."""

from __future__ import annotations

import copy
import json
import tarfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.embed import Encoder
from scannery.embed.text.documents import cut
from scannery.embed.tokenization import FastTokens
from scannery.embed.warm import warm_tokenizer
from scannery.embed.wordpiece import ENOUGH_CHARS, BulkTokenizer, WordPiece
from tests.data import shared_data

PIECES = st.sampled_from([
    "word", " ", "\n", "\x1c", "\u00a0", "\u200b", "\u3000", "。", "日本", "né", "e\u0301", "\u0301", "İ", "ŉ", "ﬁ",
    "한국", "🦜🏽", "unaffable", "x" * 101, "!?", "'s", "ǅ", "\u037e", "\u302e", "\x00", "\ufffd", "ß", "٣", "ก็", "##",
    "$", "\U0001d165", "[MASK]", "[SEP", "\ufeff", "\u2028", "𠮷", "\u0378",
])  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(minilm: Encoder) -> Any:
    from tokenizers import Tokenizer

    made = Tokenizer.from_str(minilm.tokenizer_json or "")
    made.no_truncation()
    made.no_padding()
    return made


@pytest.fixture(scope="module")
def wordpiece(tokenizer: Any) -> WordPiece:
    made = WordPiece.of(tokenizer)
    assert made is not None
    return made


def check(wordpiece: WordPiece, tokenizer: Any, texts: list[str]) -> bool:
    """Compare ids and offsets of texts; return whether they were handled."""
    found = wordpiece.encode(texts)
    if found is None:
        return False
    for row, encoding in enumerate(tokenizer.encode_batch(texts, add_special_tokens=False)):
        part = slice(*found.bounds_B1[row : row + 2])
        assert found.ids_N[part].tolist() == encoding.ids
        spans = zip(found.starts_N[part].tolist(), found.ends_N[part].tolist(), strict=True)
        assert [*spans] == encoding.offsets
    return True


@pytest.mark.system
@settings(max_examples=120, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=40), st.lists(PIECES, max_size=30).map("".join)), max_size=4))
def test_ids_and_offsets_are_those_of_the_library(
    wordpiece: WordPiece, tokenizer: Any, texts: list[str]
) -> None:
    check(wordpiece, tokenizer, ["".join(c for c in text if not "\ud800" <= c <= "\udfff") for text in texts])


@pytest.mark.system
def test_every_character_by_itself_and_in_a_word(wordpiece: WordPiece, tokenizer: Any) -> None:
    codes = [*range(0xD800), *range(0xE000, 0x10000, 7), *range(0x10000, 0x20000, 97)]
    handled = 0
    for start in range(0, len(codes), 50):
        some = [chr(code) for code in codes[start : start + 50]]
        texts = [text for char in some for text in (char, f"a{char}b")]
        if not check(wordpiece, tokenizer, texts):
            handled += sum(check(wordpiece, tokenizer, [text]) for text in texts)
        else:
            handled += len(texts)
    assert handled > 1.9 * 0.8 * len(codes), "most characters need no other tokenizer"


@pytest.mark.system
def test_what_could_differ_is_left_to_the_library(wordpiece: WordPiece, tokenizer: Any) -> None:
    assert wordpiece.encode(["fine", "a [MASK] in a text"]) is None
    assert wordpiece.encode(["\u302e\u302f"]) is None, "marks that Unicode reorders"
    from tokenizers import Tokenizer, models, pre_tokenizers

    other = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    other.pre_tokenizer = pre_tokenizers.Whitespace()
    assert WordPiece.of(other) is None
    assert WordPiece.of(Tokenizer(models.BPE())) is None


@pytest.mark.system
@pytest.mark.parametrize(
    "options",
    [
        {"lowercase": False},
        {"lowercase": False, "strip_accents": True},
        {"strip_accents": False},
        {"handle_chinese_chars": False},
        {"clean_text": False},
    ],
)
def test_other_settings_of_the_normalizer(minilm: Encoder, options: dict[str, bool]) -> None:
    from tokenizers import Tokenizer

    description = json.loads(minilm.tokenizer_json or "")
    description |= {"truncation": None, "padding": None}
    description["normalizer"] |= options
    other = Tokenizer.from_str(json.dumps(description))
    made = WordPiece(other, description)
    pieces = [
        "Ünaffable É",
        "e\u0301 İI",
        "日本 한국",
        "ﬁ x" * 9,
        "ก็ \u0301a",
        "a\u0301\u0327b",
        "WORD's",
        "a\x00b\x07c",
    ]
    handled = [check(made, other, [one]) for one in [*pieces, *(a + b for a in pieces for b in pieces)]]
    assert any(handled)


@pytest.mark.system
def test_little_text_is_the_librarys(tokenizer: Any) -> None:
    bulk = BulkTokenizer(tokenizer)
    assert bulk.encode(["little"]) is None
    assert bulk.encode(["x " * ENOUGH_CHARS]) is not None
    assert bulk.encode(["little"]) is not None
    assert copy.deepcopy(bulk).encode(["little"]) is not None, "a model is copied to lower its precision"


@pytest.mark.system
def test_real_transcripts_become_the_same_tokens(wordpiece: WordPiece, tokenizer: Any) -> None:
    for folder, name in (("podcasts-changelog", "news"), ("podcasts-radio-t-ru", "posts")):
        with tarfile.open(shared_data(folder, f"{name}.tar.gz")) as archive:
            files = [archive.extractfile(member) for member in archive if member.isfile()][:40]
            texts = [file.read(20_000).decode(errors="replace") for file in files if file]
        assert check(wordpiece, tokenizer, texts)


@pytest.mark.system
@pytest.mark.parametrize("prompt", ["", "passage: "])
def test_batches_are_the_same_with_truncation_and_prompts(minilm: Encoder, prompt: str) -> None:
    from tokenizers import Tokenizer

    def made() -> FastTokens:
        own = Tokenizer.from_str(minilm.tokenizer_json or "")
        own.no_padding()
        own.enable_truncation(32)
        return FastTokens(own, prompt=prompt, pad_id=0, pad_left=False, names=["input_ids"], constants={})

    texts = ["", "short", "one two three " * 30, "日本" * 40, "y" * 3000, "[SEP] in a text"]
    small, large = made(), made()
    large.prepare(["some words " * 200] * (ENOUGH_CHARS // 2000))
    for some in (texts, texts[:4], texts[:1], texts[4:5]):
        expected, actual = small.prepare(some), large.prepare(some)
        assert [ids.tolist() for ids in actual.items] == [ids.tolist() for ids in expected.items]
        assert actual.lengths_N.tolist() == expected.lengths_N.tolist()
        assert actual.cut_N.tolist() == expected.cut_N.tolist()


@pytest.mark.system
def test_passages_are_the_same(minilm: Encoder) -> None:
    from scannery.embed import Chunker

    text = (
        "**Ann:** It's a test [01:02] of cuts. " * 40 + "Zürich、日本語。" * 30 + "z" * 300 + "\n\n| a | b |"
    )
    small, large = (Chunker(minilm.tokenizer_json or "", 32, 8, room=254) for _ in range(2))
    large.split("some words " * (ENOUGH_CHARS // 5))
    assert np.array_equal(small._count(["a b"]), large._count(["a b"]))
    assert large._bulk._made is not None
    assert cut(text, small, "Title") == cut(text, large, "Title")


@pytest.mark.system
def test_a_character_that_two_threads_look_up_keeps_its_place(tokenizer: Any) -> None:
    made = WordPiece(tokenizer, json.loads(tokenizer.to_str()))
    codes = np.arange(0xAC00, 0xAC00 + 60)
    made._learn(codes)
    # What the kernel of one thread has, while another thread looks up the same characters.
    places, running = made._mapped[codes].copy(), made._longer
    made._learn(codes)
    assert made._mapped[codes].tolist() == places.tolist()
    assert made._longer is running


def test_the_kernel_can_be_compiled_beforehand() -> None:
    assert warm_tokenizer()
