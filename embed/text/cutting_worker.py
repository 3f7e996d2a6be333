"""Cuts texts for another process, which asks through pipes: `python -m scannery.embed.text.cutting_worker`.

Each message is its length in eight bytes and a pickle; both ends are processes of one user and one build. The first one
is the chunker's arguments, each further one a block of texts and titles; each answer is the passages of each text as
plain tuples, or an error. The process ends with its input.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence
from typing import IO, Any

from scannery.embed.text.chunking import Chunker, Passage

__all__ = ["receive", "send", "serve", "unpacked"]


def send(stream: IO[bytes], value: object) -> None:
    """Write one message."""
    data = pickle.dumps(value, protocol=5)
    stream.write(len(data).to_bytes(8, "little"))
    stream.write(data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Return the next message. Raises EOFError at the end, also inside of a message."""
    size = stream.read(8)
    data = stream.read(int.from_bytes(size, "little")) if len(size) == 8 else b""
    if not data:
        raise EOFError("the other process has ended")
    return pickle.loads(data)


def unpacked(text: str, packed: Sequence[tuple[Any, ...]]) -> list[Passage]:
    """Return the passages of a text that an answer describes."""
    return [Passage(text[start:end], start, end, *fields) for start, end, *fields in packed]


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until they end."""
    chunker = Chunker(**receive(requests))
    while True:
        try:
            block = receive(requests)
        except EOFError:
            return
        try:
            answer: object = [_packed(chunker.split(text, title=title)) for text, title in block]
        except Exception as error:  # noqa: BLE001  raised where the texts came from
            answer = error
        send(answers, answer)


def _packed(passages: Sequence[Passage]) -> list[tuple[Any, ...]]:
    return [
        (p.start, p.end, p.time_start_s, p.time_end_s, p.spoken, p.speakers, p.section, p.page, p.tokens)
        for p in passages
    ]  # fmt: skip


if __name__ == "__main__":
    # What else is printed must not get between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers)
