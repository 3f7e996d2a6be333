"""Write the golden index of the current format version, or of a feature: `python -m tests.tools.make_golden [named]`.

`python -m tests.tools.make_golden level 2` writes the golden store of the last release of a level, by its code.

Run it once per format version or feature, before its first release. What is committed is never written again: it stands
for the indexes that people have.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from scannery.indexer import SegmentCache, Store, open_index, parse_spec, vector_column, vectors_array
from scannery.indexer.manifest import FORMAT_VERSION
from tests.data import ROOT, clustered, datapoints, publish
from tests.releases.former import GOLDEN as RELEASES
from tests.releases.former import Written, release_of

GOLDEN = ROOT / "tests" / "indexer" / "golden"
SPEC = {
    "index": "golden",
    "source": {"vector": "v", "text": "text"},
    "attributes": {"name": "string", "tags": "string_list", "number": "int", "share": "float", "even": "bool",
     "day": "timestamp"},
    "scann": {"exact_below_rows": 1000, "leaves": 20, "soar": True},
}  # fmt: skip


def main() -> None:
    """Build one ScaNN segment with SOAR and one exact segment, and record what a search finds in them."""
    spec = parse_spec(SPEC)
    rows = 1300
    numbers = list(range(rows))
    columns: dict[str, list[Any]] = {
        # Two documents: shard 0 gets the first 1,200 rows, and with them ScaNN.
        "document_id": ["a"] * 1200 + ["gotime/3"] * 100,
        "text": [f"text {n}" for n in numbers],
        "name": [f"name {n % 7}" if n % 5 else None for n in numbers],
        "tags": [[f"tag {n % 3}", "ö"] if n % 4 else [] for n in numbers],
        "number": numbers,
        "share": [n / rows for n in numbers],
        "even": [n % 2 == 0 for n in numbers],
        "day": [n * 86_400_000_000 for n in numbers],
    }
    table = datapoints(spec, clustered(rows, 8), columns=columns)
    folder = GOLDEN / f"v{FORMAT_VERSION}"
    shutil.rmtree(folder, ignore_errors=True)
    store = Store.open(folder / "store", create=True)
    with tempfile.TemporaryDirectory() as place:
        publish(store, spec, table, Path(place), shards=2)
        index = open_index(store, "golden", cache=SegmentCache(Path(place)))
    queries = clustered(5, 8, seed=9)
    found = [segment.search(queries, 3, settings=segment.settings_for(0.95)) for segment in index.segments]
    expected = {
        "queries": queries.tolist(),
        "segments": [
            {"ids": np.array(segment.ids.to_pylist())[rows].tolist(), "scores": scores.tolist()}
            for segment, (rows, scores) in zip(index.segments, found, strict=True)
        ],
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


def named_main() -> None:
    """Build a ScaNN segment whose rows have named vectors, one of them with ScaNN, too."""
    rows = 1000
    spec = parse_spec(
        {
            "index": "golden",
            "source": {"vector": "v", "text": "text"},
            "named_vectors": {"title": {"dimensions": 4, "distance": "dot"}, "image": {"dimensions": 2}},
            "scann": {"exact_below_rows": rows, "leaves": 10},
        }
    )
    table = datapoints(spec, clustered(rows, 4))
    images = [vector if row % 50 == 0 else None for row, vector in enumerate(clustered(rows, 2, seed=2))]
    vectors = {"title": list(clustered(rows, 4, seed=1)), "image": images}
    for name, own in vectors.items():
        number = table.schema.get_field_index(vector_column(name))
        table = table.set_column(number, vector_column(name), vectors_array(own))
    folder = GOLDEN / "named-vectors"
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as place:
        publish(Store.open(folder, create=True), spec, table, Path(place))


def level_main(level: int) -> None:
    """Keep a store that the last release of a level made, what is in it, and the keys that the release knows."""
    golden = Written("golden")
    with tempfile.TemporaryDirectory() as parent:
        store = Path(parent) / "store"
        *_, rows, keys = release_of(level, Path(parent)).take(
            store,
            ["create", "golden", Written.SPEC],
            golden.upsert(range(12), 0),
            golden.delete(3),
            ["alias", "live", "golden"],
            golden.run("seal"),
            golden.upsert(range(6, 9), 1),
            golden.delete(0),
            golden.rows,
            ["keys"],
        )
        assert rows == golden.expected
        registration = store / "golden" / "log.json"
        content = {**json.loads(registration.read_text()), "host": "golden"}
        registration.write_text(json.dumps(content, indent=2) + "\n")
        folder = RELEASES / f"level-{level}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.make_archive(str(folder / "store"), "xztar", parent, "store", owner="root", group="root")
    (folder / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
    (folder / "keys.txt").write_text("\n".join(keys) + "\n")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["level", number]:
            level_main(int(number))
        case ["named"]:
            named_main()
        case _:
            main()
