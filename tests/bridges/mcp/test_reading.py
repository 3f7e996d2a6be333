"""Documents whose passages tell their order by ids, and those that are too long: agents read each passage whole."""

from __future__ import annotations

from pathlib import Path

import pytest

import scannery
from scannery.bridges.mcp import reading
from scannery.bridges.mcp.reading import ReadAround, ReadDocument
from scannery.client import InvalidArgumentError
from scannery.client.aio import connect

TEXTS = [f"part {number} says {'more ' * (number % 4)}and ends" for number in range(12)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An index with one document, whose datapoints were not cut from it: each text has offsets of its own."""
    folder = tmp_path / "store"
    with scannery.connect(folder, create=True) as client:
        client.create_index("notes", lexical=True).upsert(
            [
                {
                    "id": f"a#{number}",
                    "document_id": "a",
                    "text": text,
                    "text_start": 0,
                    "text_end": len(text),
                }
                for number, text in enumerate(TEXTS)
            ]
        )
    return folder


@pytest.mark.system
async def test_passages_that_were_not_cut_from_a_text_are_read_whole_and_by_number(store: Path) -> None:
    async with connect(store) as client:
        whole = await ReadDocument(index="notes", document_id="a").call(client)
        assert [passage.text for passage in whole.passages] == TEXTS
        around = await ReadAround(index="notes", id="a#10", before=1, after=1).call(client)
        assert [passage.id for passage in around.passages] == ["a#9", "a#10", "a#11"]


@pytest.mark.system
async def test_a_document_that_is_too_long_to_order_is_refused(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "MAX_PASSAGES", 11)
    async with connect(store) as client:
        with pytest.raises(InvalidArgumentError, match="more than 11 passages"):
            await ReadDocument(index="notes", document_id="a").call(client)
        with pytest.raises(InvalidArgumentError, match="more than 11 passages"):
            await ReadAround(index="notes", id="a#2").call(client)
