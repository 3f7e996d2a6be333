"""Vectors that a server answers with: those of texts, and kept queries."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import scannery
from scannery.client.request.calls import embed
from scannery.client.request.lifecycle_calls import kept_queries
from scannery.v1 import types_pb2

CALLS = [embed(["a text"], kind="query"), kept_queries("i")]
VALUES = np.arange(6, dtype="<f4")


@pytest.mark.parametrize("call", CALLS, ids=["embed", "kept_queries"])
def test_vectors_are_rows_of_float32(call: Any) -> None:
    vectors = types_pb2.Matrix(packed=VALUES.tobytes(), dimensions=3)
    found_ND = call.parse(call.method.response(vectors=vectors))
    assert found_ND.dtype == np.float32
    np.testing.assert_array_equal(found_ND, VALUES.reshape(2, 3))
    found_ND[0] = 0  # a copy of the caller's own
    assert call.parse(call.method.response()).shape == (0, 1)


@pytest.mark.parametrize("call", CALLS, ids=["embed", "kept_queries"])
@pytest.mark.parametrize(("size_bytes", "dimensions"), [(24, 0), (24, 4), (22, 3), (7, 1)])
def test_vectors_that_cannot_be_read_are_an_error_of_the_server(
    call: Any, size_bytes: int, dimensions: int
) -> None:
    vectors = types_pb2.Matrix(packed=VALUES.tobytes()[:size_bytes], dimensions=dimensions)
    with pytest.raises(
        scannery.InternalError, match=f"cannot be read: {size_bytes} bytes, {dimensions} dimensions"
    ):
        call.parse(call.method.response(vectors=vectors))
