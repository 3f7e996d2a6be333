"""Texts to padded batches of tokens, equal to those of the model's own preprocessing, without its overhead.

Legend: B texts in a batch, T tokens of the longest of them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np

from scannery.embed.batching import Bucket, constants_of, pack
from scannery.embed.wordpiece import BulkTokenizer, PlainWords

__all__ = ["FastTokens", "Features", "ModelTokens", "TokenizedTexts", "Tokens", "text_problem", "tokens_for"]

Features: TypeAlias = dict[str, Any]
"""Arguments of a model's forward: int64 tensors `(B, T)` such as `input_ids`, and plain values."""

PROBE_TEXTS = (
    "a", "Two words.", "Grüße aus Zürich – ein Satz mit Umlauten.", "日本語の文章です。", "x" * 300,
    "A sentence of ordinary length, with punctuation; numbers like 3.14, and (brackets).",
    "long " * 2000,
)  # fmt: skip

TEXTS_PER_CALL = 512
"""Texts in one call of the tokenizer, which spreads them over the cores."""

# Characters per token that are kept before a text is tokenised, so that a 10 MB text costs no more than a page.
PREFIX_CHARS_PER_TOKEN = 64


class TokenizedTexts(NamedTuple):
    """N texts as tokens."""

    items: list[Any]
    """One per text."""
    lengths_N: np.ndarray
    """Lengths in tokens or proportional to tokens, int64 (N,)."""
    cut_N: np.ndarray
    """How many tokens of each text were cut off, int64 (N,); estimated for the end of very long texts, 0 if unknown."""


class Tokens(Protocol):
    """Makes batches of texts. `prepare` runs ahead in its own thread; `collate` is cheap."""

    def prepare(self, texts: Sequence[str]) -> TokenizedTexts:
        """Return the texts as tokens."""
        ...

    def collate(self, items: Sequence[Any], bucket: Bucket | None = None) -> Features:
        """Return the batch of `items`, padded to the bucket, or to the longest item if there is no bucket."""
        ...

    def of_one(self, text: str) -> list[int] | None:
        """Return the tokens of one short plain text as `prepare` does, with little Python; None: ask `prepare`."""
        ...


class FastTokens:
    """The model's tokenizer, called directly: thread-safe, one call for many texts, exact lengths.

    Made by `tokens_for`, which checks that its batches equal those of the model's preprocessing.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        prompt: str,
        pad_id: int,
        pad_left: bool,
        names: Sequence[str],
        constants: Mapping[str, Any],
    ) -> None:
        """Keep a tokenizer and the layout of its batches.

        Args:
            tokenizer: a `tokenizers.Tokenizer` with truncation and without padding; no other code may reconfigure it.
            prompt: text in front of every text.
            pad_id: id of the padding token.
            pad_left: whether padding is in front of the tokens.
            names: names of the tensors of a batch.
            constants: the other features of a batch.

        """
        self._tokenizer = tokenizer
        self._prompt, self._pad_id, self._pad_left = prompt, pad_id, pad_left
        self._max_tokens = int((tokenizer.truncation or {}).get("max_length", 1 << 30))
        self._truncates_right = (tokenizer.truncation or {}).get("direction", "right") == "right"
        self._special_tokens = int(tokenizer.num_special_tokens_to_add(is_pair=False))
        self._names, self._constants = list(names), dict(constants)
        self._bulk = BulkTokenizer(tokenizer)
        self.mask_is_optional = False
        """Whether `collate` may leave out a mask of all ones; set once the model is known to allow it."""

    @classmethod
    def of_model(cls, model: Any, prompt: str | None, probe: Features) -> FastTokens:
        """Return an instance whose batches have the layout of `probe`, a batch of the model's preprocessing."""
        tokenizer = model.tokenizer
        # A copy: the library reconfigures the model's own tokenizer in every call, so threads cannot share it.
        tokenizer_copy = type(tokenizer.backend_tokenizer).from_str(tokenizer.backend_tokenizer.to_str())
        tokenizer_copy.no_padding()
        return cls(
            tokenizer_copy,
            prompt=prompt or "",
            pad_id=int(tokenizer.pad_token_id or 0),
            pad_left=tokenizer.padding_side == "left",
            names=[name for name, value in probe.items() if hasattr(value, "shape")],
            constants=constants_of(probe),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the constructor's arguments, the tokenizer as text; JSON-ready if the constants are."""
        return {
            "tokenizer": self._tokenizer.to_str(), "prompt": self._prompt, "pad_id": self._pad_id,
            "pad_left": self._pad_left, "names": self._names, "constants": self._constants,
        }  # fmt: skip

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], tokenizer: Any) -> FastTokens:
        """Return the instance that `to_dict` described, with its tokenizer, which several instances may share."""
        return cls(tokenizer, **data)

    def prepare(self, texts: Sequence[str]) -> TokenizedTexts:
        """Return the token ids of each text, int32, truncated, with special tokens; and their numbers."""
        ids: list[np.ndarray] = []
        cut: list[int] = []
        for at in range(0, len(texts), TEXTS_PER_CALL):
            # In parts: the tokenizer's own results take a hundred bytes per token.
            block = texts[at : at + TEXTS_PER_CALL]
            if (made := self._prepare_in_bulk(block)) is not None:
                ids += made[0]
                cut += made[1]
                continue
            part = [self._prefix(text) for text in block]
            encodings = self._tokenizer.encode_batch_fast(part)
            ids += [np.array(encoding.ids, np.int32) for encoding in encodings]
            cut += map(self._cut_off, block, part, encodings)
        lengths_N = np.fromiter(map(len, ids), np.int64, len(ids))
        return TokenizedTexts(ids, lengths_N, np.array(cut, np.int64))

    def of_one(self, text: str) -> list[int] | None:
        """Return the tokens of one short text of printable ASCII, with special tokens; None: ask `prepare`."""
        words = self._plain_words
        tokens = None if words is None else words.ids(self._prompt + text)
        if tokens is None or len(tokens) + self._special_tokens > self._max_tokens:
            return None
        front, back = self._specials
        return [*front, *tokens, *back]

    @cached_property
    def _plain_words(self) -> PlainWords | None:
        return PlainWords.of(self._tokenizer)

    def _prepare_in_bulk(self, texts: Sequence[str]) -> tuple[list[np.ndarray], list[int]] | None:
        """Return the ids of each text and the number of tokens cut off; None if the library must tokenise them."""
        max_chars = PREFIX_CHARS_PER_TOKEN * self._max_tokens - len(self._prompt)
        if not self._truncates_right or max(map(len, texts), default=0) > max_chars:
            return None
        encoded = self._bulk.encode([self._prompt + text for text in texts] if self._prompt else texts)
        if encoded is None:
            return None
        kept_B = np.minimum(np.diff(encoded.bounds_B1), max(0, self._max_tokens - self._special_tokens))
        cut_B = np.diff(encoded.bounds_B1) - kept_B
        front, back = self._specials
        ends_B = np.cumsum(kept_B + len(front) + len(back))
        starts_B = ends_B - kept_B - len(front) - len(back)
        ids_N = np.empty(int(ends_B[-1]) if len(ends_B) else 0, np.int32)
        for offset, number in enumerate(front):
            ids_N[starts_B + offset] = number
        for offset, number in enumerate(back):
            ids_N[ends_B - len(back) + offset] = number
        inside = np.arange(int(kept_B.sum())) - np.repeat(np.cumsum(kept_B) - kept_B, kept_B)
        ids_N[np.repeat(starts_B + len(front), kept_B) + inside] = encoded.ids_N[
            np.repeat(encoded.bounds_B1[:-1], kept_B) + inside
        ]
        bounds = zip(starts_B.tolist(), ends_B.tolist(), strict=True)
        return [ids_N[start:end] for start, end in bounds], cut_B.tolist()

    @cached_property
    def _specials(self) -> tuple[list[int], list[int]]:
        """The special tokens in front of a text, and those behind it."""
        [body] = self._tokenizer.encode("a", add_special_tokens=False).ids[:1]
        ids = self._tokenizer.encode("a").ids
        at = ids.index(body)
        return ids[:at], ids[at + 1 :]

    def collate(self, items: Sequence[Any], bucket: Bucket | None = None) -> Features:
        """Return the batch as tensors, padded on the tokenizer's side; a mask of all ones is left out if allowed."""
        import torch

        if bucket is not None and bucket.packed:
            return pack(items) | self._constants
        bucket = bucket or Bucket(len(items), max(map(len, items)), fixed=True)
        ids_BT = np.full((bucket.rows, bucket.width), self._pad_id, np.int64)
        mask_BT = np.zeros((bucket.rows, bucket.width), np.int64)
        # An empty row attends to one token: attention over no token gives NaN.
        mask_BT[len(items) :, -1 if self._pad_left else 0] = 1
        for row, ids in enumerate(items):
            columns = slice(bucket.width - len(ids), None) if self._pad_left else slice(len(ids))
            ids_BT[row, columns] = ids
            mask_BT[row, columns] = 1
        arrays = {"input_ids": ids_BT, "attention_mask": mask_BT, "token_type_ids": np.zeros_like(mask_BT)}
        features = {name: torch.from_numpy(arrays[name]) for name in self._names}
        if self.mask_is_optional and not bucket.fixed and mask_BT.all():
            del features["attention_mask"]
        return features | self._constants

    def _cut_off(self, text: str, prefix: str, encoding: Any) -> int:
        """Return how many tokens of a text are not in its encoding; the text behind the prefix is estimated."""
        kept = len(encoding)
        if kept < self._max_tokens:
            return 0
        # The tokenizer keeps what it cut off, as parts of at most `max_tokens` with special tokens of their own.
        dropped = sum(len(part) - self._special_tokens for part in encoding.overflowing)
        behind = max(0, len(self._prompt) + len(text) - len(prefix))
        return dropped + round(behind * (kept + dropped) / max(1, len(prefix)))

    def _prefix(self, text: str) -> str:
        text = self._prompt + text
        size = PREFIX_CHARS_PER_TOKEN * self._max_tokens
        while self._truncates_right and len(text) > size:
            # If the kept tokens end well before the prefix does, the rest of the text does not change them: tokenizers
            # look ahead by at most a word, or one unbroken run of characters.
            kept = self._tokenizer.encode(text[:size])
            if len(kept.ids) >= self._max_tokens and max(end for _, end in kept.offsets) < size // 2:
                return text[:size]
            size *= 4
        return text


class ModelTokens:
    """The model's own preprocessing, for models that need more than a plain tokenizer (chat templates, images, …)."""

    def __init__(self, model: Any, prompt: str | None, task: str) -> None:
        """Keep what its preprocessing needs.

        Args:
            model: a SentenceTransformer.
            prompt: text in front of every text; None: no prompt.
            task: `document` or `query`.

        """
        self._model, self._prompt, self._task = model, prompt, task
        self._lock = threading.Lock()  # each call reconfigures the tokenizer

    def prepare(self, texts: Sequence[str]) -> TokenizedTexts:
        """Return the texts unchanged, and estimates of their tokens."""
        lengths_N = np.fromiter((len(text) // 4 + 1 for text in texts), np.int64, len(texts))
        return TokenizedTexts(list(texts), lengths_N, np.zeros(len(texts), np.int64))

    def of_one(self, text: str) -> list[int] | None:
        """Return None: the model's preprocessing may be anything."""
        return None

    def collate(self, items: Sequence[Any], bucket: Bucket | None = None) -> Features:
        """Return the model's features of the texts; the model chooses the shape, and `bucket` is ignored."""
        with self._lock:
            features = dict(self._model.preprocess(list(items), prompt=self._prompt, task=self._task))
        return features | {"task": self._task}


def tokens_for(model: Any, prompt: str | None, task: str) -> Tokens:
    """Return `FastTokens` if their batches equal those of the model's own preprocessing on probes, else `ModelTokens`.

    Args:
        model: a SentenceTransformer.
        prompt: text in front of every text; None: no prompt.
        task: `document` or `query`.

    """
    generic = ModelTokens(model, prompt, task)
    tokenizer = getattr(model, "tokenizer", None)
    if not getattr(tokenizer, "is_fast", False):
        return generic
    expected = generic.collate(PROBE_TEXTS)
    if not {"input_ids", "attention_mask"} <= expected.keys() <= KNOWN_FEATURES:
        return generic
    fast = FastTokens.of_model(model, prompt, expected)
    actual = fast.collate(fast.prepare(PROBE_TEXTS)[0])
    return fast if _equal(expected, actual) else generic


KNOWN_FEATURES = {"input_ids", "attention_mask", "token_type_ids", "modality", "prompt_length", "task"}


def text_problem(text: object) -> str:
    """Return the reason why `text` cannot be tokenised, "" if there is none."""
    if not isinstance(text, str):
        return f"must be a string, got {type(text).__name__}"
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            return f"is not valid Unicode: lone surrogate {text[error.start]!r} at character {error.start}"
    return ""


def _equal(expected: Features, actual: Features) -> bool:
    import torch

    return expected.keys() == actual.keys() and all(
        torch.equal(value, actual[name]) if torch.is_tensor(value) else value == actual[name]
        for name, value in expected.items()
    )
