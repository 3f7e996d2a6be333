"""What the page needs of judgement sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

__all__ = ["JudgementSets"]


class JudgementSets(Protocol):
    """The sets, which another room keeps; answers are dataclasses whose fields JSON can hold."""

    def sets(self, index: str) -> Any:
        """Return the sets of an index."""

    def contents(self, index: str, name: str) -> Any:
        """Return the questions of a set."""

    def marks(self, index: str, name: str, question: str) -> Any:
        """Return what people say of the documents of a question, by document."""

    def question_of(self, index: str, name: str, text: str) -> str:
        """Return the id of the question with this text; empty: the set does not have it."""

    def add(self, index: str, name: str, file: str, text: str) -> Any:
        """Add the questions of a file, whose name tells its type."""

    def mark(self, index: str, name: str, question: str, document: str, level: int | None, by: str) -> Any:
        """Mark a document for a question; it is on the disk when this returns."""

    def measure(self, index: str, name: str, rankings: Mapping[str, Mapping[str, Sequence[str]]]) -> Any:
        """Return how well the rankings of columns answer the questions."""
