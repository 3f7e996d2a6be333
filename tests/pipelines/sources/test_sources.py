"""Sources: whatever the file and wherever it is cut, every record comes out once, or a dead letter says why not."""

from __future__ import annotations

import gzip
import json
import os
from functools import partial
from pathlib import Path

import fastavro
import hypothesis.strategies as st
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings

from scannery.indexer import SourceSpec, parse_spec
from scannery.pipelines import InputChangedError, InputNotFoundError, UnknownFormatError
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.sources import (
    Fields,
    Record,
    arrange,
    delimited,
    find_files,
    locations,
    read_part,
    split_file,
)
from scannery.pipelines.sources.feeds.feed_records import Transcript
from scannery.pipelines.sources.feeds.transcripts import transcript_of
from scannery.pipelines.sources.locations import leaves_folder
from scannery.pipelines.sources.parts import DamagedError
from scannery.pipelines.sources.streams import BLOCK_BYTES, lines_of, read_blocks, sized_lines_of
from tests.hooks import no_descriptors

FIELDS = Fields.of(
    parse_spec({"index": "i", "source": {"vector": "vector", "text": "text"}, "attributes": {"n": "int"}})
)


def read(path: Path, *, limit: int = 1 << 20) -> tuple[list[Record], list[DeadLetter]]:
    """Read everything that an input names, cut into parts of about `limit` bytes."""
    records: list[Record] = []
    letters: list[DeadLetter] = []
    for file in find_files([str(path)]):
        for part in split_file(file, limit):
            for item in read_part(part, FIELDS):
                if isinstance(item, DeadLetter):
                    letters.append(item)
                else:
                    records.append(item)
    return records, letters


def compressed(data: bytes, kind: str) -> bytes:
    return gzip.compress(data) if kind == ".gz" else zstandard.compress(data) if kind else data


def jsonl(count: int, start: int = 0) -> bytes:
    return b"".join(
        json.dumps({"id": i, "text": "é" * (i % 50)}).encode() + b"\n" for i in range(start, count)
    )


@pytest.mark.system
@pytest.mark.parametrize("kind", ["", ".gz", ".zst"])
@pytest.mark.parametrize("limit", [1, 100, 5000, 1 << 20])
def test_jsonl_gives_every_record_once_however_it_is_cut(tmp_path, kind, limit):
    path = tmp_path / f"a.jsonl{kind}"
    path.write_bytes(compressed(jsonl(500), kind))
    records, letters = read(path, limit=limit)
    assert not letters
    assert [(r.fields["id"], r.line) for r in records] == [(i, i + 1) for i in range(500)]


@pytest.mark.system
@settings(max_examples=60)
@given(
    lines=st.lists(
        st.sampled_from([b'{"id":1}', b"", b"  ", b'{"id":"a b"}', b"x", b'{"id":"\xc3\xa9"}', b"[1]"])
    ),
    limit=st.integers(1, 40),
    newline=st.booleans(),
)
def test_cuts_never_change_what_is_read(tmp_path_factory, lines, limit, newline):
    path = tmp_path_factory.mktemp("cuts") / "a.jsonl"
    path.write_bytes(b"\n".join(lines) + (b"\n" if newline else b""))
    assert read(path, limit=limit) == read(path, limit=1 << 20)


def test_a_grown_file_keeps_its_earlier_parts(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(300))
    before = [part.identity for part in split_file(find_files([str(path)])[0], 500)]
    path.write_bytes(jsonl(400))
    after = [part.identity for part in split_file(find_files([str(path)])[0], 500)]
    assert after[: len(before) - 1] == before[:-1]
    assert len(after) > len(before)


def test_bad_lines_are_dead_letters_with_their_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'\xef\xbb\xbf{"id": 1}\n{"id": 2\n\n[3]\n{"id": "\xff"}\n' + b"[" * 100_000 + b'\n{"id": 7}\n'
    )
    records, letters = read(path)
    assert [(r.fields["id"], r.line) for r in records] == [(1, 1), (7, 7)]
    assert [(d.reason, d.line) for d in letters] == [
        ("malformed", 2), ("malformed", 4), ("encoding", 5), ("malformed", 6),
    ]  # fmt: skip
    assert all(d.source == str(path) and len(d.excerpt) <= 400 for d in letters)


def test_a_line_beyond_the_limit_is_cut_and_the_next_is_whole():
    blocks = iter([b"a" * 30, b"a" * 30 + b"\nbb", b"b\n", b"c"])
    assert list(lines_of(blocks, limit=20)) == [b"a" * 21, b"bbb\n", b"c"]


def test_an_oversized_line_is_a_dead_letter(tmp_path, monkeypatch):
    monkeypatch.setattr("scannery.pipelines.sources.lines.MAX_RECORD_BYTES", 100)
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"id": "' + b"x" * 200 + b'"}\n{"id": 1}\n')
    records, letters = read(path)
    assert [r.fields["id"] for r in records] == [1]
    assert [d.reason for d in letters] == ["too_large"]


@pytest.mark.parametrize("kind", [".gz", ".zst"])
@pytest.mark.parametrize("limit", [20_000, 1 << 20])
def test_a_truncated_file_keeps_what_is_before_the_damage(tmp_path, kind, limit):
    whole = b"".join(
        json.dumps({"id": i, "text": os.urandom(200).hex()}).encode() + b"\n" for i in range(1000)
    )
    data = compressed(whole, kind)
    path = tmp_path / f"a.jsonl{kind}"
    path.write_bytes(data[: len(data) // 2])
    records, letters = read(path, limit=limit)
    assert 300 < len(records) < 700
    assert [r.fields["id"] for r in records] == list(range(len(records)))
    assert [d.reason for d in letters if d.reason == "damaged_file"] == ["damaged_file"]
    assert letters[-1].line is not None
    assert letters[-1].line >= len(records)


@pytest.mark.parametrize("kind", [".gz", ".zst"])
def test_garbage_in_a_compressed_file_is_one_dead_letter(tmp_path, kind):
    path = tmp_path / f"a.jsonl{kind}"
    path.write_bytes(b"this is not compressed at all")
    records, letters = read(path)
    assert not records
    assert [d.reason for d in letters] == ["damaged_file"]


def zstd_frames() -> list[bytes]:
    """Return frames of every form: with and without size and checksum, skippable, of repeated bytes, of blocks."""
    noise = np.random.default_rng(1).bytes(300_000)
    frames = []
    for content in (b"", b"x" * 300, b"\0" * 1_000_000, noise):
        for checksum in (False, True):
            frames.append(zstandard.ZstdCompressor(write_checksum=checksum).compress(content))
            streaming = zstandard.ZstdCompressor(write_checksum=checksum).compressobj()
            frames.append(streaming.compress(content) + streaming.flush())
    return [*frames, b"\x5a\x2a\x4d\x18\x03\0\0\0abc"]


@pytest.mark.system
def test_zstd_comes_in_bounded_blocks_whatever_it_expands_to(tmp_path):
    bomb = zstandard.ZstdCompressor(level=19).compress(b"\0" * (64 << 20))
    assert len(bomb) < 4096
    (tmp_path / "bomb.zst").write_bytes(bomb)
    sizes = [len(block) for block in read_blocks(str(tmp_path), "bomb.zst", "zst")]
    assert sum(sizes) == 64 << 20
    assert max(sizes) <= BLOCK_BYTES


def test_zstd_frames_of_every_form_are_read_and_none_that_is_cut(tmp_path):
    frames = zstd_frames()
    decoder = zstandard.ZstdDecompressor()
    wanted = b"".join(decoder.decompressobj().decompress(frame) for frame in frames[:-1])
    (tmp_path / "all.zst").write_bytes(b"".join(frames) + b"\0" * 20_000)
    assert b"".join(read_blocks(str(tmp_path), "all.zst", "zst")) == wanted
    for frame in frames[:-1]:
        for length in {1, 4, 5, 7, len(frame) // 2, len(frame) - 1}:
            (tmp_path / "cut.zst").write_bytes(frame[:length])
            with pytest.raises(DamagedError):
                list(read_blocks(str(tmp_path), "cut.zst", "zst"))


def test_joined_gzip_members_are_read_through(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(jsonl(10)) + gzip.compress(jsonl(20, 10)))
    assert [r.fields["id"] for r in read(path)[0]] == list(range(20))


@pytest.mark.parametrize("limit", [1, 64, 1 << 20])
@pytest.mark.parametrize("kind", ["", ".gz"])
def test_csv_keeps_quoted_newlines_together_and_counts_lines(tmp_path, limit, kind):
    path = tmp_path / f"a.csv{kind}"
    text = 'id,text,vector\n1,"two\nlines","[1, 2]"\n2,short\n3,"quoted ""word""",\n4,last,not a vector\n'
    path.write_bytes(compressed(text.encode(), kind))
    records, letters = read(path, limit=limit)
    assert [(r.line, dict(r.fields)) for r in records] == [
        (2, {"id": "1", "text": "two\nlines", "vector": "[1, 2]"}),
        (5, {"id": "3", "text": 'quoted "word"'}),
        (6, {"id": "4", "text": "last", "vector": "not a vector"}),
    ]
    assert [(d.reason, d.line) for d in letters] == [("malformed", 4)]


def test_csv_with_bytes_that_are_not_utf8_loses_one_row(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_bytes(b"\xef\xbb\xbfid\ttext\n1\tgood\n2\tb\xffd\n3\tfine\n")
    records, letters = read(path)
    assert [dict(r.fields) for r in records] == [{"id": "1", "text": "good"}, {"id": "3", "text": "fine"}]
    assert [(d.reason, d.line) for d in letters] == [("encoding", 3)]


def test_a_csv_quote_that_never_closes_costs_its_own_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("scannery.pipelines.sources.delimited.MAX_CELL_CHARACTERS", 100)
    path = tmp_path / "a.csv"
    path.write_text('id,text\n1,ok\n2,"open\n' + "3,text\n" * 40)
    records, letters = read(path)
    assert records[0].fields["id"] == "1"
    assert records[-1].fields["id"] == "3"
    assert letters[0].reason == "malformed"


def parquet(path: Path, rows: int, **options: int) -> None:
    vectors = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    flat = pa.array(vectors.reshape(-1))
    table = pa.table({
        "id": pa.array([f"d{i}" for i in range(rows)]),
        "vector": pa.FixedSizeListArray.from_arrays(flat, 4),
        "n": pa.array(range(rows)),
        "unwanted": pa.array(["x" * 100] * rows),
    })  # fmt: skip
    pq.write_table(table, path, write_page_checksum=True, **options)


@pytest.mark.system
@pytest.mark.parametrize("limit", [1000, 1 << 20])
def test_parquet_is_cut_within_row_groups_and_reads_wanted_columns(tmp_path, limit):
    path = tmp_path / "a.parquet"
    parquet(path, 1000, row_group_size=300)
    records, letters = read(path, limit=limit)
    assert not letters
    assert [r.row for r in records] == list(range(1, 1001))
    assert set(records[0].fields) == {"id", "vector", "n"} - {"id"} | ({"id"} & FIELDS.names)
    assert np.array_equal(records[777].fields["vector"], np.arange(777 * 4, 778 * 4, dtype=np.float32))


def test_parquet_with_uneven_vectors_gives_lists(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"id": ["a", "b"], "vector": pa.array([[1.0], [1.0, 2.0]])}), path)
    records, _ = read(path)
    assert [list(r.fields["vector"]) for r in records] == [[1.0], [1.0, 2.0]]


def test_a_truncated_parquet_file_is_a_dead_letter(tmp_path):
    path = tmp_path / "a.parquet"
    parquet(path, 100)
    path.write_bytes(path.read_bytes()[:-100])
    records, letters = read(path)
    assert not records
    assert [d.reason for d in letters] == ["damaged_file"]


def test_a_damaged_parquet_page_keeps_the_rows_before_it(tmp_path):
    path = tmp_path / "a.parquet"
    parquet(path, 1000, row_group_size=500)
    column = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    data[column.dictionary_page_offset + 40] ^= 0xFF
    path.write_bytes(data)
    records, letters = read(path)
    assert [r.row for r in records] == list(range(1, 501))
    assert [(d.reason, d.row) for d in letters] == [("damaged_file", 501)]


@pytest.mark.parametrize("limit", [300, 1 << 20])
def test_avro(tmp_path, limit):
    path = tmp_path / "a.avro"
    schema = {"type": "record", "name": "r", "fields": [
        {"name": "id", "type": "string"}, {"name": "vector", "type": {"type": "array", "items": "float"}},
    ]}  # fmt: skip
    rows = [{"id": f"d{i}", "vector": [float(i), 1.0]} for i in range(100)]
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, sync_interval=100)
    records, letters = read(path, limit=limit)
    assert not letters
    assert [dict(r.fields) for r in records] == rows
    path.write_bytes(b"Obj\x01 and then nothing")
    assert [d.reason for d in read(path)[1]] == ["damaged_file"]


def test_a_folder_of_texts(tmp_path):
    (tmp_path / "show").mkdir()
    (tmp_path / "show" / "b.md").write_text("# Bé")
    (tmp_path / "show" / "_draft.md").write_text("hidden")
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"plain"))
    (tmp_path / "c.txt").write_bytes(b"\xff\xff\0\1")
    records, letters = read(tmp_path)
    assert [dict(r.fields) for r in records] == [
        {"id": "a.txt.gz", "path": "a.txt.gz", "name": "a", "folder": "", "text": "plain"},
        {
            "id": "show/b.md",
            "path": "show/b.md",
            "name": "b",
            "folder": "show",
            "title": "Bé",
            "text": "# Bé",
        },
    ]
    assert [(d.reason, d.id) for d in letters] == [("encoding", "c.txt")]


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_a_dead_letter(tmp_path):
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "a.txt").chmod(0)
    assert [d.reason for d in read(tmp_path)[1]] == ["unreadable_file"]


def test_links_are_followed_within_the_folder_only(tmp_path):
    folder, outside = tmp_path / "in", tmp_path / "outside"
    (folder / "sub").mkdir(parents=True)
    (folder / "..data").mkdir()
    outside.mkdir()
    (folder / "sub" / "a.txt").write_text("a")
    (folder / "..data" / "b.txt").write_text("b")
    (outside / "secret.txt").write_text("secret")
    (folder / "b.txt").symlink_to(folder / "..data" / "b.txt")  # as Kubernetes mounts files
    (folder / "c.txt").symlink_to(outside / "secret.txt")
    (folder / "d").symlink_to(outside)
    (folder / "sub" / "loop").symlink_to(folder)
    (folder / "e.txt").symlink_to(folder / "e.txt")
    records, letters = read(folder)
    assert {r.fields["id"]: r.fields["text"] for r in records} == {"b.txt": "b", "sub/a.txt": "a"}
    assert sorted((letter.source, letter.reason) for letter in letters) == [
        (f"{folder}/{name}", "unreadable_file") for name in ("c.txt", "d", "e.txt")
    ]
    assert all(
        "outside of the input's folder" in letter.message
        for letter in letters
        if "e.txt" not in letter.source
    )
    records, letters = read(folder / "*.txt")
    assert [r.fields["id"] for r in records] == ["b.txt"]
    records, letters = read(folder / "c.txt")  # named by the caller
    assert [r.fields["text"] for r in records] == ["secret"]


def test_a_dangling_link_is_a_dead_letter(tmp_path):
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "gone.jsonl")
    (tmp_path / "b.jsonl").write_bytes(jsonl(2))
    records, letters = read(tmp_path)
    assert len(records) == 2
    assert [(d.reason, d.source) for d in letters] == [("unreadable_file", str(tmp_path / "a.jsonl"))]


def test_a_file_of_unknown_type_is_refused_before_the_start(tmp_path):
    (tmp_path / "a.exe").write_text("x")
    (tmp_path / "b.parquet.gz").write_text("x")
    with pytest.raises(UnknownFormatError, match=r"a\.exe.*b\.parquet\.gz.*known endings"):
        arrange(find_files([str(tmp_path)]), SourceSpec(vector="vector"))


def test_inputs_are_files_folders_and_patterns_in_the_order_given(tmp_path):
    for name in ["z.jsonl", "d/a.jsonl", "d/e/b.jsonl", "d/e/[odd].jsonl", "d/.hidden/c.jsonl"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")

    def found(*inputs: str) -> list[str]:
        files = find_files([f"{tmp_path}/{name}" for name in inputs])
        return [Path(file.source).relative_to(tmp_path).as_posix() for file in files]

    assert found("z.jsonl", "d") == ["z.jsonl", "d/a.jsonl", "d/e/[odd].jsonl", "d/e/b.jsonl"]
    assert found("d", "d/a.jsonl") == ["d/a.jsonl", "d/e/[odd].jsonl", "d/e/b.jsonl"]
    assert found("d/*.jsonl") == ["d/a.jsonl"]
    assert found("**/[a-b].jsonl") == ["d/a.jsonl", "d/e/b.jsonl"]
    assert found("d/[!b-z]*.jsonl") == ["d/a.jsonl"]
    assert found("d/e/[odd].jsonl") == ["d/e/[odd].jsonl"]
    assert found("?.jsonl") == ["z.jsonl"]
    assert [f.source for f in find_files([f"file://{tmp_path}/z.jsonl"])] == [f"{tmp_path}/z.jsonl"]
    with pytest.raises(InputNotFoundError, match=r"nothing\.jsonl"):
        find_files([str(tmp_path / "nothing.jsonl")])
    with pytest.raises(InputNotFoundError, match="no input"):
        find_files([])


def test_an_input_folder_that_cannot_be_listed_is_no_empty_one(tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "b.jsonl").write_text("{}\n")
    (tmp_path / "a.jsonl").write_text("{}\n")
    for location in (tmp_path, tmp_path / "*.jsonl"):
        with no_descriptors(), pytest.raises(InputNotFoundError, match="cannot list .*: Too many open files"):
            find_files([str(location)])


def test_a_folder_that_a_pattern_cannot_match_need_not_be_readable(tmp_path, monkeypatch):
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "a.jsonl").write_text("{}\n")
    real = os.scandir

    def refused(path):
        if str(path).endswith("lost+found"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", refused)
    assert [file.path for file in find_files([str(tmp_path / "*.jsonl")])] == ["a.jsonl"]
    for location in (tmp_path, tmp_path / "**" / "*.jsonl"):
        with pytest.raises(InputNotFoundError, match=r"cannot list .*lost\+found: Permission denied"):
            find_files([str(location)])


def test_object_stores_are_read_like_folders(tmp_path):
    # obstore speaks file:// too, so the code for clouds runs here against a folder.
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a.jsonl").write_bytes(jsonl(50))
    (tmp_path / "d" / "b.jsonl.gz").write_bytes(gzip.compress(jsonl(60, 50)))
    parquet(tmp_path / "d" / "c.parquet", 10)
    base = f"file://{tmp_path}"
    one = list(locations.find_remote(f"{base}/d/a.jsonl"))
    folder = sorted(locations.find_remote(f"{base}/d"), key=lambda file: file.path)
    pattern = list(locations.find_remote(f"{base}/*/a.*"))
    assert [file.source for file in one + pattern] == [f"{base}/d/a.jsonl"] * 2
    assert [file.path for file in folder] == ["a.jsonl", "b.jsonl.gz", "c.parquet"]
    assert all(file.tag for file in folder)
    items = [item for file in folder for part in split_file(file, 400) for item in read_part(part, FIELDS)]
    assert all(isinstance(item, Record) for item in items)
    assert len(items) == 70


def test_a_file_that_changes_after_planning_is_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(10))
    (part,) = split_file(find_files([str(path)])[0], 1 << 20)
    path.write_bytes(jsonl(11))
    with pytest.raises(InputChangedError, match="changed while"):
        list(read_part(part, FIELDS))
    path.unlink()
    with pytest.raises(InputChangedError, match="cannot be read any more"):
        list(read_part(part, FIELDS))


def test_rows_behind_a_line_that_is_too_long_are_read_once(tmp_path, monkeypatch):
    monkeypatch.setattr(delimited, "sized_lines_of", partial(sized_lines_of, limit=1000))
    monkeypatch.setattr(delimited, "MAX_CELL_CHARACTERS", 500)
    rows = "".join(f"{i},some text\n" for i in range(2, 200))
    (tmp_path / "a.csv").write_text(f"id,text\n1,{'x' * 5000}\n{rows}")
    for limit in (1, 100, 1 << 20):
        records, letters = read(tmp_path, limit=limit)
        assert [record.fields["id"] for record in records] == [str(i) for i in range(2, 200)]
        assert [letter.line for letter in letters] == [2]


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("text")
    records, letters = read(tmp_path)
    assert [record.fields["id"] for record in records] == ["b.txt"]
    assert [letter.reason for letter in letters] == ["unreadable_file"]


def test_a_transcript_in_a_linked_folder_outside_of_the_input_is_not_read(tmp_path):
    outside, base = tmp_path / "outside", tmp_path / "input"
    (outside / "deep").mkdir(parents=True)
    (base / "own").mkdir(parents=True)
    for folder in (outside, outside / "deep", base / "own"):
        (folder / "talk.txt").write_text("words")
    (base / "linked").symlink_to(outside)
    (base / "inner").symlink_to(base / "own")
    for path, leaves in (("linked/talk.txt", True), ("linked/deep/talk.txt", True), ("inner/talk.txt", False),
                         ("own/talk.txt", False)):  # fmt: skip
        assert leaves_folder(str(base), path) is leaves
        found = transcript_of([Transcript(path, "text/plain")], str(base), "feed.xml", [])
        assert (found.text is None) is leaves
