"""Shadows, answers of two indexes and feedback, for callers who see a part of an index."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.indexer import Store
from scannery.indexer.traffic.day_files import read_rows
from scannery.indexer.traffic.rows import ShadowAnswer
from scannery.serving import SecurityConfig
from scannery.serving.config import TrafficConfig
from scannery.serving.security import KeyFile
from tests.served import serving

pytestmark = pytest.mark.system

PART = {"where": {"tenant": "a"}}
ACCESS: dict[str, list[Any]] = {
    "all": [{"index": "*"}],
    "part": [{"index": "talks", **PART}],
    "parts": [{"index": "t*", **PART}],
    "second": [{"index": "talks", "where": {"tenant": "b"}}],
    "more": [{"index": "talks", **PART}, {"index": "*"}],
    "get": [{"index": "talks"}, {"index": "trial", "methods": ["Get"]}],
}


class Callers(dict[str, scannery.Client]):
    """Clients by the names of their keys, of two indexes with the same rows of two tenants."""

    def hits(self, name: str) -> scannery.Hits:
        """Return ten hits of the first index."""
        return self[name].index("talks").search("river", k=10)


@contextmanager
def callers(folder: Path, interleave: float = 0.0) -> Iterator[Callers]:
    with scannery.connect(folder / "store", create=True) as client:
        for name in ("talks", "trial"):
            index = client.create_index(name, lexical=True, attributes={"tenant": "string"})
            index.upsert(
                [
                    {"id": f"{name}-{tenant}{number}", "text": "river", "attributes": {"tenant": tenant}}
                    for tenant in "ab"
                    for number in range(20)
                ]
            )
    file = KeyFile(folder / "keys.json")
    keys = {name: file.create(name, access=access)[1] for name, access in ACCESS.items()}
    traffic = TrafficConfig(share=1.0, text=True, shadow=("talks=trial",), interleave=interleave)
    security = SecurityConfig(keys_file=str(file.path))
    with serving(folder / "store", traffic=traffic, security=security) as server:
        yield Callers(
            {name: scannery.connect(server.address, api_key=key, tls=False) for name, key in keys.items()}
        )


def test_a_shadow_answers_from_the_part_that_its_caller_sees(tmp_path: Path) -> None:
    with callers(tmp_path) as clients:
        for name in ("part", "second"):
            assert len(clients.hits(name)) == 10
        time.sleep(3)  # for the time that is saved up
    answers = [
        each.query_response_hit_ids
        for each in read_rows(Store.open(tmp_path / "store"), "talks", ShadowAnswer)
    ]
    assert sorted({hit[:7] for hit in ids} for ids in answers) == [{"trial-a"}, {"trial-b"}]


def test_answers_have_hits_of_two_indexes_if_the_caller_sees_the_same_of_both(tmp_path: Path) -> None:
    with callers(tmp_path, interleave=1.0) as clients:
        fronts = {name: {hit.id[:7] for hit in clients.hits(name)} for name in ACCESS}
    assert fronts == {
        "all": {"talks-a", "talks-b", "trial-a", "trial-b"} & fronts["all"],
        "part": {"talks-a"},
        "parts": {"talks-a", "trial-a"},
        "second": {"talks-b"},
        "more": {"talks-a"},
        "get": {"talks-a", "talks-b"} & fronts["get"],
    }
    assert any(front.startswith("trial") for front in fronts["all"])


def test_feedback_is_on_answers_of_the_same_part(tmp_path: Path) -> None:
    with callers(tmp_path) as clients:
        hits = {name: clients.hits(name) for name in ("all", "part", "second")}
        several = clients["part"].index("talks").search_many(["river"], k=10)
        for number, (name, of) in enumerate(
            (("all", "all"), ("part", "part"), ("more", "part"), ("all", "second"))
        ):
            assert clients[name].feedback(hits[of].query_id, clicked=[hits[of][number].id]) == 1
        assert clients["more"].feedback(several[0].query_id, clicked=[several[0][1].id]) == 1
        for name, of in (("part", "all"), ("part", "second"), ("second", "part"), ("second", "all")):
            with pytest.raises(scannery.InvalidArgumentError, match="not the id of an answer"):
                clients[name].feedback(hits[of].query_id, clicked=[hits[of][0].id])
        with pytest.raises(scannery.PermissionDeniedError, match="Feedback"):
            clients["get"].feedback(
                clients["all"].index("trial").search("river").query_id, clicked=["trial-a1"]
            )
