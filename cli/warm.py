"""Compile all kernels into numba's cache: `python -m scannery.cli.warm`.

Otherwise the first search on a new machine waits for them: seconds, and beside other work longer than its deadline.
Kernels are compiled for each type of array: those of a segment that is opened, of rows that were just written and of
requests. So a segment with ScaNN is opened (scannery.indexer.warm), and a small index is written, sealed and read.
"""

from __future__ import annotations

from pathlib import Path

import scannery
from scannery.client.request.writes import NewDatapoint
from scannery.embed.warm import warm_tokenizer
from scannery.indexer import Store
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.warm import warm_kernels
from scannery.live.maintenance.seal import seal
from scannery.serving.request import parsing, part_count
from scannery.serving.traffic import answer_kernels

__all__ = ["warm"]

_SPEC = {
    "index": "warm",
    "source": {"text": "text", "vector": "vector"},
    "lexical": True,
    "dynamic": True,
    "attributes": {"number": "int", "name": "string"},
    "named_vectors": {"other": {"dimensions": 2}},
}
_VECTOR = [1.0, 0.0]


def warm() -> None:
    """Compile the kernels that are not in the cache."""
    warm_kernels()
    warm_tokenizer()
    part_count.warm_up()
    parsing.warm_up()
    answer_kernels.warm_up()
    with scratch_folder("warm") as folder:
        _write_and_read(folder / "store")


def _write_and_read(store: Path) -> None:
    """Ask a small index for all that a hit can have: of rows in a segment, and of rows in memory."""
    points: list[NewDatapoint] = [
        {
            "id": f"{row}",
            "vector": _VECTOR,
            "vectors": {"other": _VECTOR},
            "text": "some words",
            "attributes": {"number": row, "name": "a", "undeclared": row},
        }
        for row in range(4)
    ]
    with scannery.connect(store, create=True) as client:
        client.create_index(_SPEC, dimensions=2).upsert(points[:2])
    seal(Store.open(store), "warm")
    with scannery.connect(store) as client:
        index = client.index("warm")
        index.upsert(points[2:])
        index.search(_VECTOR, 4, where={"number": {"$gt": 0}, "undeclared": 1}, return_vectors=True)
        index.search(_VECTOR, 4)
        index.search_many([_VECTOR, _VECTOR], 4, vectors="other", return_vectors=True)
        index.search(scannery.Like("0"), 2, mode="hybrid", max_per_group=1)
        list(index.scan(where={"name": "a"}, order_by="number"))


if __name__ == "__main__":
    warm()
