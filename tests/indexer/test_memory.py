"""What an open index takes of memory: counted from its files, before and after it is opened, and measured."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import (
    COMPONENTS,
    ColdReads,
    IndexSpec,
    MemorySegment,
    SegmentCache,
    Store,
    cached_memory,
    index_memory,
    live_memory,
    memory_of_opening,
    open_files,
    open_index,
    parse_spec,
    read_manifest,
)
from scannery.indexer.memory import StoredSegment, added_memory, stored_memory
from scannery.indexer.segment.cache import file_sizes
from tests.data import ROOT, clustered, datapoints, publish

pytestmark = pytest.mark.system

ROWS, DIMENSIONS = 1500, 32
WORDS = [f"word{number}" for number in range(300)]


def spec_of(**keys: object) -> IndexSpec:
    source = {"id": "id", "vector": "vector", "text": "text"}
    attributes = {"show": "string", "year": "int"}
    return parse_spec({"index": "talks", "source": source, "attributes": attributes, "lexical": True} | keys)


def published(folder: Path, spec: IndexSpec, rows: int = ROWS, *, name: str = "store") -> Store:
    """Return a store with an index of passages, each with a text of 20 words; four are a document."""
    store = Store.open(folder / name, create=True)
    random = np.random.default_rng(1)
    columns: dict[str, list[object]] = {
        "document_id": [f"talk{row // 4}" for row in range(rows)],
        "text": [" ".join(random.choice(WORDS, 20)) for _ in range(rows)],
        "show": [f"show{row % 7}" for row in range(rows)],
        "year": [2000 + row % 20 for row in range(rows)],
    }
    publish(store, spec, datapoints(spec, clustered(rows, DIMENSIONS), columns=columns), folder)
    return store


TREE = {"scann": {"exact_below_rows": 1000}}


def test_each_file_of_a_segment_is_in_a_component(tmp_path: Path) -> None:
    for number, spec in enumerate((spec_of(**TREE), spec_of(), spec_of(distance="squared_l2"))):
        store = published(tmp_path, spec, name=f"store{number}")
        index = open_index(store, "talks", cache=SegmentCache(tmp_path / f"cache{number}"))
        [segment] = index.segments
        assert segment.hold is not None
        sizes = file_sizes(segment.hold.folder)
        for path in sizes.keys() - {"segment.json"}:
            stored = StoredSegment(segment.entry, segment.hold.folder, {path: sizes[path]})
            assert stored_memory(stored), f"{path} is in no component of indexer/memory.py"


def test_what_is_counted_before_opening_is_what_is_counted_after(tmp_path: Path) -> None:
    cache = SegmentCache(tmp_path / "cache")
    store = published(tmp_path, spec_of(**TREE, lexical={"scope": "document"}))
    manifest = read_manifest(store, "talks")
    assert cached_memory(manifest, cache) is None
    before = memory_of_opening(store, manifest, cache)
    assert cached_memory(manifest, cache) == before
    index = open_index(store, "talks", cache=cache)
    assert index_memory(index) == before == added_memory(open_files(index).values())
    assert memory_of_opening(store, manifest, cache, reuse=index) == {}, "versions share segments"
    assert set(before) == {"codes", "vectors", "quantized", "words", "attributes", "records", "ids", "leaves"}
    assert before["vectors"].mapped >= 4 * ROWS * DIMENSIONS
    assert before["codes"].mapped == 0 < before["codes"].heap
    assert before["words"].heap == 8 * ROWS + 32 * ROWS // 4


def test_a_damaged_folder_of_the_cache_is_unpacked_again(tmp_path: Path) -> None:
    cache = SegmentCache(tmp_path / "cache")
    store = published(tmp_path, spec_of(**TREE))
    manifest = read_manifest(store, "talks")
    memory = memory_of_opening(store, manifest, cache)
    [folder] = cache.folder.iterdir()
    (folder / "scann" / "datapoint_to_token.npy").write_bytes(b"nothing")
    assert memory_of_opening(store, manifest, cache) == memory


def test_an_open_index_whose_folder_is_gone_is_not_counted(tmp_path: Path) -> None:
    store = published(tmp_path, spec_of(**TREE))
    index = open_index(store, "talks", cache=SegmentCache(tmp_path / "cache"))
    shutil.rmtree(tmp_path / "cache")
    assert index_memory(index) == {}


def test_vectors_that_each_search_reads_are_needed(tmp_path: Path) -> None:
    cache = SegmentCache(tmp_path / "cache")
    store = published(tmp_path, spec_of(distance="squared_l2"))
    memory = index_memory(open_index(store, "talks", cache=cache))
    assert memory["vectors"].needed == 0
    assert memory["quantized"].needed == ROWS * (DIMENSIONS + 12) + 128
    compact = index_memory(open_index(store, "talks", cache=cache, cold=ColdReads(compact=True)))
    assert compact["quantized"] == memory["quantized"]
    assert compact["vectors"].total < 10_000  # where the pages of full vectors are


def test_vectors_of_few_dimensions_are_not_quantized(tmp_path: Path) -> None:
    spec = spec_of()
    store = Store.open(tmp_path / "store", create=True)
    publish(store, spec, datapoints(spec, clustered(ROWS, 8)), tmp_path)
    memory = index_memory(open_index(store, spec.index, cache=SegmentCache(tmp_path / "cache")))
    assert memory["vectors"].needed == 4 * ROWS * 8 + 128
    assert "quantized" not in memory


def test_new_rows_take_what_searches_make_of_them(tmp_path: Path) -> None:
    spec = spec_of()
    columns = {"text": ["some words of a text"] * 100}
    segment = MemorySegment.of(datapoints(spec, clustered(100, DIMENSIONS), columns=columns), spec)
    written = segment.heap_bytes
    assert written >= segment.size_bytes
    segment.warm()
    postings, records = segment.postings, segment.records
    assert postings is not None
    assert segment.heap_bytes - written == postings.size_bytes + records.size_bytes + segment.ties.size_bytes


def test_deletions_are_counted(tmp_path: Path) -> None:
    store = published(tmp_path, spec_of())
    index = open_index(store, "talks", cache=SegmentCache(tmp_path / "cache"))
    assert live_memory(index) == {}
    mask_N = np.arange(ROWS) != 3
    mask_N.setflags(write=False)
    [segment] = index.segments
    object.__setattr__(index, "alive", (segment.allow(mask_N),))
    assert live_memory(index)["deletions"].heap >= ROWS


def test_names_of_components_are_distinct_and_documented() -> None:
    names = [component.name for component in COMPONENTS]
    assert len(set(names)) == len(names)
    page = (ROOT / "docs" / "operations" / "memory.md").read_text()
    for component in COMPONENTS:
        assert f"| `{component.name}` | {component.what}" in page


# In a process of its own: what others have allocated would be used again.
GROWTH = """
import ctypes, gc, json, sys
from scannery.indexer import SegmentCache, Store, index_memory, open_index

class Blocks(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"
    )]

blocks = ctypes.CDLL("libc.so.6").mallinfo2
blocks.restype = Blocks

def allocated():
    gc.collect()
    return blocks().uordblks + blocks().hblkhd  # not the resident memory, in which there are holes

def opened():
    index = open_index(Store.open(sys.argv[1]), "talks")
    _ = index.words
    return index

kept = [opened(), opened()]  # kernels are loaded, and costs are timed
before = allocated()
kept += [opened() for _ in range(8)]
heap = sum(size.heap for size in index_memory(kept[0]).values())
print(json.dumps([(allocated() - before) / 8, heap]))
"""


@pytest.mark.parametrize("keys", [{}, {"lexical": {"scope": "document"}}])
def test_what_is_counted_on_the_heap_is_what_opening_takes(tmp_path: Path, keys: dict[str, object]) -> None:
    published(tmp_path, spec_of(**(TREE | keys)), rows=20_000)
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, str(tmp_path / "store")],
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src"), "SCANNERY_CACHE_DIR": str(tmp_path / "cache")},
    )
    measured, counted = json.loads(done.stdout)
    assert measured == pytest.approx(counted, rel=0.4, abs=600_000)
