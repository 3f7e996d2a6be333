"""Tokens of texts by the tokenizer of a model on this machine, without its weights and without torch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scannery.embed.errors import EmbedError
from scannery.embed.models.model_files import find_local_model
from scannery.embed.text.chunking import Chunker, chunker_for

__all__ = ["TokenCounter"]


class TokenCounter:
    """Counts tokens as a model does, and cuts texts as a build does."""

    def __init__(self, model: str, folder: Path, *, prompt: str = "", max_tokens: int | None = None) -> None:
        """Read the tokenizer.

        Args:
            model: name of the model, for errors.
            folder: its files.
            prompt: text in front of every document.
            max_tokens: longest input, special tokens included; None: the model's own limit.

        Raises:
            OSError, ValueError: the folder has no readable `tokenizer.json`.

        """
        from tokenizers import Tokenizer

        self.model = model
        self._prompt = prompt
        self._json = (folder / "tokenizer.json").read_text(encoding="utf-8")
        self._tokenizer = Tokenizer.from_str(self._json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        special = self._tokenizer.num_special_tokens_to_add(is_pair=False)
        own_limit = _own_limit(folder)
        limit = own_limit if max_tokens is None else min(max_tokens, own_limit)
        self.passage_tokens = limit - int(special)
        """Most tokens of prompt, title and passage together; the rest is cut off."""

    @classmethod
    def of_local(
        cls, model: str, *, label: str | None = None, prompt: str = "", max_tokens: int | None = None
    ) -> TokenCounter | None:
        """Return the counter of a model; None if its files are not on this machine or have no fast tokenizer.

        Args:
            model: name or folder.
            label: what errors call it; None: `model`.
            prompt: as of the class, as is `max_tokens`.
            max_tokens: likewise.

        """
        try:
            folder = find_local_model(model)
            return (
                None if folder is None else cls(label or model, folder, prompt=prompt, max_tokens=max_tokens)
            )
        except (OSError, ValueError, EmbedError):
            return None

    def count(self, texts: Sequence[str]) -> list[int]:
        """Return the tokens of each text, with the prompt, without special tokens."""
        encodings = self._tokenizer.encode_batch_fast(
            [self._prompt + t for t in texts], add_special_tokens=False
        )
        return [len(encoding.ids) for encoding in encodings]

    def chunker(self, max_tokens: int, overlap_tokens: int, *, headings: bool = False) -> Chunker:
        """Return what cuts texts into passages, as `Encoder.chunker` does."""
        return chunker_for(
            self.model,
            self._json,
            self.passage_tokens,
            max_tokens,
            overlap_tokens,
            prompt=self._prompt,
            headings=headings,
        )


def _own_limit(folder: Path) -> int:
    """Return the most tokens that a model reads, by its configuration; 512, the most common one, if none says."""
    keys = (("sentence_bert_config.json", "max_seq_length"), ("tokenizer_config.json", "model_max_length"),
              ("config.json", "max_position_embeddings"))  # fmt: skip
    limits = (_entry(folder / file, key) for file, key in keys)
    return next((limit for limit in limits if limit is not None), 512)


def _entry(file: Path, key: str) -> int | None:
    if not file.is_file():
        return None
    config: Any = json.loads(file.read_text(encoding="utf-8"))
    value = config.get(key) if isinstance(config, dict) else None
    # Tokenizers without a limit say 10^30.
    return value if isinstance(value, int) and 8 <= value < 1 << 20 else None
