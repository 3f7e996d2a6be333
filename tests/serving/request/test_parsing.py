"""Large messages are parsed in pieces, to the same message."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError

from scannery.runtime.pieces import PIECE_BYTES
from scannery.serving.request import parsing
from scannery.serving.request.parsing import parsed
from scannery.v1.index_pb2 import Upsert, UpsertRequest
from scannery.v1.types_pb2 import Datapoint, Vector

TEXT_BYTES = PIECE_BYTES // 8
GROUP = bytes([15 << 3 | 3, 14 << 3, 1, 15 << 3 | 4])
"""A field that no message here has, in the form that Protobuf has given up: one with an inner field."""


def large(count: int = 40, seed: int = 0) -> UpsertRequest:
    rng = random.Random(seed)
    request = UpsertRequest(index="library")
    for number in range(count):
        vector = Vector(values=[rng.random() for _ in range(rng.randrange(9))])
        point = Datapoint(id=str(number), text="x" * rng.randrange(2 * TEXT_BYTES), vector=vector)
        request.upserts.append(Upsert(datapoint=point))
    return request


@pytest.mark.parametrize("seed", range(4))
def test_the_message_is_the_same(seed: int) -> None:
    data = large(seed=seed).SerializeToString()
    for form in (data, bytearray(data), data + GROUP + data, GROUP + data):
        assert parsed(UpsertRequest, form) == UpsertRequest.FromString(bytes(form))


def test_a_piece_is_no_larger_than_its_last_field_makes_it() -> None:
    data = large(200).SerializeToString()
    sizes = [len(piece) for piece in parsing._pieces(data)]
    assert sum(sizes) == len(data)
    assert max(sizes) < PIECE_BYTES + 2 * TEXT_BYTES + 100
    assert min(sizes[:-1]) >= PIECE_BYTES


def test_malformed_messages_are_refused() -> None:
    data = large().SerializeToString()
    assert len(data) > 3 * PIECE_BYTES
    for broken in (data[:-1], data + b"\x07", data + GROUP[:-1], b"\xff" * len(data)):
        with pytest.raises(DecodeError):
            parsed(UpsertRequest, broken)
