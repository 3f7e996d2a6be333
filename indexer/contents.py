"""What a reader of contents in the managed service's layout gives to the server that writes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

__all__ = ["ContentsReader", "ContentsRecord"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentsRecord:
    """One record of a file: fields to write, an id to delete, or the reason why it cannot be read."""

    source: str
    """URI or path of the file."""
    fields: Mapping[str, Any] | None = None
    """The record with the keys of the layout's JSON form; None: it is another kind."""
    deleted_id: str = ""
    """The datapoint to delete."""
    problem: str = ""
    """One sentence."""
    category: str = ""
    """The managed service's name for the problem."""
    id: str = ""
    """Id of the record with the problem, if it could be read."""
    excerpt: str = ""
    """Start of the record with the problem."""


ContentsReader: TypeAlias = Callable[[str], Iterator[ContentsRecord]]
"""Takes the URI of a folder of contents, and yields its records, each file in order."""
