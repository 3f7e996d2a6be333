"""Who draws which hit: all hits come once, and random clicks prefer no side."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.roles import open_embedded_catalog
from scannery.serving.services.interleaving import Interleaving
from scannery.serving.services.search import Service
from scannery.serving.services.shards import LocalShards
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import SparseVector, Vector


def merged(
    ours: Sequence[str], theirs: Sequence[str], text: str = "river", at_s: float = 0.0, client_id: str = ""
) -> tuple[str, str]:
    """Return the merged hits of two answers, and who drew them; a hit is a letter."""
    interleaving = Interleaving({"talks": "trial"}, 1.0, clock=lambda: at_s)
    request = pb.SearchRequest(index="talks", query=pb.Query(text=text), client_id=client_id)
    answers = list[bytes]()
    for hits in (ours, theirs):
        response = pb.SearchResponse(version=len(answers) + 7)
        for name in hits:
            response.hits.add().datapoint.id = name
        answers.append(response.SerializeToString())
    answer = pb.SearchResponse.FromString(interleaving.merged(request, *answers))
    assert answer.version == 7
    return "".join(hit.datapoint.id for hit in answer.hits), answer.teams


def test_two_answers_in_turns() -> None:
    seen = {merged("abc", "xyz", f"text {number}") for number in range(200)}
    assert ("axb", "aba") in seen and ("axy", "abb") in seen and ("xab", "baa") in seen
    assert len(seen) == 4
    assert merged("abc", "abc") == ("abc", "---")
    assert merged("", "xyz") == ("xyz", "---")
    assert merged("abc", "") == ("abc", "---")
    assert merged("", "") == ("", "")


def test_a_hit_that_only_one_has_is_its_own() -> None:
    """The second answer lacks `b`: only that hit and the one in its place count."""
    seen = {merged("abcd", "acde", f"text {number}") for number in range(200)}
    assert seen == {("abcd", "-ab-"), ("acbd", "-ba-")}


def test_who_asks_again_sees_the_same_for_a_while() -> None:
    moments = [merged("abcdef", "fedcba", at_s=at_s) for at_s in (0.0, 599.0)]
    assert moments[0] == moments[1]
    assert len({merged("abcdef", "fedcba", at_s=600.0 * number) for number in range(50)}) > 2


def test_people_who_ask_the_same_count_one_by_one() -> None:
    """Else all of them would click the first hit of one draw: a popular text alone would decide."""
    people = Counter(merged("abcdef", "uvwxyz", client_id=f"user {number}")[1][0] for number in range(400))
    assert abs(people["a"] - people["b"]) < 80


@pytest.mark.parametrize("clicks", [(0, 1, 2), (1, 2), (1, 2, 3), (0, 3)])
def test_clicks_on_ranks_prefer_no_side(clicks: Sequence[int]) -> None:
    """The second answer has one hit more behind the first one; ranks alone decide which hits are clicked."""
    wins = Counter[bool]()
    for number in range(2000):
        _, teams = merged("abcdefghij", "azbcdefghi", f"text {number}")
        counts = Counter(teams[rank] for rank in clicks)
        if counts["a"] != counts["b"]:
            wins[counts["a"] > counts["b"]] += 1
    assert abs(wins[True] - wins[False]) <= 4 * max(1, wins.total()) ** 0.5


@pytest.mark.parametrize("seed", range(8))
def test_random_clicks_prefer_no_side(seed: int) -> None:
    chosen = random.Random(seed)
    ours, theirs = (chosen.sample("abcdefghijklmnop", 6) for _ in range(2))
    if seed % 2:  # as two similar indexes
        theirs = [*ours]
        theirs.pop(chosen.randrange(4))
        theirs.insert(chosen.randrange(5), "z")
    counts = [Counter(merged(ours, theirs, f"text {number}")[1]) for number in range(3000)]
    differences = [each["a"] - each["b"] for each in counts]
    mean = sum(differences) / len(differences)
    error = (sum((each - mean) ** 2 for each in differences) / len(differences)) ** 0.5 / len(
        differences
    ) ** 0.5
    assert abs(mean) <= 4 * error
    first = Counter(teams[0] for teams in (merged(ours, theirs, f"t {n}")[1] for n in range(1000)))
    assert first["-"] == 1000 or abs(first["a"] - first["b"]) < 130


@pytest.mark.parametrize(
    ("share", "options"),
    [
        (0.0, pb.SearchOptions()),
        (1.0, pb.SearchOptions(offset=1)),
        (1.0, pb.SearchOptions(explain=True)),
        (1.0, pb.SearchOptions(return_vector=True)),
        (1.0, pb.SearchOptions(crowding=pb.Crowding(max_per_group=1))),
        (1.0, pb.SearchOptions(min_score=0.5)),
    ],
)
def test_what_is_not_interleaved(share: float, options: pb.SearchOptions) -> None:
    interleaving = Interleaving({"talks": "trial"}, share)
    request = pb.SearchRequest(index="talks", query=pb.Query(text="river"), options=options)
    assert interleaving.shadow_of("talks", request) is None


@pytest.mark.parametrize(
    "more",
    [
        pb.Query(vector=Vector(values=[1.0])),
        pb.Query(sparse_vector=SparseVector(indices=[1], values=[1.0])),
        pb.Query(id="a"),
    ],
)
def test_what_is_of_one_model_or_index_is_not_interleaved(more: pb.Query) -> None:
    request = pb.SearchRequest(index="talks", query=pb.Query(words="river"))
    interleaving = Interleaving({"talks": "trial"}, 1.0)
    assert interleaving.shadow_of("talks", request) == "trial"
    request.query.MergeFrom(more)
    assert interleaving.shadow_of("talks", request) is None


def test_a_shadow_that_is_slow_takes_half_of_what_the_deadline_leaves(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        for name in ("talks", "trial"):
            client.create_index(name, lexical=True).upsert([{"id": name, "text": "river"}])

    class SlowShards(LocalShards):
        def read(self, index: str, min_sequence: int, deadline: Deadline, *args: Any, **more: Any) -> Any:
            if index == "trial":
                time.sleep(deadline.remaining_s)
                deadline.check()
            return super().read(index, min_sequence, deadline, *args, **more)

    catalog = open_embedded_catalog(tmp_path / "store", device="cpu", create=False)
    service = Service(catalog, SlowShards(catalog), interleaving=Interleaving({"talks": "trial"}, 1.0))
    try:
        deadline = Deadline.after(2.0)
        request = pb.SearchRequest(index="talks", query=pb.Query(text="river"))
        answer = service.call_on_wire("/scannery.v1.SearchService/Search", request, deadline)
        deadline.check()
        response = pb.SearchResponse.FromString(answer)
        assert [hit.datapoint.id for hit in response.hits] == ["talks"] and not response.teams
    finally:
        service.close()


def test_a_share_of_texts_is_chosen() -> None:
    interleaving = Interleaving({"talks": "trial"}, 0.25)
    requests = [pb.SearchRequest(query=pb.Query(text=f"text {number}")) for number in range(1000)]
    chosen = [interleaving.shadow_of("talks", request) for request in requests]
    assert 180 < chosen.count("trial") < 320
    assert {interleaving.shadow_of("trial", request) for request in requests} == {None}
