"""Maps between the vectors of two models: fitted to datapoints that have both, measured, stored, and read.

A map is the orthogonal Procrustes one after both means are taken away, scaled: the rotation that brings the vectors of
one model nearest to those of the other. It has no setting. By inner products the mean of the other model stays away: it
would add the same preference for some datapoints to all queries, which costs up to half of nDCG@10
(docs/benchmarks/vector-maps.md).

P. Schönemann, A generalized solution of the orthogonal Procrustes problem, Psychometrika 31 (1966).

Shapes: N datapoints, D and E dimensions of the two models.
"""

from __future__ import annotations

import hashlib
import io

import numpy as np

from scannery.indexer.errors import CorruptError
from scannery.indexer.manifest import VectorMap
from scannery.indexer.spec.spec import Distance
from scannery.indexer.store.object_store import Store
from scannery.indexer.vectors.arrays import read_array
from scannery.indexer.vectors.exact_search import exact_search, search_ready

__all__ = ["K", "fitted_maps", "map_overlap", "mapped_vectors", "read_map", "write_map"]

K = 10
"""Neighbours by which a map is measured."""


def fitted_maps(
    first_ND: np.ndarray, second_NE: np.ndarray, distance: Distance
) -> tuple[np.ndarray, np.ndarray]:
    """Return the matrices from the first model to the second one, float32 (D + 1, E), and back, (E + 1, D).

    Args:
        first_ND: vectors of the first model as they are searched, float32, of at least two datapoints.
        second_NE: of the second one, of the same datapoints.
        distance: of both.

    """
    mean_D, mean_E = first_ND.mean(0, dtype=np.float64), second_NE.mean(0, dtype=np.float64)
    centred_ND, centred_NE = first_ND - mean_D, second_NE - mean_E
    left_DR, values_R, right_RE = np.linalg.svd(centred_ND.T @ centred_NE, full_matrices=False)
    rotation_DE = left_DR @ right_RE

    def affine(rotation: np.ndarray, centred: np.ndarray, mean: np.ndarray, onto: np.ndarray) -> np.ndarray:
        # All vectors may be equal: then the linear part is 0.
        linear = values_R.sum() / max(float((centred**2).sum()), np.finfo(np.float64).tiny) * rotation
        offset = onto if distance == "squared_l2" else 0 * onto
        return np.vstack([linear, offset - mean @ linear]).astype(np.float32)

    return (
        affine(rotation_DE, centred_ND, mean_D, mean_E),
        affine(rotation_DE.T, centred_NE, mean_E, mean_D),
    )


def mapped_vectors(vectors_ND: np.ndarray, matrix: np.ndarray, distance: Distance) -> np.ndarray:
    """Return vectors as those of the other model are searched, float32 (N, E).

    Args:
        vectors_ND: as vectors of their model are searched, float32.
        matrix: float32 (D + 1, E).
        distance: of both.

    """
    return search_ready(vectors_ND @ matrix[:-1] + matrix[-1], distance)


def map_overlap(
    matrix: np.ndarray, source_ND: np.ndarray, target_NE: np.ndarray, held_out: int, distance: Distance
) -> float:
    """Return the share of the K nearest of held-out vectors that their mapped ones have, too, 0 to 1.

    Args:
        matrix: float32 (D + 1, E).
        source_ND: vectors of the model that is mapped, as they are searched, float32.
        target_NE: vectors of the other one of the same datapoints.
        held_out: number of datapoints at the end that the map was not fitted to.
        distance: of both.

    """
    truth_NK = _nearest(target_NE, target_NE[-held_out:], distance)
    mapped_NK = _nearest(target_NE, mapped_vectors(source_ND[-held_out:], matrix, distance), distance)
    return float(
        np.mean([np.isin(true_K, rows_K).mean() for true_K, rows_K in zip(truth_NK, mapped_NK, strict=True)])
    )


def _nearest(vectors_NE: np.ndarray, queries_QE: np.ndarray, distance: Distance) -> np.ndarray:
    """Return the K nearest rows of the last rows, without themselves, int64 (Q, K), fewer where there are fewer."""
    rows, queries = len(vectors_NE), len(queries_QE)
    found_QK, _ = exact_search(vectors_NE, queries_QE, min(K + 1, rows), distance)
    own_Q1 = np.arange(rows - queries, rows)[:, None]
    # Where a row is not among its own nearest ones, the last of them goes.
    order_QK = np.argsort(found_QK == own_Q1, axis=1, kind="stable")
    nearest_QK: np.ndarray = np.take_along_axis(found_QK, order_QK, 1)[:, : max(1, min(K, rows - 1))]
    return nearest_QK


def write_map(store: Store, index: str, matrix: np.ndarray) -> tuple[str, int, str]:
    """Store a matrix, and return its key relative to the index folder, its size in bytes, and its SHA-256."""
    buffer = io.BytesIO()
    np.save(buffer, matrix, allow_pickle=False)
    data = buffer.getvalue()
    sha256 = hashlib.sha256(data).hexdigest()
    key = f"maps/{sha256}.npy"
    store.write(f"{index}/{key}", data)
    return key, len(data), sha256


def read_map(store: Store, index: str, entry: VectorMap) -> np.ndarray:
    """Return the matrix of a map, float32 (D + 1, E).

    Raises:
        NotFoundError: the file is missing.
        CorruptError: its content does not match its hash, or the manifest.

    """
    data = store.read(f"{index}/{entry.key}")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CorruptError(f"{index}/{entry.key} is damaged: its SHA-256 is not the one in the manifest")
    matrix = read_array(io.BytesIO(data), entry.key)
    shape = (entry.source.dimensions + 1, entry.target.dimensions)
    if matrix.shape != shape or matrix.dtype != np.float32:
        raise CorruptError(f"{index}/{entry.key} is damaged: it is not float32 of shape {shape}")
    return matrix
