"""Passages are exact pieces of the text, small enough, cut well, and cover it."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scannery.embed import Chunker, Encoder, InvalidArgumentError, InvalidTextError
from scannery.embed.text.documents import cut, encode_passages


@pytest.fixture(scope="module")
def chunker(minilm: Encoder) -> Chunker:
    return minilm.chunker(max_tokens=16, overlap_tokens=4)


TEXT_PIECES = st.sampled_from(
    ["word", " ", "\n", "\n\n", ". ", "? ", "。", "日本", "né", "**Ann:** ", "[01:02] ", "\u200b", "🦜", "\t",
     "antidisestablishmentarianism", "00:00:01.000 --> 00:00:02.000\n", "!" * 9, "<v Bo>", "WEBVTT\n\n", "x" * 60]
)  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(minilm_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(minilm_folder)


@pytest.mark.system
@settings(max_examples=75)
@given(st.one_of(st.text(max_size=400), st.lists(TEXT_PIECES, max_size=120).map("".join)))
def test_passages_are_exact_small_ordered_and_complete(minilm: Encoder, tokenizer: Any, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        return
    passages = minilm.chunker(max_tokens=16, overlap_tokens=4).split(text)
    for passage in passages:
        assert passage.text == text[passage.start : passage.end] != ""
        assert len(tokenizer(passage.embedding_text, add_special_tokens=False)["input_ids"]) == passage.tokens
        assert 1 <= passage.tokens <= 16 or len(passage.text) == 1
        if passage.embedding_text == passage.text:
            assert passage.embedding_text is passage.text
    for (one_start, one_end), (two_start, two_end) in pairwise((p.start or 0, p.end or 0) for p in passages):
        assert one_start < two_start
        assert one_end < two_end
        lost = text[one_end:two_start]
        assert not any(char.isalnum() for char in lost) or "[" in lost or "-->" in lost or "<" in lost


def test_cuts_are_where_a_reader_would_cut(chunker: Chunker) -> None:
    text = (
        "**Ann:** One two three four five six seven. Eight nine ten eleven.\n\n"
        "**Bo:** Twelve thirteen fourteen. Fifteen sixteen seventeen eighteen nineteen twenty."
    )
    passages = chunker.split(text)
    assert passages[0].text == "**Ann:** One two three four five six seven."
    assert [p.speakers for p in passages] == [("Ann",), ("Ann",), ("Ann", "Bo"), ("Bo",)]


def test_bad_options_and_texts(minilm: Encoder, chunker: Chunker) -> None:
    with pytest.raises(InvalidArgumentError, match="at most 254"):
        minilm.chunker(max_tokens=255, overlap_tokens=0)
    with pytest.raises(InvalidArgumentError, match="at least 8"):
        minilm.chunker(max_tokens=7, overlap_tokens=0)
    with pytest.raises(InvalidArgumentError, match="less than half"):
        minilm.chunker(max_tokens=16, overlap_tokens=8)
    with pytest.raises(InvalidTextError):
        chunker.split("\ud800")


@pytest.mark.parametrize("text", ["", " \n\t ", "\u200b"])
def test_a_text_of_nothing_has_no_passages(chunker: Chunker, text: str) -> None:
    assert chunker.split(text) == []


@pytest.mark.system
def test_time_is_linear_even_for_one_endless_word(minilm: Encoder) -> None:
    chunker = minilm.chunker(max_tokens=64, overlap_tokens=8)
    for piece in ("prose and words. ", "0a9f", "\n", "[[", "*"):
        seconds = []
        for size in (50_000, 200_000):
            started = time.process_time()  # the processor's: others may have it meanwhile
            chunker.split(piece * (size // len(piece)))
            seconds.append(time.process_time() - started)
        assert seconds[1] < 12 * seconds[0] + 0.2, piece


@pytest.mark.system
def test_prompt_title_and_passage_fit_together(minilm: Encoder, tokenizer: Any) -> None:
    text = "The quick brown fox jumps over the lazy dog and runs away. " * 60
    prompt = "title and passage of a document: "
    for title in (
        None,
        "Short",
        "a title of some ten words, which is not short",
        "unendingly long " * 500,
        "x" * 60_000,
    ):
        for model_prompt in ("", prompt):
            for max_tokens in (32, 250, 254):
                json = minilm.tokenizer_json or ""
                chunker = Chunker(json, max_tokens, 8, room=254, prompt=model_prompt)
                short, most = chunker.fit(title)
                assert (title or "").startswith(short or "")
                assert (short, most) == (title, max_tokens) or title or model_prompt
                passages = chunker.split(text, max_tokens=most)
                assert passages[-1].end == len(text.rstrip())
                for passage in passages:
                    assert passage.tokens <= most
                    front = f"{model_prompt}{short}\n" if short else model_prompt
                    assert len(front) < 10_000
                    whole = tokenizer(f"{front}{passage.embedding_text}")["input_ids"]
                    assert len(whole) <= 256
                if title and title.startswith("unend"):
                    assert len(tokenizer(short)["input_ids"]) > 32, "a long title keeps its share"


def test_the_end_of_a_passage_counts_behind_any_title(minilm: Encoder) -> None:
    chunker = minilm.chunker(max_tokens=254, overlap_tokens=0)
    title = "A long title about everything under the sun and more, " * 12
    ends = ("volcanoes erupt and lava flows", "bread is baked in the oven daily")
    vectors = []
    for end in ends:
        passages = cut("one two three four five " * 37 + end, chunker, title)
        [vectors_PD], [problem] = encode_passages([title], [passages], minilm, chunker)
        assert problem is None
        vectors.append(vectors_PD[-1])
    assert float(vectors[0] @ vectors[1]) < 0.9999
