"""Contexts of hits in a cluster: of more documents than a leaf reads at once, and where a group stops to answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import scannery
from scannery.indexer import shards_of_ids
from scannery.runtime.errors import UnavailableError
from scannery.serving import limits
from scannery.serving.engine.remote import leaf_candidates, leaf_rows
from scannery.serving.services.leaf import leaf_service
from scannery.serving.services.leaf.fetching import fetched
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1 import leaf_pb2 as pb
from tests.cluster.servers import started_cluster

pytestmark = pytest.mark.system

SHARDS, GROUPS, DOCUMENTS = 4, 2, 40


@pytest.fixture
def indexes(tmp_path: Path) -> Iterator[tuple[scannery.Index, scannery.Index]]:
    """The same passages, three of each document: of one process, and of a cluster."""
    store = tmp_path / "store"
    with scannery.connect(store, create=True) as client:
        index = client.create_index(
            {
                "index": "talks",
                "source": {"id": "id", "document_id": "document_id", "text": "text"},
                "lexical": True,
                "vectors": "optional",
                "shards": SHARDS,
            }
        )
        rows: list[Any] = [
            {
                "id": f"talk{number}#{part}",
                "document_id": f"talk{number}",
                "text": f"word{part} of talk{number}",
            }
            for number in range(DOCUMENTS)
            for part in range(3)
        ]
        index.upsert(rows)
        with started_cluster(store, GROUPS) as (root, _), scannery.connect(root.address) as clustered:
            yield index, clustered.index("talks")


def test_documents_are_read_in_parts(
    indexes: tuple[scannery.Index, scannery.Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    local, cluster = indexes
    expected = local.search("word1", DOCUMENTS, context=1)
    for module in (limits, leaf_rows):
        monkeypatch.setattr(module, "MAX_LEAF_IDS", 7)
    hits = cluster.search("word1", DOCUMENTS, context=1)
    assert [(hit.id, hit.context) for hit in hits] == [(hit.id, hit.context) for hit in expected]
    assert len(hits) == DOCUMENTS and all(hit.context and len(hit.context.ids) == 3 for hit in hits)


def test_hits_of_a_group_that_stops_to_answer_shift_nothing(
    indexes: tuple[scannery.Index, scannery.Index], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cluster = indexes
    whole = cluster.search("word1", DOCUMENTS, context=1, highlight=True)

    def of_group_0(snapshot: Snapshot, request: pb.LeafFetchRequest, *rest: Any) -> pb.LeafFetchResponse:
        names = [*request.ids, *request.document_ids]
        if (
            names
            and int(shards_of_ids(pa.chunked_array([[names[0].partition("#")[0]]]), SHARDS)[0]) % GROUPS == 1
        ):
            raise UnavailableError("this group has stopped")
        return fetched(snapshot, request, *rest)

    monkeypatch.setattr(leaf_candidates, "MAX_INLINE", 0)
    monkeypatch.setattr(leaf_service, "fetched", of_group_0)
    partial = cluster.search("word1", DOCUMENTS, context=1, highlight=True, allow_partial=True)
    assert 0 < len(partial) < len(whole)
    by_id = {hit.id: hit for hit in whole}
    assert [hit.id for hit in partial] == [hit.id for hit in whole if hit.id in {each.id for each in partial}]
    for hit in partial:
        assert (hit.context, hit.snippet) == (by_id[hit.id].context, by_id[hit.id].snippet)
