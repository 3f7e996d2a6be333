"""When two texts of queries are the same one: upper case and white space make no difference."""

from __future__ import annotations

__all__ = ["same_text"]


def same_text(text: str) -> str:
    """Return the form that texts which are the same query have in common.

    >>> same_text("  Deep   Learning ")
    'deep learning'
    """
    return " ".join(text.casefold().split())
