"""The engine without a server."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from grpc import StatusCode

from scannery.indexer import NotFoundError
from scannery.runtime.errors import ClosedError, DeadlineError, UnknownIndexError
from scannery.serving.embedded import open_embedded, status_of
from scannery.v1 import search_pb2
from tests.served import DIMENSIONS

SEARCH = "/scannery.v1.SearchService/Search"


def request(index: str = "library") -> search_pb2.SearchRequest:
    asked = search_pb2.SearchRequest(index=index)
    asked.query.vector.packed = np.ones(DIMENSIONS, np.float32).tobytes()
    return asked


def test_it_answers_what_the_contract_says_until_it_is_closed(library: Path) -> None:
    engine = open_embedded(library)
    response = engine.call(SEARCH, request(), 60)
    assert isinstance(response, search_pb2.SearchResponse)
    assert len(response.hits) == 10
    with pytest.raises(UnknownIndexError) as caught:
        engine.call(SEARCH, request("nobody"), 60)
    code, message, detail = status_of(caught.value)
    assert (code, detail.field) == (StatusCode.NOT_FOUND, "index")
    assert "there are: flat, library" in message
    with pytest.raises(DeadlineError):
        engine.call(SEARCH, request(), 0)
    engine.close()
    with pytest.raises(ClosedError):
        engine.call(SEARCH, request(), 60)


def test_it_says_what_opens_the_same_store_from_any_folder(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(library.parent)
    engine = open_embedded(os.path.relpath(library))
    monkeypatch.chdir(tmp_path)
    assert Path(engine.store) == library
    engine.close()
    with pytest.raises(NotFoundError):
        open_embedded(tmp_path / "nothing")
