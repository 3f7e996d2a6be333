"""Hits that stay messages until one of them is looked at.

To make a thousand hits with all fields takes as long as a server takes to find and to send them. So `parse_many` makes
none: an answer's hits are an `UndecodedHits`, which knows their number, and becomes an ordinary `Hits` when it is used
as a list. It changes its class then, rather than to look at each use: afterwards it is as fast as any list, and code in
C, which reads lists of a subclass past its methods, finds the hits in it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Literal, SupportsIndex

from scannery.client.response.results import Datapoint, Hit, Hits, new_point, put_message
from scannery.v1 import search_pb2

__all__ = ["undecoded"]


class UndecodedHits(Hits):
    """The hits of one query, as the message that they came in."""

    _message: search_pb2.SearchResponse | search_pb2.HitList

    def __len__(self) -> int:
        """Return their number, without making them."""
        try:
            return len(self._message.hits)
        except AttributeError:  # another thread has just made them, so `super()` would refuse the class
            return list.__len__(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        """Pickle and copy as an ordinary `Hits`."""
        return _ordinary(self).__reduce_ex__(protocol)


def undecoded(
    message: search_pb2.SearchResponse | search_pb2.HitList,
    version: int,
    sequence: int,
    mode: Literal["dense", "lexical", "hybrid"] | None,
) -> Hits:
    """Return the hits of a message, which are made when one of them is looked at, with the snapshot and the mode."""
    hits = UndecodedHits()
    hits._message, hits.version, hits.sequence, hits.mode = message, version, sequence, mode
    return hits


def _ordinary(hits: Hits) -> Hits:
    """Return the same object, with its hits made."""
    with _LOCK:
        if type(hits) is UndecodedHits:
            made = list(map(_hit, hits._message.hits))
            # Code that runs in between, such as a signal's, may have made them, too.
            if type(hits) is UndecodedHits:
                list.__setitem__(hits, slice(None), made)  # all or, if interrupted before, none
                hits.__class__ = Hits  # type: ignore[assignment]  # an ordinary list from now on
                vars(hits).pop("_message", None)
    return hits


def _hit(message: search_pb2.Hit) -> Hit:
    """Return a hit with what nearly all callers read; of the rest it has the message."""
    hit, point = new_point(Hit), message.datapoint
    _put_id(hit, point.id)
    _put_document_id(hit, point.document_id)
    _put_score(hit, message.score)
    put_message(hit, message)
    return hit


# A slot's own setter: what a frozen class refuses is only `hit.id = value`.
_put_id: Callable[[Hit, str], None] = vars(Datapoint)["id"].__set__
_put_document_id: Callable[[Hit, str], None] = vars(Datapoint)["document_id"].__set__
_put_score: Callable[[Hit, float], None] = vars(Hit)["score"].__set__


def _made_first(name: str) -> Callable[..., Any]:
    """Return the method of an ordinary list by this name, which makes the hits before, and those of an operand."""

    def method(self: Hits, *args: Any, **named: Any) -> Any:
        operands = (_ordinary(each) if isinstance(each, UndecodedHits) else each for each in args)
        return getattr(_ordinary(self), name)(*operands, **named)

    method.__name__, method.__doc__ = name, getattr(list, name).__doc__
    return method


def _added_to(self: Hits, operand: Any) -> Any:
    # A list reads the other behind `+` past its methods.
    return list.__add__(operand, _ordinary(self)) if isinstance(operand, list) else NotImplemented


LIST_METHODS = (
    "__add__", "__contains__", "__delitem__", "__eq__", "__ge__", "__getitem__", "__gt__", "__iadd__", "__imul__",
    "__iter__", "__le__", "__lt__", "__mul__", "__ne__", "__repr__", "__reversed__", "__rmul__", "__setitem__",
    "append", "clear", "copy", "count", "extend", "index", "insert", "pop", "remove", "reverse", "sort",
)  # fmt: skip
"""Methods of a list, those that read or change its items."""
for _name in LIST_METHODS:
    setattr(UndecodedHits, _name, _made_first(_name))
UndecodedHits.__radd__ = _added_to  # type: ignore[attr-defined]
UndecodedHits.__hash__ = None  # as of every list
UndecodedHits.__name__ = UndecodedHits.__qualname__ = Hits.__name__

_LOCK = threading.RLock()
"""Reentrant: a finalizer or a signal may look at hits while this thread makes some."""


def _renewed() -> None:
    # Another thread of the parent may have held the lock at the fork.
    global _LOCK  # noqa: PLW0603
    _LOCK = threading.RLock()


os.register_at_fork(after_in_child=_renewed)
