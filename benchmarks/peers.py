"""Scannery beside other engines: the same vectors, the same queries, one machine, one run.

    python -m benchmarks.peers [NAME ...] [--rows N] [--dimensions N] [--store URI --index NAME] [--queries N]
                               [--folder FOLDER [--build]]

Needs the extra `bench`. NAMEs choose engines of `benchmarks.peer_engines` (default: all; those whose packages are not
installed are left out). The data are generated vectors, or the passages of an index with runs of their own words as
queries. Every engine gets one query at a time; its recall setting is raised until recall@10 is 0.95, separately for
each filter. Scannery runs with its defaults, as a server on this machine (`scannery`) and in the process (`embedded`).
With a folder, built indexes are kept there and reused by the next run; `--build` only builds. `benchmarks.serve_peers`
compares servers with concurrent callers, `benchmarks.fresh_filters --peers` filters that were never asked before, and
`benchmarks.quantized peers` memory.

Shapes: N rows, D dimensions, K hits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.data import Vectors, generated
from benchmarks.harness import K, environment, folder_of, options, table
from benchmarks.peer_engines import ENGINES, Columns, Engine, allowed_mask, built, installed
from benchmarks.query import TARGET
from scannery.indexer import SegmentCache, Store, exact_search, open_index, unit_length
from scannery.indexer.tuning.settings_choice import recall_by_score

__all__ = ["saved"]

SHARES = (0.5, 0.1, 0.01, 0.001, 0.0001)


@dataclass(frozen=True)
class Filter:
    """Filter of a kind that allows a share of the rows."""

    kind: str
    share: float
    where: Mapping[str, Any] | None = None


def filters() -> list[Filter]:
    return [
        Filter("none", 1.0),
        *(Filter("random", share, {"part": {"$lt": share}}) for share in SHARES),
        *(
            chosen
            for share in SHARES[:3]
            for chosen in (
                Filter("correlated", share, {"side": {"$gte": 1 - share}}),
                Filter("anti-correlated", share, {"side": {"$lt": share}}),
            )
        ),
    ]


def passages(store: str, name: str) -> Vectors:
    """Return the vectors of an index, and runs of its texts' own words, encoded, as queries."""
    from scannery.embed import Encoder
    from scannery.pipelines.tuning.tuning_queries import questions_of

    with folder_of() as folder:
        index = open_index(Store.open(store), name, cache=SegmentCache(folder))
        vectors_ND = np.concatenate([segment.searched_ND for segment in index.segments])
        texts = pa.concat_tables([segment.table.select(["text"]) for segment in index.segments]).column(
            "text"
        )
    assert index.spec.encoder is not None
    encoder = Encoder.load(index.spec.encoder.model, device="cpu")
    # As `scannery build` does, with other runs of words.
    queries_QD, tuned_QD = (questions_of(texts, lambda: encoder, seed=seed) for seed in (1, 0))
    assert queries_QD is not None
    assert tuned_QD is not None
    rows, dimensions = vectors_ND.shape
    title = f"{rows:,} × {dimensions} real passages, cosine"
    return Vectors(title, "cosine", unit_length(vectors_ND), unit_length(queries_QD), unit_length(tuned_QD))


def saved(folder: Path, make: Callable[[], Vectors]) -> Vectors:
    """Return the collection in a folder, made if it is missing: all engines must index the same."""
    file = folder / "collection.npz"
    if not file.exists():
        made = make()
        tuned_QD = made.queries_QD[:0] if made.tuned_QD is None else made.tuned_QD
        np.savez(file, name=made.name, vectors=made.vectors_ND, queries=made.queries_QD, tuned=tuned_QD)
    with np.load(file) as kept:
        tuned = kept["tuned"] if len(kept["tuned"]) else None
        return Vectors(str(kept["name"]), "cosine", kept["vectors"], kept["queries"], tuned)


def measured(
    engine: Engine, collection: Vectors, columns: Columns, chosen: Filter, queries_QD: np.ndarray
) -> str:
    """Return queries/s with recall and whether hits are missing, at the least setting that reaches the recall."""
    mask_N = allowed_mask(columns, chosen.where)
    matches = min(K, len(collection.vectors_ND) if mask_N is None else int(mask_N.sum()))
    truth_QK = exact_search(collection.vectors_ND, queries_QD, matches, "dot", mask_N)[1]
    for effort in engine.efforts:
        ask = engine.searcher(chosen.where, effort)
        if ask is None:
            return ""
        for query_D in queries_QD[:5]:
            ask(query_D)
        took_s, recalls, complete = [], [], True
        for query_D, true_K in zip(queries_QD, truth_QK, strict=True):
            started = time.perf_counter()
            rows = ask(query_D)
            took_s.append(time.perf_counter() - started)
            complete &= len(rows) == matches
            scores_K = np.full(matches, -np.inf, np.float32)
            scores_K[: len(rows)] = -np.sort(-(collection.vectors_ND[list(rows)] @ query_D))[:matches]
            recalls.append(recall_by_score(scores_K[None], true_K[None])[0])
        if np.mean(recalls) >= TARGET and complete:
            break
    missing = "" if complete else ", hits missing"
    return f"{1 / np.median(took_s):,.0f} ({np.mean(recalls):.3f}{missing})"


def main() -> None:
    given = options(
        __doc__, cases=ENGINES, rows=500_000, dimensions=128, store=str, index="podcasts", queries=100,
        folder=Path, build=False,
    )  # fmt: skip
    names = installed({name: ENGINES[name].packages for name in given.cases})

    def make() -> Vectors:
        return passages(given.store, given.index) if given.store else generated(given.rows, given.dimensions)

    with folder_of(given.folder) as folder:
        collection = saved(folder, make)
        columns = collection.quantiles()
        packages = (package for name in names for package in ENGINES[name].packages)
        print(environment(*dict.fromkeys(["scann", *packages])))
        print(f"\n### {collection.name}\n", flush=True)
        places = {
            name: built(
                folder / ENGINES[name].packages[0],
                partial(ENGINES[name].make().build, collection, columns),
            )
            for name in names
        }
        if given.build:
            return
        queries_QD = collection.on_one_side(given.queries)
        cells: dict[str, list[str]] = {}
        for name in names:
            with ExitStack() as stack:
                engine = ENGINES[name].make()
                engine.open(collection, columns, places[name], stack)
                cells[name] = []
                for chosen in filters():
                    cell = measured(engine, collection, columns, chosen, queries_QD)
                    print("  ", name, chosen.kind, chosen.share, cell, flush=True)
                    cells[name].append(cell)
    rows = [
        [each.kind, f"{each.share:g}", *(column[number] for column in cells.values())]
        for number, each in enumerate(filters())
    ]
    print("\n" + table(["filter", "allows", *cells], rows))


if __name__ == "__main__":
    main()
