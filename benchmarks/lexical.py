"""Lexical search by versions of the analyser, with split compounds, and questions typed without accents, on XQuAD-R.

    python -m benchmarks.lexical [--languages de,zh] [--dictionary FILE]

Relevant is the one sentence that holds the answer; BM25 by bm25s with the terms of our analyser, nDCG@10.
"""

from __future__ import annotations

import argparse
import logging
import time
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path

import bm25s
import numpy as np

from benchmarks.collections import Collection, xquad_r
from benchmarks.report import environment, table
from scannery.evaluation.measures import paired_bootstrap
from scannery.indexer import Analyser, LexicalSpec
from scannery.indexer.spec.spec import Language
from scannery.pipelines.planning.build_plan import learned_compounds

K = 10
LANGUAGES: dict[str, Language] = {
    "ar": "arabic", "de": "german", "el": "greek", "en": "english", "es": "spanish", "hi": "hindi", "ru": "russian",
    "th": "none", "tr": "turkish", "vi": "none", "zh": "none",
}  # fmt: skip
UNSPACED = frozenset({"th", "zh"})
ACCENTED = frozenset({"de", "el", "es", "tr", "vi"})
Terms = Callable[[str], list[str]]


def without_accents(text: str) -> str:
    """Return a text as it is typed on a keyboard without accents."""
    letters = (char for char in unicodedata.normalize("NFD", text) if not unicodedata.combining(char))
    return unicodedata.normalize("NFC", "".join(letters)).replace("ı", "i").replace("đ", "d")


def ndcg(collection: Collection, terms: Terms, asked: Callable[[str], str] = str) -> np.ndarray:
    """Return nDCG@10 of each question; one sentence is relevant to it."""
    engine = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    engine.index([terms(text) for _, _, text in collection.documents], show_progress=False)
    gains = []
    for name, question in collection.queries.items():
        rows, scores = engine.retrieve([terms(asked(question))], k=K, show_progress=False)
        relevant = collection.judgements[name]
        ranks = [
            rank
            for rank, (row, score) in enumerate(zip(rows[0].tolist(), scores[0].tolist(), strict=True))
            if score > 0 and collection.documents[row][0] in relevant
        ]
        gains.append(1 / np.log2(2 + ranks[0]) if ranks else 0.0)
    return np.array(gains)


def row(code: str, language: Language) -> list[str]:
    collection = xquad_r(code)
    old, new = (Analyser(LexicalSpec(language=language, analyser=version)).terms for version in (2, 3))
    cells = [ndcg(collection, old), ndcg(collection, new)]
    if code in ACCENTED:
        cells += [ndcg(collection, terms, without_accents) for terms in (old, new)]
    return [code, *(f"{cell.mean():.4f}" for cell in cells), *[""] * (4 - len(cells))]


def compounds_row(code: str, language: Language, dictionary: Sequence[str]) -> list[str]:
    """Return what splitting compounds changes: words learned from the sentences, and those with a dictionary."""
    collection, spec = xquad_r(code), LexicalSpec(language=language, analyser=3)
    texts = [text for _, _, text in collection.documents]
    whole = ndcg(collection, Analyser(spec).terms)
    cells = [f"{whole.mean():.4f}"]
    for words in ((), dictionary) if dictionary else ((),):
        started = time.process_time()
        lines = learned_compounds(texts, spec, words)
        learning_s = time.process_time() - started
        split = ndcg(collection, Analyser(spec.model_copy(update={"compounds": lines})).terms)
        difference = paired_bootstrap(split, whole)
        cells += [
            str(len(" ".join(lines).split())),
            f"{split.mean():.4f}",
            f"{difference.mean:+.4f} ({difference.low:+.4f} to {difference.high:+.4f})",
            f"{learning_s:.2f}",
        ]
    return [code, *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--languages", default=",".join(LANGUAGES))
    parser.add_argument("--dictionary", type=Path, help="a word list, for the compounds of these languages")
    arguments = parser.parse_args()
    logging.getLogger("bm25s").setLevel(logging.WARNING)
    print(environment("bm25s"), end="\n\n")
    header = ["language", "analyser 2", "analyser 3", "2, no accents typed", "3, no accents typed"]
    codes = arguments.languages.split(",")
    print(table(header, [row(code, LANGUAGES[code]) for code in codes]), end="\n\n")
    dictionary = arguments.dictionary.read_text(encoding="utf-8").splitlines() if arguments.dictionary else []
    split = ["words", "split", "difference", "s to learn"] * (2 if dictionary else 1)
    spaced = [code for code in codes if code not in UNSPACED]
    rows = [compounds_row(code, LANGUAGES[code], dictionary) for code in spaced]
    print(table(["language", "whole", *split], rows))


if __name__ == "__main__":
    main()
