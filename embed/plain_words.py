"""WordPiece for one short text of printable ASCII, such as a question: a look-up for each word.

The library's tokenizer takes 20 µs for a question, the kernel of wordpiece.py for many texts 40, most of them for
making arrays of one text, and 72 MiB. In ASCII all that BERT's normalizer changes are capitals, and a word is what is
between white space and punctuation; most words of a question are entries of the vocabulary.
"""

from __future__ import annotations

import re
from typing import Any

__all__ = ["MOST_CHARS", "PlainWords"]

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
        vocabulary, found = self._vocabulary, list[int]()
        for word in _WORDS(text.lower() if self._lowers else text):
            number = vocabulary.get(word)
            if number is not None and len(word) <= self._longest:
                found.append(number)
            else:
                found += self._pieces(word)
        return found

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
            found is None or found == tokenizer.encode(text, add_special_tokens=False).ids
            for text in _PROBES
            for found in (self.ids(text),)
        )
