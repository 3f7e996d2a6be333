"""Maps between the vectors of two models: what is fitted, measured, stored and read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scannery.indexer import CorruptError, Distance, NotFoundError, Store, unit_length
from scannery.indexer.manifest import VectorMap, VectorModel
from scannery.indexer.vectors.vector_maps import (
    fitted_maps,
    map_overlap,
    mapped_vectors,
    read_map,
    write_map,
)


def pair(rows: int, dimensions: int, others: int, noise: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors of two models that see the same in 16 directions, each with a mean of its own."""
    random = np.random.default_rng(5)
    meaning_ND = random.standard_normal((rows, 16))
    sides = []
    for width in (dimensions, others):
        basis = np.linalg.qr(random.standard_normal((width, 16)))[0].T
        mean, blur = random.standard_normal(width), noise * random.standard_normal((rows, width))
        sides.append((meaning_ND @ basis + mean + blur).astype(np.float32))
    return sides[0], sides[1]


@pytest.mark.parametrize("others", [24, 40, 64])
def test_a_rotation_with_other_means_is_found(others: int) -> None:
    first_ND, second_NE = pair(200, 40, others)
    forth, back = fitted_maps(first_ND[:100], second_NE[:100], "squared_l2")
    assert np.allclose(mapped_vectors(first_ND[100:], forth, "squared_l2"), second_NE[100:], atol=1e-3)
    assert np.allclose(mapped_vectors(second_NE[100:], back, "squared_l2"), first_ND[100:], atol=1e-3)
    assert map_overlap(forth, first_ND, second_NE, 100, "squared_l2") == 1


def test_by_inner_products_queries_have_no_mean_of_the_other_model() -> None:
    first_ND, second_NE = pair(200, 40, 24)
    distances: tuple[Distance, ...] = ("cosine", "dot")
    for distance in distances:
        forth, _ = fitted_maps(first_ND, second_NE, distance)
        mapped_NE = first_ND @ forth[:-1] + forth[-1]
        assert np.allclose(mapped_NE, second_NE - second_NE.mean(0), atol=1e-3)


def test_overlap_falls_with_noise() -> None:
    overlaps = []
    for noise in (0.0, 0.1, 0.5):
        first_ND, second_NE = map(unit_length, pair(600, 40, 40, noise))
        forth, _ = fitted_maps(first_ND[:400], second_NE[:400], "cosine")
        overlaps.append(map_overlap(forth, first_ND, second_NE, 200, "cosine"))
    assert 1 >= overlaps[0] > overlaps[1] > overlaps[2] > 10 / 600


def test_chance_is_low_and_a_row_is_not_its_own_neighbour() -> None:
    random = np.random.default_rng(1)
    first_ND, second_NE = (
        unit_length(random.standard_normal((500, 16)).astype(np.float32)) for _ in range(2)
    )
    forth, _ = fitted_maps(first_ND[:400], second_NE[:400], "cosine")
    assert map_overlap(forth, first_ND, second_NE, 100, "cosine") < 0.1


def test_equal_vectors_have_a_map() -> None:
    forth, back = fitted_maps(np.ones((5, 3), np.float32), np.ones((5, 4), np.float32), "squared_l2")
    assert np.isfinite(forth).all() and np.isfinite(back).all()
    assert np.allclose(mapped_vectors(np.ones((1, 3), np.float32), forth, "squared_l2"), 1)


def test_a_file_is_checked(tmp_path: Path) -> None:
    store = Store.open(tmp_path, create=True)
    matrix, _ = fitted_maps(*pair(100, 24, 20), "cosine")
    key, size_bytes, sha256 = write_map(store, "talks", matrix)
    sides = [VectorModel(dimensions=width, digest=None, models=()) for width in (24, 20)]
    entry = VectorMap(
        key=key, size_bytes=size_bytes, sha256=sha256, source=sides[0], target=sides[1],
        rows=80, held_out=20, overlap=1.0,
    )  # fmt: skip
    assert store.size(f"talks/{key}") == size_bytes
    assert np.array_equal(read_map(store, "talks", entry), matrix)
    with pytest.raises(CorruptError, match="it is not float32 of shape"):
        read_map(store, "talks", entry.model_copy(update={"target": sides[0]}))
    store.write(f"talks/{key}", b"damaged")
    with pytest.raises(CorruptError, match="SHA-256"):
        read_map(store, "talks", entry)
    store.delete(f"talks/{key}")
    with pytest.raises(NotFoundError):
        read_map(store, "talks", entry)
