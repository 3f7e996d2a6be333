"""What all tests share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# How long an example takes is the machine's doing, and no test's business.
settings.register_profile("scannery", deadline=None)
settings.load_profile("scannery")


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep cached segments and temporary files in folders of this run; child processes inherit that.

    Processes are killed in many tests, and what they leave must not stay with the user.
    """
    temporary = str(tmp_path_factory.mktemp("tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCANNERY_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("TMPDIR", temporary)
        patch.setattr(tempfile, "tempdir", temporary)
        yield


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the indexes `library` and `flat` of tests/served.py."""
    from tests.served import make_library_store

    return make_library_store(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the index `texts` of tests/served.py."""
    from tests.served import make_text_store

    return make_text_store(tmp_path_factory.mktemp("texts"))
