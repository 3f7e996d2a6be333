"""Short real sentences in many languages, and the encodings from before UTF-8 that people have them in."""

from __future__ import annotations

from pathlib import Path

__all__ = ["TEXTS"]


def _language(block: str) -> tuple[str, tuple[str, tuple[str, ...]]]:
    head, text = block.rstrip("\n").split("\n", 1)
    name, encodings = head.split(": ")
    return name, (text, tuple(encodings.split()))


TEXTS = dict(map(_language, Path(__file__).with_suffix(".txt").read_text("utf-8").split("\n\n")))
"""Language: three lines, and the encodings that hold them."""
