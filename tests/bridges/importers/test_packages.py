"""Packages of other systems: those that are older than the extras ask for are not used."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from scannery.bridges.importers.collection import loaded
from scannery.pipelines.errors import MissingPackageError

SYSTEMS = {
    "chroma": ("chromadb", "0.4.24", "chromadb>=1.5", "1.5.0"),
    "faiss": ("faiss", "1.7.4", "faiss-cpu>=1.12", "1.12.0"),
    "lancedb": ("lancedb", "0.9", "lancedb>=0.30", "0.100"),
    "pgvector": ("psycopg", "3.1.20", "psycopg>=3.2", "3.2"),
    "qdrant": ("qdrant_client", "1.9.1", "qdrant-client>=1.12", "1.12.1rc1"),
}


@pytest.mark.parametrize("system", SYSTEMS)
def test_versions_below_the_bound_of_the_extra_are_refused(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, old, bound, new = SYSTEMS[system]
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(__version__=old))
    with pytest.raises(
        MissingPackageError, match=rf"{bound}, and {old} is installed: .*scannery\[import-{system}\]"
    ):
        loaded(module, system=system)
    package = SimpleNamespace(__version__=new)
    monkeypatch.setitem(sys.modules, module, package)
    assert loaded(module, system=system) is package


def test_a_package_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "chromadb", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'scannery\[import-chroma\]'"):
        loaded("chromadb", system="chroma")
