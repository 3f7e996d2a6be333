"""Searches by words with a typing error in one word of each query.

    python -m benchmarks.typing_errors [lexical] [hybrid] [--on cranfield,cisi,xquad-en,…]

nDCG@10 of clean queries, and of the same with an error each, with `typos=False` and by default; and the median time of
a search of each kind, embedded, in turns. `lexical` has eleven collections in nine languages, `hybrid` three in
English. The word is chosen at random among those of four letters and more without digits. Errors:

- `keyboard`: a letter is that of a neighbouring key (of a QWERTY keyboard; of other scripts, any letter of the word);
- `omission`: a letter is left out;
- `transposition`: two letters are swapped;
- `phonetic`: letters that sound alike ("ph" and "f"; else a letter is doubled).

The first letter stays. Nothing is tuned on the judgements.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import regex

import scannery
from benchmarks.collections import LANGUAGES, Collection
from benchmarks.harness import run_cases, table
from benchmarks.quality import WHOLE, chosen_of, difference, evaluated, indexed, records_of, searching
from scannery.client.request.queries import Mode
from scannery.evaluation.measures import MAIN_MEASURE

LEXICAL = (
    "cranfield",
    "cisi",
    *(f"xquad-{code}" for code in ("en", "de", "es", "ru", "el", "tr", "ar", "hi", "zh")),
)
HYBRID = ("cranfield", "cisi", "xquad-en")
WORD = regex.compile(r"(?<![\w@#./-])\p{L}[\p{L}\p{M}]{3,}(?![\w@/-])")
ROWS_OF_KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
ALIKE = (
    ("ph", "f"), ("ie", "ei"), ("ei", "ie"), ("ck", "k"), ("ss", "s"), ("tt", "t"), ("ll", "l"), ("tion", "sion"),
    ("ou", "u"), ("ea", "ee"), ("c", "k"), ("s", "z"), ("y", "i"), ("e", "a"), ("i", "e"), ("a", "e"),
)  # fmt: skip
TIMED_QUERIES = 200


def keyboard(word: str, rng: random.Random) -> str:
    at = rng.randrange(1, len(word))
    row = next((row for row in ROWS_OF_KEYS if word[at] in row), word)
    place = row.index(word[at])
    return (
        word[:at]
        + rng.choice(row[max(place - 1, 0) : place] + row[place + 1 : place + 2] or word)
        + word[at + 1 :]
    )


def omission(word: str, rng: random.Random) -> str:
    at = rng.randrange(1, len(word))
    return word[:at] + word[at + 1 :]


def transposition(word: str, rng: random.Random) -> str:
    at = rng.randrange(1, len(word) - 1)
    return word[:at] + word[at + 1] + word[at] + word[at + 2 :]


def phonetic(word: str, rng: random.Random) -> str:
    for letters, others in rng.sample(ALIKE, len(ALIKE)):
        if (at := word.find(letters, 1)) > 0:
            return word[:at] + others + word[at + len(letters) :]
    at = rng.randrange(1, len(word))
    return word[:at] + word[at] + word[at:]


ERRORS = {each.__name__: each for each in (keyboard, omission, transposition, phonetic)}


def mistyped(collection: Collection, error: str) -> Collection:
    """Return a collection whose queries have an error in one word, where they have a word that may."""
    rng = random.Random(1)
    queries = {}
    for name, text in collection.queries.items():
        words = list(WORD.finditer(text))
        queries[name] = text
        if words:
            word = rng.choice(words)
            queries[name] = text[: word.start()] + ERRORS[error](word[0].lower(), rng) + text[word.end() :]
    return replace(collection, queries=queries)


def times_us(
    index: scannery.Index, kinds: Mapping[str, tuple[Sequence[str], bool]], mode: Mode
) -> dict[str, float]:
    """Return the median time of a search of each kind: queries, and whether errors are forgiven."""
    spent: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(TIMED_QUERIES):
        for kind, (queries, typos) in kinds.items():
            started = time.perf_counter()
            index.search(queries[number % len(queries)], 10, mode=mode, typos=typos, fields=["title"])
            spent[kind].append(1e6 * (time.perf_counter() - started))
    return {kind: median(each) for kind, each in spent.items()}


def lexical(given: argparse.Namespace, folder: Path) -> None:
    compare(given, folder, "lexical", LEXICAL)


def hybrid(given: argparse.Namespace, folder: Path) -> None:
    compare(given, folder, "hybrid", HYBRID)


def compare(given: argparse.Namespace, folder: Path, mode: Mode, names: Sequence[str]) -> None:
    rows: list[list[str]] = []
    clean_rows: list[list[str]] = []
    for name, collection in chosen_of(given, names):
        spec: dict[str, Any] = {"source": WHOLE, "lexical": {"language": LANGUAGES.get(name, "english")}}
        if mode == "lexical":
            spec |= {"vectors": "optional", "encoder": None}
        index = indexed(folder / f"{mode}-{name}", records_of(collection), spec)
        strict, forgiving = (searching(index, mode=mode, typos=typos) for typos in (False, True))
        clean, default = (
            result.values[MAIN_MEASURE]
            for result in evaluated(collection, {"strict": strict, "forgiving": forgiving})
        )
        clean_rows.append(
            [collection.name, f"{clean.mean():.4f}", f"{default.mean():.4f}", difference(default, clean),
             f"{np.mean(default != clean):.1%}"]
        )  # fmt: skip
        for error in ERRORS:
            wrong = mistyped(collection, error)
            off, on = (
                result.values[MAIN_MEASURE]
                for result in evaluated(wrong, {"strict": strict, "forgiving": forgiving})
            )
            texts, wrong_texts = (list(each.queries.values()) for each in (collection, wrong))
            took = times_us(index, {"clean": (texts, False), "wrong": (wrong_texts, True)}, mode)
            rows.append(
                [collection.name, error, f"{clean.mean():.4f}", f"{off.mean():.4f}", f"{on.mean():.4f}",
                 f"{off.mean() / clean.mean() - 1:+.1%}", f"{on.mean() / clean.mean() - 1:+.1%}",
                 f"{took['clean']:.0f}", f"{took['wrong']:.0f}", f"{took['wrong'] / took['clean']:.2f}"]
            )  # fmt: skip
            print(*rows[-1], sep=" · ", flush=True)
    header = ["clean queries", "typos=False", "default", "difference", "queries that changed"]
    print("\n" + table(header, clean_rows))
    header = [
        "collection", "error", "clean", "typos=False", "default", "loss without", "loss", "µs clean", "µs", "ratio",
    ]  # fmt: skip
    print("\n" + table(header, rows))


def main() -> None:
    run_cases(__doc__, {"lexical": lexical, "hybrid": hybrid}, "sentence-transformers torch scann", on="")


if __name__ == "__main__":
    main()
