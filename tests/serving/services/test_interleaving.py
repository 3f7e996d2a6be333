"""Who draws which hit: all hits come once, and random clicks prefer no side."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from scannery.serving.services.interleaving import Interleaving
from scannery.v1 import search_pb2 as pb


def merged(
    ours: Sequence[str], theirs: Sequence[str], text: str = "river", at_s: float = 0.0
) -> tuple[str, str]:
    """Return the merged hits of two answers, and who drew them; a hit is a letter."""
    interleaving = Interleaving({"talks": "trial"}, 1.0, clock=lambda: at_s)
    request = pb.SearchRequest(index="talks", query=pb.Query(text=text))
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
    assert {Counter(teams)["-"] for _, teams in seen} <= {1, 3}
    for hits, teams in seen:
        side = dict(zip(hits, teams, strict=True))
        assert side["a"] == "-" and side.get("b", "a") == "a" and side.get("e", "b") == "b"


def test_who_asks_again_sees_the_same_for_a_while() -> None:
    moments = [merged("abcdef", "fedcba", at_s=at_s) for at_s in (0.0, 599.0)]
    assert moments[0] == moments[1]
    assert len({merged("abcdef", "fedcba", at_s=600.0 * number) for number in range(50)}) > 2


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
        (1.0, pb.SearchOptions(crowding=pb.Crowding(max_per_group=1))),
        (1.0, pb.SearchOptions(min_score=0.5)),
    ],
)
def test_what_is_not_interleaved(share: float, options: pb.SearchOptions) -> None:
    interleaving = Interleaving({"talks": "trial"}, share)
    request = pb.SearchRequest(index="talks", query=pb.Query(text="river"), options=options)
    assert interleaving.shadow_of("talks", request) is None


def test_a_share_of_texts_is_chosen() -> None:
    interleaving = Interleaving({"talks": "trial"}, 0.25)
    requests = [pb.SearchRequest(query=pb.Query(text=f"text {number}")) for number in range(1000)]
    chosen = [interleaving.shadow_of("talks", request) for request in requests]
    assert 180 < chosen.count("trial") < 320
    assert {interleaving.shadow_of("trial", request) for request in requests} == {None}
