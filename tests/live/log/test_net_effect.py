"""The net effect of mutations: rows that no later one removes, in a time that grows with their number."""

from __future__ import annotations

import time

import pyarrow as pa

from scannery.live.log.records import Mutation
from scannery.live.memtable import net_effect


def replaced(document: str, *ids: str) -> Mutation:
    """Return a mutation that replaces a document by rows with some ids."""
    rows = pa.table(
        {"id": pa.array(ids, pa.string()), "document_id": pa.array([document] * len(ids), pa.string())}
    )
    return Mutation(rows, removed_documents=(document,))


def test_a_row_that_moved_to_another_document_outlives_the_first() -> None:
    mutations = [
        replaced("a", "1", "2"),
        replaced("b", "2"),
        replaced("a", "3"),
        replaced("c"),
        replaced("a", "1"),
    ]
    effect = net_effect([*enumerate(mutations, 1)])
    rows = effect.rows.to_pylist()
    assert sorted((row["id"], row["document_id"]) for row in rows) == [("1", "a"), ("2", "b")]
    assert set(effect.documents) == {"a", "b", "c"} and set(effect.ids) == {"1", "2", "3"}


def test_eight_times_as_many_replaced_documents_take_no_more_than_thirty_times_as_long() -> None:
    def taken_s(count: int) -> float:
        mutations = [(number, replaced(f"d{number}", f"d{number}")) for number in range(count)]
        began_s = time.process_time()
        assert net_effect(mutations).rows.num_rows == count
        return time.process_time() - began_s

    assert taken_s(8000) < 30 * min(taken_s(1000) for _ in range(3))
