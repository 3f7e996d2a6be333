"""A collection of another system becomes an index through the calls of a client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery.bridges.importers.collection import (
    PeerCollection,
    PeerRecord,
    as_identifier,
    chosen,
    distance_of,
    json_value,
    vector_problem,
)
from scannery.bridges.importers.writing import ImportSettings, import_collection
from scannery.pipelines.errors import PeerError
from tests.served import serving

ROWS = 1_100
VECTORS = np.random.default_rng(0).normal(size=(ROWS, 4)).astype(np.float32)
PAYLOAD_ONLY = ImportSettings(payload="payload", text="body")


def collection(**changes: Any) -> PeerCollection:
    def records(size: int) -> Iterator[list[PeerRecord]]:
        for start in range(0, ROWS, size):
            yield [
                PeerRecord(
                    str(n), VECTORS[n], {"n": n, "body": f"Text {n}", "id": n, "deep": {"x": [n, None]}}
                )
                for n in range(start, min(start + size, ROWS))
            ]

    known: dict[str, Any] = {
        "name": "pages",
        "dimensions": 4,
        "distance": "dot",
        "rows": ROWS,
        "records": records,
    }
    return PeerCollection(**known | changes)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[scannery.Client]:
    with scannery.connect(tmp_path / "store", create=True) as client:
        yield client


@pytest.mark.system
def test_rows_are_written_once(client: scannery.Client) -> None:
    seen: list[int] = []
    report = import_collection(client, "copy", collection(), PAYLOAD_ONLY, seen.append)
    assert (report.read, report.written, report.present, report.left_out) == (ROWS, ROWS, 0, 0)
    assert seen == [500, 1_000, ROWS]
    index = client.index("copy")
    [point] = index.get(["7"], vectors=True)
    assert point is not None and point.vector is not None and point.text == "Text 7"
    assert point.payload == {"n": 7, "id": 7, "deep": {"x": [7, None]}}
    np.testing.assert_array_equal(point.vector, VECTORS[7])
    index.delete(["7", "900"])
    again = import_collection(client, "copy", collection(), PAYLOAD_ONLY)
    assert (again.read, again.written, again.present) == (ROWS, 2, ROWS - 2)
    whole = import_collection(client, "copy", collection(), ImportSettings(payload="payload", overwrite=True))
    assert whole.written == ROWS


@pytest.mark.system
def test_a_server_takes_it_too(client: scannery.Client, tmp_path: Path) -> None:
    client.create_index("other", dimensions=4)
    client.close()
    with serving(tmp_path / "store") as server, scannery.connect(server.address, http=False) as remote:
        assert import_collection(remote, "copy", collection(), PAYLOAD_ONLY).written == ROWS


@pytest.mark.system
def test_fields_become_attributes(client: scannery.Client) -> None:
    import_collection(client, "copy", collection(), ImportSettings(text="body"))
    [hit] = client.index("copy").search(VECTORS[7], 5, where={"n": 7})
    assert (hit.id, hit.text) == ("7", "Text 7")
    assert hit.attributes == {"n": 7, "deep": {"x": [7, None]}}
    assert hit.payload == {"id": 7}, "a name that filters have for something else"


def test_an_index_of_other_vectors_is_refused(client: scannery.Client) -> None:
    client.create_index("copy", dimensions=3, distance="dot")
    with pytest.raises(PeerError, match="index 'copy' has 3 dimensions and dot, the collection 4 and dot"):
        import_collection(client, "copy", collection(), PAYLOAD_ONLY)


def test_invalid_rows_end_an_import_or_are_left_out(client: scannery.Client) -> None:
    vectors = [
        None,
        VECTORS[0],
        np.array([1, np.nan, 0, 0]),
        np.zeros(4),
        VECTORS[0][:2],
        VECTORS[1] * np.inf,
    ]
    records = [PeerRecord(str(n), vector, {}) for n, vector in enumerate(vectors)]
    broken = collection(distance="cosine", records=lambda size: iter([records]))
    with pytest.raises(PeerError, match="row '0': has no vector; --skip-invalid leaves such rows out"):
        import_collection(client, "copy", broken, PAYLOAD_ONLY)
    report = import_collection(client, "copy", broken, ImportSettings(skip_invalid=True))
    assert (report.written, report.left_out) == (1, 5)
    assert report.examples == [
        "'0': has no vector",
        "'2': its vector has NaN or infinity",
        "'3': its vector is all zeros, which has no direction for cosine",
        "'4': its vector has 2 dimensions, not 4",
        "'5': its vector has NaN or infinity",
    ]
    assert vector_problem(np.zeros(4), 4, "dot") is None


def test_names_and_distances_that_are_not_told() -> None:
    assert chosen(None, ["a"], what="tables", option="--collection") == "a"
    for given, names, message in (
        (None, ["b", "a"], "the source has 2 tables: 'a', 'b'; choose one by --collection NAME"),
        (None, [], "the source has no tables"),
        ("c", ["a"], "--collection: there is no 'c' among the tables: 'a'"),
    ):
        with pytest.raises(PeerError) as caught:
            chosen(given, names, what="tables", option="--collection")
        assert caught.value.message == message
    assert distance_of("ip", {"ip": "dot"}, None) == "dot"
    assert distance_of("hamming", {}, "cosine") == "cosine"
    with pytest.raises(PeerError, match="compares vectors by 'hamming', which an index cannot"):
        distance_of("hamming", {"ip": "dot"}, None)
    with pytest.raises(PeerError, match="does not tell its distance; name it by --distance"):
        distance_of(None, {}, None)


def test_values_become_json() -> None:
    import datetime as dt
    import uuid
    from decimal import Decimal

    one = uuid.UUID(int=1)
    assert [as_identifier(each) for each in ("a", 7, np.int64(8), one)] == ["a", "7", "8", str(one)]
    for wrong in (1.5, True, b"a", None):
        with pytest.raises(PeerError, match="ids must be strings, integers or UUIDs"):
            as_identifier(wrong)
    time = dt.datetime(2020, 1, 2, tzinfo=dt.timezone.utc)
    given = {
        "a": [1, 2.5, True, None],
        "t": time,
        "d": Decimal("1.5"),
        "n": float("nan"),
        "b": b"x",
        3: {one},
        "i": np.int32(4),
    }
    assert json_value(given) == {
        "a": [1, 2.5, True, None], "t": "2020-01-02T00:00:00+00:00", "d": 1.5, "n": None,
        "3": [str(one)], "i": 4,
    }  # fmt: skip
