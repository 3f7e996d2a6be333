"""How often a change of what users ask for is seen, and how often one is seen that there is not.

    python -m benchmarks.drift [--draws 100]

Of the summaries of Hacker Public Radio, encoded as queries by MiniLM, 700 are former queries, and others are new; in
some rows a fifth of the new ones are queries of another collection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.collections import MORE_COLLECTIONS, podcast_speech
from benchmarks.harness import environment, options, table
from scannery.embed import Encoder
from scannery.evaluation.traffic.drift import drift_of

__all__ = ["main"]

FORMER = 700
SIZES = (500, 625)
COLLECTIONS = ("cranfield", "xquad-en", "stackfaq")


def main() -> None:
    given = options(__doc__, draws=100)
    print(environment("sentence-transformers", "numpy"))
    encoder = Encoder.load("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
    queries_ND = encoder.encode_queries([*podcast_speech().queries.values()])
    rows: list[Sequence[object]] = [
        ("the same queries", 500, alarms(queries_ND, queries_ND[:0], 500, given.draws))
    ]
    for name in COLLECTIONS:
        foreign_ND = encoder.encode_queries([*MORE_COLLECTIONS[name]().queries.values()])
        rows += [
            (f"a fifth of {name}", size, alarms(queries_ND, foreign_ND, size, given.draws)) for size in SIZES
        ]
    print(table(("new queries are", "number", f"alarms in {given.draws}"), rows))


def alarms(queries_ND: np.ndarray, foreign_ND: np.ndarray, size: int, draws: int) -> int:
    """Return in how many draws users seem to ask for other things."""
    pairs = drawn(queries_ND, foreign_ND, size, draws)
    return sum(drift_of(*pair, seed=seed).has_drifted for seed, pair in enumerate(pairs))


def drawn(
    queries_ND: np.ndarray, foreign_ND: np.ndarray, size: int, draws: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield former and new queries of each draw."""
    foreign = size // 5 if len(foreign_ND) else 0
    for seed in range(draws):
        random = np.random.default_rng(seed)
        order = random.permutation(len(queries_ND))
        new = np.concatenate(
            [
                queries_ND[order[FORMER : FORMER + size - foreign]],
                foreign_ND[random.permutation(len(foreign_ND))[:foreign]],
            ]
        )
        yield queries_ND[order[:FORMER]], new[random.permutation(len(new))]


if __name__ == "__main__":
    main()
