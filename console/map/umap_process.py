"""Places vectors in two dimensions by UMAP: `python -m … VECTORS.npy POSITIONS.npy METRIC`.

A process of its own: it is busy for a minute, and its compiled code stays out of the console.
"""

from __future__ import annotations

import os
import sys
import warnings

import numpy as np

__all__: list[str] = []

NEIGHBOURS = 15


def _main(vectors: str, positions: str, metric: str) -> None:
    os.nice(10)
    warnings.filterwarnings("ignore")
    import umap

    vectors_ND = np.load(vectors)
    neighbours = min(NEIGHBOURS, len(vectors_ND) - 1)
    # By the main directions: neighbours in a random start end up far from each other.
    model = umap.UMAP(n_neighbors=neighbours, metric=metric, init="pca", low_memory=True, n_jobs=-1)
    np.save(positions, np.asarray(model.fit_transform(vectors_ND), np.float32))


if __name__ == "__main__":
    _main(*sys.argv[1:])
