"""WordPiece as BERT's tokenizer does it, over whole batches of texts in one call that runs without the GIL.

The library's tokenizer takes 0.9 µs for a token, and its offsets are Python objects. This one takes an eighth, for
tokenizers whose parts are BERT's: a normalizer that changes each character by itself, words between white space and
around punctuation, and the longest entries of the vocabulary in each word. What it knows of a character, it asks the
library's normalizer, once per character of a process. A text in which it could differ goes to the library's tokenizer:
one with the name of a special token, or with a combining mark that stays (Unicode reorders these).

Legend: C characters of all texts, B texts, N tokens of all texts, S special tokens.

WordPiece for one short text of printable ASCII, such as a question: a look-up for each word.

The library's tokenizer takes 20 µs for a question, the kernel of wordpiece.py for many texts 40, most of them for
making arrays of one text, and 72 MiB. In ASCII all that BERT's normalizer changes are capitals, and a word is what is
between white space and punctuation; most words of a question are entries of the vocabulary.
"""

from __future__ import annotations

import json
import re
import threading
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

__all__ = ["MOST_CHARS", "BulkTokenizer", "PlainWords", "WordPiece"]


ENOUGH_CHARS = 1 << 20
"""Characters after which a tokenizer is copied: copying takes half a second, and so does tokenising these."""

UNKNOWN, REMOVED, SPACE, ALONE, LETTER, UNSAFE = range(6)
"""Kinds of characters: not looked up yet; left out; between words; a word of its own; part of a word; not handled."""

MOST_MAPPED = 4
"""Most characters that one becomes, as a syllable of Hangul becomes its letters."""
CODES = 0x110000


@dataclass(frozen=True)
class WordTokens:
    """The tokens of some texts, one after the other, without special tokens."""

    ids_N: np.ndarray
    """int32."""
    starts_N: np.ndarray
    ends_N: np.ndarray
    """First character of each token and one past its last, int64, counted from the start of its text."""
    bounds_B1: np.ndarray
    """The tokens of text i are `[bounds[i], bounds[i + 1])`, int64."""


class WordPiece:
    """Tokenises texts as a `tokenizers.Tokenizer` of BERT's kind does. Safe to share between threads."""

    def __init__(self, tokenizer: Any, description: dict[str, Any]) -> None:
        """Copy the vocabulary into arrays; use `of`.

        Args:
            tokenizer: the `tokenizers.Tokenizer`.
            description: its JSON.

        """
        self._tokenizer = tokenizer
        model = description["model"]
        self._added = [token["content"] for token in description["added_tokens"]]
        self._kinds = np.zeros(CODES, np.uint8)
        self._mapped = np.zeros(CODES, np.int32)
        self._longer = np.zeros((64, MOST_MAPPED), np.int32)
        self._longer_count = 0
        self._lock = threading.Lock()
        self._edges, self._children, self._accepted = _trie(
            model["vocab"], model["continuing_subword_prefix"]
        )
        self._unknown = int(model["vocab"][model["unk_token"]])
        self._longest = int(model["max_input_chars_per_word"])

    @classmethod
    def of(cls, tokenizer: Any) -> WordPiece | None:
        """Return the instance for a tokenizer, or None if it has other parts than BERT's, or there is no numba."""
        description = json.loads(tokenizer.to_str())
        try:
            import scannery.embed.wordpiece_kernel  # noqa: F401

            if not _is_bert(description):
                return None
            made = cls(tokenizer, description)
        except (ImportError, KeyError, TypeError, ValueError):
            return None
        return made if made._agrees(PROBES) else None

    def encode(self, texts: Sequence[str]) -> WordTokens | None:
        """Return the tokens of texts, or None if one of them is not handled."""
        joined = "".join(texts)
        # A name that only two texts together spell is not handled either; the library then gives the same tokens.
        if any(name in joined for name in self._added):
            return None
        codes_C = np.frombuffer(joined.encode("utf-32-le"), np.uint32)
        kinds_C = self._kinds[codes_C]
        least, highest = (kinds_C.min(), kinds_C.max()) if len(kinds_C) else (REMOVED, REMOVED)
        if least == UNKNOWN:
            self._learn(np.unique(codes_C[kinds_C == UNKNOWN]))
            highest = self._kinds[codes_C].max()
        if highest == UNSAFE:
            return None
        return self._tokens(codes_C, np.cumsum([0, *map(len, texts)]))

    def _tokens(self, codes_C: np.ndarray, ends_B1: np.ndarray) -> WordTokens:
        from scannery.embed.wordpiece_kernel import tokenize

        return WordTokens(*tokenize(
            codes_C, ends_B1, self._kinds, self._mapped, self._longer, self._edges, self._children, self._accepted,
            self._unknown, self._longest,
        ))  # fmt: skip

    def _learn(self, codes: np.ndarray) -> None:
        """Look up what the normalizer makes of characters, and whether they are words of their own."""
        with self._lock:
            # Another thread can have learned them meanwhile. A second row of `longer` would be beyond the end of the
            # array that a running kernel of that thread has.
            for code in codes[self._kinds[codes] == UNKNOWN].tolist():
                kind, mapped = self._character(chr(code))
                if len(mapped) > 1:
                    kind = self._remember(code, mapped) if len(mapped) <= MOST_MAPPED else UNSAFE
                elif mapped:
                    self._mapped[code] = ord(mapped)
                self._kinds[code] = kind  # last, since other threads read it

    def _remember(self, code: int, mapped: str) -> int:
        """Keep a character's several characters; `mapped` is then minus the number of their row, minus one."""
        row = self._longer_count
        if row == len(self._longer):
            self._longer = np.concatenate([self._longer, np.zeros_like(self._longer)])
        self._longer[row, : len(mapped)] = [ord(char) for char in mapped]
        self._longer_count += 1
        self._mapped[code] = -row - 1
        return LETTER

    def _character(self, char: str) -> tuple[int, str]:
        """Return the kind of a character, and what it becomes."""
        normalized = self._tokenizer.normalizer.normalize_str(char)
        if not normalized:
            return REMOVED, ""
        split = self._tokenizer.pre_tokenizer.pre_tokenize_str
        words = [word for word, _ in split(normalized)]
        if not words:
            return SPACE, ""
        [*singles, word] = words
        # Unicode sorts combining marks that follow each other. An unassigned character may be one in a later version.
        reordered = any(unicodedata.combining(c) or unicodedata.category(c) == "Cn" for c in char + word)
        if singles or reordered or "\x00" in word:  # the kernel ends an expansion with 0
            return UNSAFE, ""
        if normalized == f" {word} " and len(word) == 1:  # an ideograph
            return ALONE, word
        between = [part for part, _ in split(f"a{word}a")]
        if between == [f"a{word}a"]:
            return (LETTER, word) if word == normalized else (UNSAFE, "")
        alone = between == ["a", word, "a"] and len(word) == 1
        return (ALONE, word) if alone else (UNSAFE, "")

    def _agrees(self, texts: Sequence[str]) -> bool:
        """Return whether ids and offsets are the library's."""
        return all(
            (encoded := self.encode([text])) is not None and _same(self._tokenizer, text, encoded)
            for text in texts
        )


class BulkTokenizer:
    """The `WordPiece` of a tokenizer, made once enough text has come that it is worth its start. Safe to share."""

    def __init__(self, tokenizer: Any) -> None:
        """Keep the tokenizer.

        Args:
            tokenizer: a `tokenizers.Tokenizer`.

        """
        self._tokenizer = tokenizer
        self._chars = 0
        self._made: WordPiece | None = None

    def encode(self, texts: Sequence[str]) -> WordTokens | None:
        """Return the tokens of texts, without special tokens and uncut; None where the library must tokenise them."""
        if self._chars < ENOUGH_CHARS:
            self._chars += sum(map(len, texts))
            if self._chars < ENOUGH_CHARS:
                return None
            self._made = _shared(self._tokenizer)
        return None if self._made is None else self._made.encode(texts)

    def __deepcopy__(self, memo: dict[int, Any]) -> BulkTokenizer:
        """Return this one, which a copy of a model can share."""
        return self


_SHARED: dict[bytes, WordPiece | None] = {}
_SHARING = threading.Lock()


def _shared(tokenizer: Any) -> WordPiece | None:
    """Return the instance that all tokenizers of this process with the same vocabulary use."""
    parts = {k: v for k, v in json.loads(tokenizer.to_str()).items() if k not in ("truncation", "padding")}
    key = blake2b(json.dumps(parts).encode()).digest()
    with _SHARING:
        if key not in _SHARED:
            _SHARED[key] = WordPiece.of(tokenizer)
        return _SHARED[key]


PROBES = (
    "How do volcanoes form? Magma rises — through cracks; it's hot (1,200 °C)…",
    "Grüße aus Zürich, naïve café, ŐŰ İstanbul ﬁne straße",
    "Что такое машинное обучение? 日本語の文章です。 한국어 문장",
    "x" * 150 + " unaffable\u200bness\tand\u00a0more\r\n\r\nlines \x07 e\u0301 🦜🏽 end",
)  # fmt: skip


def _same(tokenizer: Any, text: str, encoded: WordTokens) -> bool:
    tokenizer = type(tokenizer).from_str(tokenizer.to_str())
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encoding = tokenizer.encode(text, add_special_tokens=False)
    offsets = [*zip(encoded.starts_N.tolist(), encoded.ends_N.tolist(), strict=True)]
    return bool(encoding.ids == encoded.ids_N.tolist() and encoding.offsets == offsets)


def _is_bert(description: dict[str, Any]) -> bool:
    model = description["model"]
    plain = all(not token["normalized"] for token in description["added_tokens"])
    return (
        plain
        and model["type"] == "WordPiece"
        and description["normalizer"]["type"] == "BertNormalizer"
        and description["pre_tokenizer"]["type"] == "BertPreTokenizer"
    )


def _trie(vocabulary: dict[str, int], prefix: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a hash table of edges (node << 21 | character) and their children, and the token at each node or -1.

    Node 0 is the start of a word, node 1 that of a continuation.
    """
    edges: dict[int, int] = {}
    accepted = [-1, -1]
    for word, number in vocabulary.items():
        continues = word.startswith(prefix) and len(word) > len(prefix)
        # An entry that begins like a continuation can also begin a word.
        for node, letters in ((0, word), (1, word[len(prefix) :])) if continues else ((0, word),):
            for letter in letters:
                edge = node << 21 | ord(letter)
                node = edges.setdefault(edge, len(accepted))  # noqa: PLW2901
                if node == len(accepted):
                    accepted.append(-1)
            accepted[node] = number
    from scannery.embed.wordpiece_kernel import hash_table

    keys = np.fromiter(edges.keys(), np.int64, len(edges))
    table, children = hash_table(keys, np.fromiter(edges.values(), np.int32, len(edges)))
    return table, children, np.array(accepted, np.int32)


MOST_CHARS = 256
"""Longest text: from here on, the library's tokenizer is about as fast."""

_WORDS = re.compile(r"[A-Za-z0-9]+|[!-/:-@\[-`{-~]").findall
_PROBES = (
    "How do volcanoes form? (Unaffable, 3.14-ish: it's `hot`!)",
    "x" * 150 + " [mask] ##ing {a_b}~ C++/C# $5 @home ^|\\",
)


class PlainWords:
    """Tokenises short texts as a `tokenizers.Tokenizer` of BERT's kind does. Safe to share between threads."""

    def __init__(self, tokenizer: Any) -> None:
        """Copy the vocabulary, 4 MB; use `of`."""
        model = tokenizer.model
        self._vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=False)
        self._unknown = self._vocabulary[model.unk_token]
        self._prefix, self._longest = model.continuing_subword_prefix, model.max_input_chars_per_word
        self._lowers = bool(tokenizer.normalizer.lowercase)
        self._added = tuple(token.content for token in tokenizer.get_added_tokens_decoder().values())

    @classmethod
    def of(cls, tokenizer: Any) -> PlainWords | None:
        """Return the instance for a tokenizer; None if it has other parts than BERT's."""
        from tokenizers import models, normalizers, pre_tokenizers

        parts = (
            (tokenizer.model, models.WordPiece),
            (tokenizer.normalizer, normalizers.BertNormalizer),
            (tokenizer.pre_tokenizer, pre_tokenizers.BertPreTokenizer),
        )
        if not all(isinstance(part, kind) for part, kind in parts):
            return None
        if any(token.normalized for token in tokenizer.get_added_tokens_decoder().values()):
            return None
        made = cls(tokenizer) if tokenizer.token_to_id(tokenizer.model.unk_token) is not None else None
        return made if made is not None and made._agrees(tokenizer) else None

    def ids(self, text: str) -> list[int] | None:
        """Return the tokens of a text, without special tokens and uncut; None: it is not handled here."""
        if len(text) > MOST_CHARS or not text.isascii() or not text.isprintable():
            return None
        for name in self._added:
            if name in text:
                return None
        vocabulary, numbers = self._vocabulary, list[int]()
        for word in _WORDS(text.lower() if self._lowers else text):
            number = vocabulary.get(word)
            if number is not None and len(word) <= self._longest:
                numbers.append(number)
            else:
                numbers += self._pieces(word)
        return numbers

    def _pieces(self, word: str) -> list[int]:
        """Return the longest entries of the vocabulary that make up a word, one after the other."""
        if len(word) > self._longest:
            return [self._unknown]
        pieces, start, prefix = list[int](), 0, ""
        while start < len(word):
            for end in range(len(word), start, -1):
                number = self._vocabulary.get(prefix + word[start:end])
                if number is not None:
                    break
            else:  # no piece fits: the whole word is unknown
                return [self._unknown]
            pieces.append(number)
            start, prefix = end, self._prefix
        return pieces

    def _agrees(self, tokenizer: Any) -> bool:
        """Return whether the tokens of some texts are the library's."""
        return all(
            numbers is None or numbers == tokenizer.encode(text, add_special_tokens=False).ids
            for text in _PROBES
            for numbers in (self.ids(text),)
        )
