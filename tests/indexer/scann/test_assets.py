"""ScaNN's files in a segment: what is unpacked is bounded by the rows that it is for."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard

from scannery.indexer import CorruptError
from scannery.indexer.scann.assets import CODES_COLUMN, LEAF_COLUMN, unpack_assets

TABLE = pa.table(
    {LEAF_COLUMN: pa.array(np.zeros(3, np.int32)), CODES_COLUMN: pa.array([b"ab"] * 3, pa.binary(2))}
)


def packed(data: bytes) -> str:
    return base64.b64encode(zstandard.compress(data)).decode()


@pytest.mark.parametrize(("text", "problem"), [
    (packed(b"\0" * (80 << 20)), "has 83886080 bytes by its header; allowed are 0 to 67109"),
    (base64.b64encode(zstandard.compress(b"x" * 1000)[:-3]).decode(), "does not decompress"),
    ("not base64 at all", "does not decompress"),
    (base64.b64encode(zstandard.ZstdCompressor(write_content_size=False).compress(b"x")).decode(), "header"),
])  # fmt: skip
def test_what_does_not_fit_its_rows_is_refused(tmp_path: Path, text: str, problem: str):
    with pytest.raises(CorruptError, match=problem):
        unpack_assets(tmp_path, TABLE, {"ah_codebook.pb": text})
    assert list(tmp_path.iterdir()) == []


def test_what_was_packed_comes_back(tmp_path: Path):
    unpack_assets(tmp_path, TABLE, {"ah_codebook.pb": packed(b"book"), "scann_config.pb": packed(b"")})
    assert (tmp_path / "ah_codebook.pb").read_bytes() == b"book"
    assert (tmp_path / "scann_config.pb").read_bytes() == b""
