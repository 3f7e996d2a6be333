"""Passages of an index that two encoders are compared on, and small indexes of them.

To embed a large index anew for each candidate would take hours. So a sample has whole documents that judged queries
look for, the passages that the index finds best for these queries today, and others at random. Both encoders are
searched in the same sample, in indexes as builds make them: with a weight of hybrid search measured for each.

Shapes: N rows of the corpus, S rows of the sample, Q queries, D dimensions.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.client import Index, connect
from scannery.indexer.spec.spec import EncoderSpec, IndexSpec
from scannery.pipelines import build
from scannery.runtime.search_modes import Mode
from scannery.training.judged import Judged
from scannery.training.pairs.corpus import Corpus

__all__ = ["Sample", "indexed_sample", "relevant_documents", "sampled", "subset"]

JUDGED_SHARE, GUARD_SHARE = 0.5, 0.25
"""Shares of a sample that documents of the judged queries, and of all guards together, have at most."""
BEST = 200
"""Passages that each mode finds best for a query, of which those are taken that fit."""
BEST_SHARE = 0.75
"""Share of the remaining passages that these have at most; the others are drawn at random."""
NAME = "sample"
TIMEOUT_S = 600.0
MODES: tuple[Mode, ...] = ("dense", "lexical")


@dataclass(frozen=True, eq=False)
class Sample:
    """Passages, and the queries that are asked of them."""

    corpus: Corpus
    rows_S: np.ndarray
    """Rows of the corpus, int64, ascending."""
    target: Judged
    """Judged queries whose documents are in the sample."""
    guards: Mapping[str, Judged]
    """The same of each guard."""

    def texts(self) -> list[str]:
        """Return what is embedded of each passage."""
        return [self.corpus.passage(row) for row in self.rows_S.tolist()]

    def vectors(self) -> np.ndarray:
        """Return the vectors of the index, float32 (S, D)."""
        return self.corpus.vectors(self.rows_S)


def sampled(
    index: Index, corpus: Corpus, target: Judged, guards: Mapping[str, Judged], *, limit: int, seed: int
) -> Sample:
    """Return a sample of the passages of an index; all of them, with all queries, if there are no more than `limit`.

    Args:
        index: that is searched for the passages it finds best.
        corpus: its passages.
        target: judged queries; of a large index, so many at random as fit with their documents.
        guards: the same by name.
        limit: of the passages.
        seed: of all that is random.

    """
    if len(corpus) <= limit:
        return Sample(corpus, np.arange(len(corpus)), target, guards)
    random = np.random.default_rng(seed)
    chosen_N = np.zeros(len(corpus), bool)
    target = _fitting(corpus, target, chosen_N, int(JUDGED_SHARE * limit), random)
    allowance = int(GUARD_SHARE * limit) // max(1, len(guards))
    guards = {name: _fitting(corpus, each, chosen_N, allowance, random) for name, each in guards.items()}
    remaining = limit - int(chosen_N.sum())
    best = (row for row in _best_rows(index, corpus, [target, *guards.values()]) if not chosen_N[row])
    chosen_N[[*islice(dict.fromkeys(best), int(BEST_SHARE * remaining))]] = True
    unchosen = random.permutation(np.flatnonzero(~chosen_N))
    chosen_N[unchosen[: limit - int(chosen_N.sum())]] = True
    return Sample(corpus, np.flatnonzero(chosen_N), target, guards)


def _fitting(
    corpus: Corpus, judged: Judged, chosen_N: np.ndarray, allowance: int, random: np.random.Generator
) -> Judged:
    """Return those of some queries, at random, whose documents have no more rows together; choose the rows."""
    names, kept = [*judged.texts], set()
    for number in random.permutation(len(names)).tolist():
        documents = relevant_documents(corpus, judged, names[number])
        rows = [row for document in documents for row in corpus.rows_of(document) if not chosen_N[row]]
        if documents and len(rows) <= allowance:
            chosen_N[rows] = True
            allowance -= len(rows)
            kept.add(names[number])
    return subset(judged, kept)


def subset(judged: Judged, names: Collection[str]) -> Judged:
    """Return some of the judged queries."""
    texts = {name: text for name, text in judged.texts.items() if name in names}
    return replace(
        judged,
        texts=texts,
        judgements={name: judged.judgements[name] for name in texts},
        current_Q=judged.current_Q[[name in texts for name in judged.texts]],
    )


def relevant_documents(corpus: Corpus, judged: Judged, name: str) -> list[int]:
    """Return the numbers of the documents that answer a query, or whose passages do."""
    keys = judged.relevant[name]
    if not judged.passages:
        return [corpus.numbers[key] for key in keys if key in corpus.numbers]
    rows = [corpus.row_numbers[key] for key in keys if key in corpus.row_numbers]
    return sorted({int(corpus.documents_N[row]) for row in rows})


def _best_rows(index: Index, corpus: Corpus, sets: Sequence[Judged]) -> Iterator[int]:
    """Yield the rows that searches find, the best of all queries first."""
    texts = [text for judged in sets for text in judged.texts.values()]
    modes = MODES if corpus.index.spec.lexical is not None else MODES[:1]
    rankings = [
        [hit.id for hit in index.search(text, BEST, fields=[], mode=mode)] for text in texts for mode in modes
    ]
    for ids in zip_longest(*rankings):
        yield from (corpus.row_numbers[name] for name in ids if name in corpus.row_numbers)


@contextmanager
def indexed_sample(sample: Sample, vectors_SD: np.ndarray, encoder: EncoderSpec) -> Iterator[Index]:
    """Give an index of a sample, whose searches by default are those that a build of these passages makes.

    Args:
        sample: the passages.
        vectors_SD: of them, float32.
        encoder: that made them, as a spec names it; it encodes queries.

    Raises:
        EmbedError: the encoder cannot be loaded.

    """
    table = sample.corpus.table.take(pa.array(sample.rows_S))
    components = pa.array(np.ascontiguousarray(vectors_SD, np.float32).ravel())
    vectors = pa.FixedSizeListArray.from_arrays(components, vectors_SD.shape[1])
    with tempfile.TemporaryDirectory(prefix="scannery-sample-") as folder:
        rows, store = Path(folder, "rows.parquet"), Path(folder, "store")
        pq.write_table(table.append_column(_VECTOR, vectors), rows)
        build(_spec(sample.corpus.index.spec, encoder), [str(rows)], str(store), mode="full")
        with connect(store, timeout_s=TIMEOUT_S) as client:
            yield client.index(NAME)


_VECTOR = "embedding"


def _spec(spec: IndexSpec, encoder: EncoderSpec) -> dict[str, Any]:
    """Return the spec of an index of passages with vectors, which is searched like that with a spec."""
    fields = ("id", "document_id", "title", "text")
    return {
        "index": NAME,
        "source": {**dict(zip(fields, fields, strict=True)), "vector": _VECTOR},
        "encoder": encoder.model_dump(mode="json"),
        **spec.model_dump(mode="json", include={"distance", "lexical", "search"}),
    }
