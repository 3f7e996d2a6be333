"""Vector instructions: what ScaNN uses, and that it finds the same by each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from scannery.indexer.scann.instructions import (
    SWITCH,
    cpu_features,
    use_vector_instructions,
    used_instructions,
)

SCRIPT = """
import json, sys
import numpy as np
from pathlib import Path
from scannery.indexer.scann.instructions import used_instructions
from scannery.indexer.scann.search import load_searcher
from scannery.indexer.vectors.quantized_vectors import ScoredVectors
vectors_ND, queries_QD = np.load(sys.argv[1] + "/vectors.npy"), np.load(sys.argv[1] + "/queries.npy")
vectors_ND.setflags(write=False)
searcher = load_searcher(Path(sys.argv[1]) / "scann", ScoredVectors(vectors_ND), "dot")
found = []
for queries in (1, 5, 40, 80):
    found += searcher.search(queries_QD[:queries], 10, rescore=40, leaves=5)[0].tolist()
print(json.dumps([used_instructions(), found]))
"""


def test_features_are_those_of_the_first_processor(tmp_path: Path) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text("processor\t: 0\nflags\t\t: fpu avx avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    assert cpu_features(file) == {"fpu", "avx", "avx2"}
    assert cpu_features(tmp_path / "none") == frozenset()


@pytest.mark.skipif("avx2" not in cpu_features(), reason="the processor has no AVX2")
def test_scann_uses_them() -> None:
    use_vector_instructions()
    expected = "avx512" if "avx512vl" in cpu_features() else "avx2"
    assert used_instructions() == os.environ.get(SWITCH, expected)


@pytest.mark.system
@pytest.mark.skipif("avx2" not in cpu_features(), reason="the processor has no AVX2")
def test_each_finds_the_same(tmp_path: Path) -> None:
    from scann.scann_ops.py import scann_ops_pybind

    generator = np.random.default_rng(0)
    vectors_ND = generator.standard_normal((2000, 30)).astype(np.float32)
    np.save(tmp_path / "vectors.npy", vectors_ND)
    np.save(tmp_path / "queries.npy", generator.standard_normal((80, 30)).astype(np.float32))
    builder = scann_ops_pybind.builder(vectors_ND, 10, "dot_product").tree(20, 2, soar_lambda=1.5)
    built = builder.score_ah(2, anisotropic_quantization_threshold=0.2).set_n_training_threads(1).build()
    (tmp_path / "scann").mkdir()
    built.serialize(str(tmp_path / "scann"), relative_path=True)
    results = {}
    for most in ("sse4", "avx2", ""):
        output = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(tmp_path)],
            env=os.environ | {SWITCH: most},
            stdout=subprocess.PIPE,
            check=True,
            timeout=60,
        ).stdout
        used, found = json.loads(output)
        results[used] = found
    assert {"sse4", "avx2"} <= results.keys()
    hits = {used: np.array(found) for used, found in results.items()}
    for used, rows_QK in hits.items():
        # A leaf more or less can be searched, since the distances of centres are added up in another order.
        same = [
            len(set(a) & set(b)) / 10 for a, b in zip(hits["sse4"].tolist(), rows_QK.tolist(), strict=True)
        ]
        assert np.mean(same) > 0.98, used
