"""The sequences of a client's writes: reads ask for them, so that a client reads its own writes on any worker.

A name can come to stand for another index: an alias that is moved, an index that is dropped and created again. The new
index may not have the sequence that was remembered, and refuses it. Then the client asks for its latest write, which
was to the new index if it wrote since; if that is refused as well, it forgets the name.
"""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.message import Message

__all__ = ["Sequences"]

RequestT = TypeVar("RequestT", bound=Message)


class Sequences:
    """Sequences by the name that the client writes to."""

    def __init__(self) -> None:
        self._greatest: dict[str, int] = {}
        self._latest: dict[str, int] = {}
        self._refused: dict[str, int] = {}
        """The last sequence that was refused: other threads may have asked for it at the same time."""

    def get(self, name: str, default: int = 0) -> int:
        """Return the sequence that reads of an index ask for."""
        return self._greatest.get(name, default)

    def wrote(self, name: str, sequence: int) -> None:
        """Remember the sequence of a write that was acknowledged."""
        # Not only the latest: answers of concurrent writes may come in another order.
        self._greatest[name] = max(self._greatest.get(name, 0), sequence)
        self._latest[name] = sequence

    def forget(self, name: str) -> None:
        """Forget an index."""
        self._greatest.pop(name, None)
        self._latest.pop(name, None)

    def lowered(self, request: RequestT) -> RequestT | None:
        """Return a request whose sequence was refused with the next lower one; None if it had none from here."""
        name: str = getattr(request, "index", "")
        holder = _holder(request)
        refused = 0 if holder is None else holder.min_sequence
        if refused and refused == self._greatest.get(name):
            self._lower(name, refused)
        elif not refused or refused != self._refused.get(name):
            return None  # the caller's own
        lower = type(request)()
        lower.CopyFrom(request)
        _holder(lower).min_sequence = self.get(name)
        return lower

    def _lower(self, name: str, refused: int) -> None:
        latest = self._latest.get(name, 0)
        if latest < refused:
            self._greatest[name] = latest
        else:
            self.forget(name)
        self._refused[name] = refused


def _holder(request: Message) -> Any:
    """Return the message with `min_sequence`; None if the request has none."""
    names = request.DESCRIPTOR.fields_by_name
    if "min_sequence" in names:
        return request
    return getattr(request, "options", None) if "options" in names else None
