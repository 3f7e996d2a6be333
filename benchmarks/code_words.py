"""What the additional terms of analyser 4, for words of code, change in lexical search on judged collections.

    python -m benchmarks.code_words [cranfield] [cisi] [xquad-en] [stackfaq] …

nDCG@10 of both versions with the postings and scores of the product, and megabytes of text that the analyser reads in a
second of processor time.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import pyarrow as pa

from benchmarks.collections import LANGUAGES, MORE_COLLECTIONS, Collection
from benchmarks.report import environment, table
from scannery.evaluation.measures import (
    MAIN_MEASURE,
    measured_values,
    paired_bootstrap,
    parse_measures,
)
from scannery.indexer import Analyser, LexicalSpec, Postings, corpus_statistics, score_rows
from scannery.indexer.lexical.bm25 import invert, term_columns

K = 10
VERSIONS = (3, 4)
DEFAULT = ("cranfield", "cisi", "xquad-en", "stackfaq")


def ndcg(collection: Collection, spec: LexicalSpec) -> np.ndarray:
    """Return nDCG@10 of each query."""
    analyser = Analyser(spec)
    names, titles, texts = zip(*collection.documents, strict=True)
    postings = Postings(invert(pa.table(term_columns(pa.table({"title": titles, "text": texts}), spec))))
    found = []
    for name in collection.judgements:
        terms = analyser.query_terms(collection.queries[name])
        corpus = corpus_statistics([postings], list(terms))
        weights = {
            term: corpus.idf(term) * weight for term, weight in terms.items() if term in corpus.frequencies
        }
        rows, scores = score_rows(postings, weights, corpus.average_length)
        found.append([names[rows[place]] for place in np.lexsort((rows, -scores))[:K]])
    return measured_values(parse_measures([MAIN_MEASURE]), collection.judgements, found)[MAIN_MEASURE]


def speed(collection: Collection, spec: LexicalSpec) -> float:
    """Return the megabytes of text a second of processor time, once the analyser has met the words."""
    analyser = Analyser(spec)
    texts = [text for _, _, text in collection.documents]
    for text in texts:
        analyser.terms(text)
    started = time.process_time()
    for text in texts:
        analyser.terms(text)
    return sum(map(len, texts)) / 1e6 / (time.process_time() - started)


def row(name: str) -> list[str]:
    collection = MORE_COLLECTIONS[name]()
    specs = [
        LexicalSpec.model_validate({"language": LANGUAGES.get(name, "english"), "analyser": version})
        for version in VERSIONS
    ]
    old, new = (ndcg(collection, spec) for spec in specs)
    difference = paired_bootstrap(new, old)
    return [
        collection.name,
        f"{old.mean():.5f}",
        f"{new.mean():.5f}",
        f"{difference.mean:+.5f} ({difference.low:+.4f} to {difference.high:+.4f})",
        f"{np.mean(old != new):.1%}",
        *(f"{speed(collection, spec):.1f}" for spec in specs),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collections", nargs="*", default=DEFAULT)
    arguments = parser.parse_args()
    print(environment(), end="\n\n")
    header = [
        "collection",
        "analyser 3",
        "analyser 4",
        "difference",
        "queries that changed",
        "MB/s, 3",
        "MB/s, 4",
    ]
    print(table(header, [row(name) for name in arguments.collections]))


if __name__ == "__main__":
    main()
