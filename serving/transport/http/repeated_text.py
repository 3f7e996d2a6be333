"""Requests that repeat an earlier search of their connection, except for the text that they ask with.

The text is between bytes that say how long it is: in the HTTP head, and in the messages around it. These are compared
with its length. Only bodies as every library of Protocol Buffers writes them are remembered, and texts up to 125 bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

from scannery.serving.request.search_template import SearchTemplate
from scannery.serving.transport.http.head import Head
from scannery.v1.search_pb2 import Query, SearchRequest

__all__ = ["RepeatedText", "repeated_text"]

_END = b"\r\n\r\n"
_LENGTH = b"content-length: "
MAX_KEPT_BYTES = 1 << 13
"""Most bytes of a request besides the text, which are kept: a server has many connections."""

_QUERY = SearchRequest.QUERY_FIELD_NUMBER << 3 | 2
_TEXT = Query.TEXT_FIELD_NUMBER << 3 | 2
"""First bytes of the two fields around a text; a length of less than 128 follows each in one byte."""
_AROUND = 4
MOST_FIELD = 129
"""Bytes of the longest field with a query whose length is one byte."""


@dataclass(frozen=True, slots=True, eq=False)
class RepeatedText:
    """A search by text that was answered, to compare others with."""

    head: Head
    template: SearchTemplate
    before: bytes
    """The HTTP head up to the length of the body, with which the head ends."""
    fields: bytes
    """The fields of the body in front of the query."""
    after: bytes
    """Those behind it."""

    def fits(self, data: bytes) -> bool:
        """Return whether some bytes are the same request, with any text."""
        if not (data.startswith(self.before) and data.endswith(self.after)):
            return False
        start = self.body_of(data)
        length = data[len(self.before) : start - len(_END)]
        if not length.isdigit() or len(length) > 4 or int(length) != len(data) - start:
            return False
        first = start + len(self.fields)
        size = len(data) - len(self.after) - first
        return (
            _AROUND < size <= MOST_FIELD
            and data.startswith(self.fields, start)
            and data[first : first + _AROUND] == bytes((_QUERY, size - 2, _TEXT, size - _AROUND))
        )

    def body_of(self, data: bytes) -> int:
        """Return the offset of the body of a request."""
        return data.find(_END, len(self.before)) + len(_END)

    def asked_of(self, data: bytes) -> str:
        """Return the text of a request that fits; UnicodeDecodeError if it is none."""
        start = self.body_of(data) + len(self.fields) + _AROUND
        return data[start : len(data) - len(self.after)].decode()


def repeated_text(head: Head, asked: SearchRequest, data: bytes, body: bytes) -> RepeatedText | None:
    """Return what requests like this one are compared with; None if they have to be parsed.

    Args:
        head: of the request.
        asked: a search by text, as it was sent.
        data: bytes that were read at once, and begin with a request; empty: it was read in parts.
        body: the last one that was parsed from them.

    """
    start = len(data) - len(body)
    length = b"%d" % len(body)
    before = data[: start - len(_END) - len(length)]
    whole = data.endswith(body) and data[:start] == before + length + _END and before.endswith(_LENGTH)
    if not whole or data.find(_END, 0, start) != start - len(_END) or head.expects_continue:
        return None
    fields = SearchRequest(index=asked.index).SerializeToString()
    after = SearchRequest(options=asked.options).SerializeToString() if asked.HasField("options") else b""
    text = asked.query.text.encode()
    around = bytes((_QUERY, len(text) + 2, _TEXT, len(text))) if len(text) + _AROUND <= MOST_FIELD else b""
    if not around or body != fields + around + text + after or len(before) + len(body) > MAX_KEPT_BYTES:
        return None
    options = asked.options
    template = SearchTemplate(asked.index, options.SerializeToString(), options.min_sequence)
    return RepeatedText(head, template, before, fields, after)
