"""Compile the tokenizer's kernel into numba's cache; `python -m scannery.cli.warm` compiles all.

Otherwise the first large build or live write of a new machine waits some seconds for it.
"""

from __future__ import annotations

from scannery.embed.wordpiece import WordPiece

__all__ = ["warm_tokenizer"]


def warm_tokenizer() -> bool:
    """Compile the kernel if it is not in the cache; return whether it can be compiled here."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    small = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    small.normalizer = normalizers.BertNormalizer()
    small.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return WordPiece.of(small) is not None
