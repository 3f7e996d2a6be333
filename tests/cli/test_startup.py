"""What the commands import: names of modules are guarded, since times depend on the machine (benchmarks/startup.py)."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest

from scannery.cli.main import main
from scannery.pipelines import build
from tests.startup import imported_modules

pytestmark = pytest.mark.system

DIMENSIONS = 8
SEARCH = (
    "import sys; from scannery.cli.main import main; status = main(sys.argv[1:]); assert status == 0, status"
)

NEEDLESS = {
    "torch", "tokenizers", "apache_beam", "scann", "scipy.linalg", "uvloop", "rich.table", "scannery.embed.encoder",
    "scannery.pipelines", "scannery.client.aio", "scannery.serving.process", "scannery.serving.transport",
}  # fmt: skip


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("startup")
    records = [{"id": f"d{row}", "vector": [float(row == i) for i in range(DIMENSIONS)]} for row in range(8)]
    (folder / "a.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    spec = {"index": "vectors", "source": {"vector": "vector"}}
    build(spec, [str(folder / "a.jsonl")], str(folder / "store"))
    return folder / "store"


def test_a_search_by_vector_in_this_process_imports_no_encoder_no_server_and_no_blas(store):
    vector = json.dumps([1.0] * DIMENSIONS)
    loaded = imported_modules(SEARCH, "search", "-i", "vectors", "-s", str(store), "--vector", vector)
    assert "numba" in loaded
    assert not loaded & NEEDLESS


def test_a_client_over_http_imports_no_grpc_and_no_engine():
    loaded = imported_modules("import scannery; scannery.connect('http://127.0.0.1:9')")
    assert not loaded & {"grpc", "pyarrow", "numba", "pydantic", "scannery.serving", "scannery.client.aio"}


def test_what_tunes_builds_imports_numba_without_blas_and_scipy_is_left_as_it_was():
    code = (
        "from scannery.indexer.tuning.tune_process import warm; warm()\n"
        "import sys; assert 'numba.np.arraymath' in sys.modules and 'scipy.linalg' not in sys.modules\n"
        "import scipy.linalg.cython_blas"
    )
    assert "scipy.linalg.cython_blas" in imported_modules(code)


def test_a_process_that_leaves_imports_out_has_arrow_without_pandas_and_pandas_is_left_as_it_was():
    pytest.importorskip("pandas")
    code = (
        "from scannery.indexer.local.needless_imports import leave_needless_imports_out as leave; leave()\n"
        "import sys, pyarrow as pa; assert pa.array([1, None]).to_pylist() == [1, None]\n"
        "assert 'pandas' not in sys.modules and 'numba' not in sys.modules\n"
        "import pandas; assert len(pandas.DataFrame({'a': [1]})) == 1"
    )
    assert "pandas" in imported_modules(code)


def test_a_program_that_uses_the_sdk_keeps_both():
    pytest.importorskip("pandas")
    code = (
        "import pandas, pyarrow as pa; assert pa.array(pandas.Series([1.0, None])).null_count == 1\n"
        "import scannery.indexer.kernels.fused, scipy.linalg.cython_blas, numba, numpy as np\n"
        "assert numba.njit(lambda a: a @ a)(np.eye(2))[0, 0] == 1"
    )
    assert "scipy.linalg" in imported_modules(code)


def test_a_small_build_imports_no_kernels(store, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "a", "vector": [1.0, 0.0]}\n')
    (tmp_path / "spec.yaml").write_text("index: small\nsource: {vector: vector}\n")
    arguments = [
        str(tmp_path / "spec.yaml"), "--input", str(tmp_path / "a.jsonl"), "-s", str(tmp_path / "store"),
    ]  # fmt: skip
    loaded = imported_modules(SEARCH, "build", *arguments)
    assert "pyarrow" in loaded
    assert not loaded & {"numba", "pandas", "torch", "apache_beam"}


def test_a_brief_command_collects_no_garbage_and_turns_collection_on_again(store, monkeypatch, capsys):
    from scannery.cli.commands import search

    collects = []
    monkeypatch.setattr(search, "print_json", lambda _: collects.append(gc.isenabled()))
    vector = json.dumps([1.0] * DIMENSIONS)
    assert main(["search", "-i", "vectors", "-s", str(store), "--vector", vector, "--json"]) == 0
    assert collects == [False]
    assert gc.isenabled()
    assert main(["search", "-i", "absent", "-s", str(store), "--vector", vector, "--json"]) == 3
    assert gc.isenabled()
