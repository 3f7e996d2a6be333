"""One form of records for `build`, `index export`, `upsert`, `delete --ids` and `search --queries`."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import scannery
from scannery.cli.main import main
from scannery.cli.uploads import Upload
from scannery.pipelines import build
from tests.served import serving

pytestmark = pytest.mark.system

VECTORS = np.random.default_rng(5).normal(size=(12, 4)).round(3)
SPEC: dict[str, Any] = {
    "index": "shop",
    "source": {"id": "meta.sku", "vector": "v", "text": "{name}: {meta.about}", "payload": "extra"},
    "attributes": {
        "price": {"type": "float", "from": "Price (USD)"},
        "tags": {"type": "string_list", "split": ","},
        "seen": "timestamp",
    },
}


def record(number: int) -> dict[str, Any]:
    return {
        "meta": {"sku": number, "about": f"thing {number}"},
        "name": "A",
        "v": VECTORS[number].tolist(),
        "Price (USD)": "7.50",
        "tags": "kitchen, blue",
        "seen": "2024-03-03",
        "extra": {"n": number},
    }


def lines(records: list[Any]) -> str:
    return "".join(json.dumps(each) + "\n" for each in records)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two of the records, by a build."""
    file = tmp_path / "built.jsonl"
    file.write_text(lines([record(0), record(1)]))
    build(SPEC, [str(file)], str(tmp_path / "store"))
    return tmp_path / "store"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = main([*map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def found(store: Path, *ids: str) -> list[Any]:
    with scannery.connect(store) as client:
        points = client.index("shop").get(ids, vectors=True)
        return [
            point and (point.text, point.attributes, point.payload, np.array(point.vector).tolist())
            for point in points
        ]


def test_what_build_reads_upsert_reads(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "more.jsonl.gz"
    file.write_bytes(gzip.compress(lines([record(2), record(0)]).encode()))
    before = found(store, "0")
    status, out, err = run(capsys, "upsert", str(file), "--index", "shop", "--store", str(store))
    assert (status, out, err) == (0, "2 datapoints written, 2 rows; sequence 1.\n", "")
    again, new = found(store, "0", "2")
    assert again == before[0]
    text, attributes, payload, _ = new
    assert (text, payload) == ("A: thing 2", {"n": 2})
    assert attributes["price"] == 7.5
    assert attributes["tags"] == ["kitchen", "blue"]


def test_what_export_writes_upsert_and_build_read(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = found(store, "0", "1")
    for name in ("out.jsonl", "out.parquet"):
        output = tmp_path / name
        assert run(capsys, "index", "export", "shop", "--store", str(store), "--output", str(output))[0] == 0
        where = ("--index", "shop", "--store", str(store))
        assert run(capsys, "delete", "0", "1", *where)[0] == 0
        assert found(store, "0", "1") == [None, None]
        status, _, err = run(capsys, "upsert", str(output), *where)
        assert (status, err) == (0, "")
        assert found(store, "0", "1") == before


def test_forms_are_told_apart_record_by_record(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed = [
        record(2),
        {"id": "d", "vector": VECTORS[3].tolist(), "attributes": {"price": 1}},
        {"id": "e", "document_id": "e", "embedding": VECTORS[4].tolist(), "price": 2.0},
        {**record(5), "colour": "red"},
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO(lines(mixed)))
    status, out, err = run(capsys, "upsert", "-", "--index", "shop", "--store", str(store), "--json")
    assert (status, json.loads(out)["written"], json.loads(out)["ignored"]) == (0, 4, ["colour"])
    assert "the index has no place for: colour" in err
    assert [point is not None for point in found(store, "2", "d", "e", "5")] == [True] * 4


def test_csv_and_parquet_are_read(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [record(number) for number in range(6, 9)]
    table = tmp_path / "more.parquet"
    pq.write_table(pa.Table.from_pylist(rows), table)
    sheet = tmp_path / "more.csv"
    sheet.write_text('meta.sku,v,Price (USD)\n9,"[1, 2, 3, 4]",8\n10,"[1, 2, 3, 5]",\n')
    status, out, err = run(capsys, "upsert", str(table), str(sheet), "--index", "shop", "--store", str(store))
    assert (status, out[:21]) == (0, "5 datapoints written,"), err
    first, nine, ten = found(store, "6", "9", "10")
    assert first[0] == "A: thing 6"
    assert (nine[1], ten[1]) == ({"price": 8.0}, {})


def test_refused_records_are_named_by_line_and_the_others_written(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mixed.jsonl"
    wrong = {**record(3), "Price (USD)": "cheap"}
    file.write_text(lines([record(2), wrong]) + "not json\n" + lines([record(4)]) + lines([{"name": "x"}]))
    with serving(store) as server:
        where = ("--index", "shop", "--target", server.address)
        status, _, err = run(capsys, "upsert", str(file), *where, "--batch", "1")
        assert status == 2
        assert "1 datapoints were written" in err
        assert "mixed.jsonl, line 2: " in err
        assert "Price (USD)" in err or "price" in err
        status, out, err = run(capsys, "upsert", str(file), *where, "--allow-errors", "3")
        assert (status, out[:21]) == (0, "2 datapoints written,")
        assert [part in err for part in ("line 2: ", "line 3: not JSON", "line 5: ")] == [True] * 3
        status, out, _ = run(capsys, "upsert", str(file), *where, "--allow-errors", "10%", "--json")
        assert status == 7
        assert [one["id"] for one in json.loads(out)["refused"]] == ["3", "", ""]
        status, _, err = run(capsys, "upsert", str(file), *where, "--allow-errors", "some")
        assert (status, "--allow-errors must be a number or a share" in err) == (2, True)


def test_a_key_that_can_only_write_writes_datapoints(store: Path, tmp_path: Path) -> None:
    from scannery.serving import SecurityConfig
    from scannery.serving.security.api_keys import KeyFile

    path = tmp_path / "keys.json"
    _, secret = KeyFile(path).create("writer", scopes=["write"])
    file = tmp_path / "new.jsonl"
    file.write_text(lines([{"id": "x", "vector": [1, 2, 3, 4]}]))
    with (
        serving(store, security=SecurityConfig(keys_file=str(path))) as server,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("SCANNERY_API_KEY", secret)
        assert main(["upsert", str(file), "--index", "shop", "--target", server.address]) == 0


def test_ids_to_delete_come_from_files(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--index", "shop", "--store", str(store))
    ids = tmp_path / "ids.txt"
    ids.write_text("0\n\nnobody\n")
    assert run(capsys, "delete", "--ids", str(ids), *where)[1] == "1 datapoints deleted; sequence 1.\n"
    records = tmp_path / "records.jsonl"
    records.write_text(lines([record(1), {"id": "nobody"}]))
    assert (
        run(capsys, "delete", "--documents", str(records), *where)[1] == "1 datapoints deleted; sequence 2.\n"
    )
    records.write_text(lines([record(1), {"key": "nobody"}]))
    status, _, err = run(capsys, "delete", "--ids", str(records), *where)
    assert (status, "records.jsonl, line 2: has no id" in err) == (2, True)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(map(str, range(2500)))))
    assert run(capsys, "delete", "--ids", "-", *where)[0] == 0


def test_queries_come_from_a_file(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "queries.jsonl"
    first, second = VECTORS[:2].tolist()
    file.write_text(lines([{"_id": "q1", "vector": second}, {"id": 2, "vector": [1.0]}, {"vector": first}]))
    where = ("--index", "shop", "--store", str(store))
    status, out, err = run(capsys, "search", "--queries", str(file), "-k", "1", *where)
    answers = [json.loads(line) for line in out.splitlines()]
    assert status == 7
    assert [answer["id"] for answer in answers] == ["q1", "2", "3"]
    assert [[hit["id"] for hit in answer.get("hits", [])] for answer in answers] == [["1"], [], ["0"]]
    assert "must have 4 dimensions" in answers[1]["error"]
    assert "1 of 3 queries failed" in err
    status, _, err = run(capsys, "search", "text", "--queries", str(file), *where)
    assert (status, "--queries" in err) == (2, True)
    for wrong, told in (({}, "needs `text`"), ({"vector": "x"}, "`vector` must be a list of numbers")):
        file.write_text(lines([{"id": "q", **wrong}]))
        status, _, err = run(capsys, "search", "--queries", str(file), *where)
        assert (status, f"queries.jsonl, line 1: {told}" in err) == (2, True)


def test_a_server_that_goes_away_is_not_a_refused_record(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "more.jsonl"
    file.write_text(lines([record(number % 12) for number in range(24)]))
    with serving(store) as server, scannery.connect(server.address, timeout_s=1) as client:
        upload = Upload(client.index("shop"), [str(file)], 2, lambda _: server.stop())
        with pytest.raises((scannery.UnavailableError, scannery.DeadlineExceededError)):
            upload.upsert(skips=True)
