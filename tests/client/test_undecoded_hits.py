"""Hits are made when one is looked at, and nobody can tell by what a list does."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

import scannery
from scannery.client import Hit, Hits
from scannery.client.response import results
from scannery.client.response.decoding import parse_hits, parse_many
from scannery.client.response.results import LIST_METHODS, UndecodedHits
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import Datapoint, Value

COUNT = 5


def message(number: int) -> pb.Hit:
    attributes = {"year": Value(int_value=2000 + number), "show": Value(string_value="gotime")}
    point = Datapoint(
        id=f"a{number}", document_id="a", text=f"text {number}", attributes=attributes, payload_json="[1]"
    )
    return pb.Hit(datapoint=point, score=1 - number / 10)


def expected() -> list[Hit]:
    return [
        Hit(
            id=f"a{number}",
            document_id="a",
            text=f"text {number}",
            attributes={"show": "gotime", "year": 2000 + number},
            payload=[1],
            score=message(number).score,
        )
        for number in range(COUNT)
    ]


def found() -> Hits:
    """Return hits as a call does: none of them is made."""
    response = pb.SearchManyResponse(version=3, sequence=7, modes=[pb.MODE_DENSE])
    response.results.add(hits=map(message, range(COUNT)))
    [hits] = parse_many(pb.SearchManyResponse.FromString(response.SerializeToString()))
    assert type(hits) is UndecodedHits
    return hits


def test_their_number_and_snapshot_are_known_without_making_them() -> None:
    hits = found()
    assert (len(hits), bool(hits), hits.version, hits.sequence, hits.mode) == (COUNT, True, 3, 7, "dense")
    assert type(hits) is UndecodedHits
    assert isinstance(hits, list)
    assert isinstance(hits, scannery.Hits)


def test_each_query_of_a_batch_has_its_mode_and_explanation() -> None:
    modes = [pb.MODE_DENSE, pb.MODE_LEXICAL]
    response = pb.SearchManyResponse(version=3, sequence=7, modes=modes)
    for number in range(2):
        response.results.add(hits=[message(number)])
    plain = parse_many(response)
    assert [(hits.mode, hits.version, hits.sequence, hits.explanation) for hits in plain] == [
        ("dense", 3, 7, None),
        ("lexical", 3, 7, None),
    ]
    for result in response.results:
        result.explanation.segments.add(plan="scann")
    explained = parse_many(response)
    plans = [[one.plan for one in hits.explanation.segments] for hits in explained if hits.explanation]
    assert plans == [["scann"], ["scann"]]
    assert [[hit.id for hit in hits] for hits in explained] == [["a0"], ["a1"]]


def _assigned(hits: Any) -> list[Any]:
    whole = [0, 0]
    whole[1:] = hits
    return whole


def _rest(hits: Any) -> list[Any]:
    _, *rest = hits
    return rest


USES: dict[str, Callable[[Any], Any]] = {
    "index": lambda hits: hits[1],
    "last": lambda hits: hits[-1],
    "slice": lambda hits: hits[1:3],
    "iteration": lambda hits: [hit.id for hit in hits],
    "list": list,
    "tuple": tuple,
    "arguments": lambda hits: [*hits],
    "unpacking": _rest,
    "reversed": lambda hits: list(reversed(hits)),
    "sorted": lambda hits: sorted(hits, key=lambda hit: hit.score),
    "zip": lambda hits: list(zip(hits, hits, strict=True)),
    "in": lambda hits: expected()[2] in hits,
    "plus": lambda hits: hits + expected(),
    "behind plus": lambda hits: expected() + hits,
    "plus itself": lambda hits: hits + hits,
    "times": lambda hits: 2 * hits,
    "equal": lambda hits: (hits == expected(), expected() == hits, hits != expected()),
    "count": lambda hits: hits.count(expected()[0]),
    "position": lambda hits: hits.index(expected()[3]),
    "copy": lambda hits: hits.copy(),
    "assigned to a slice": _assigned,
    "repr": repr,
    "json": lambda hits: json.dumps(hits, default=lambda hit: hit.id),
    "bool of none": lambda hits: [hit for hit in hits if not hit.title],
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_a_use_finds_what_it_finds_in_a_list(use: Callable[[Any], Any]) -> None:
    assert use(found()) == use(expected())


CHANGES: dict[str, Callable[[list[Hit]], object]] = {
    "append": lambda hits: hits.append(expected()[0]),
    "extend": lambda hits: hits.extend(found()),
    "insert": lambda hits: hits.insert(1, expected()[4]),
    "pop": lambda hits: hits.pop(),
    "remove": lambda hits: hits.remove(expected()[2]),
    "sort": lambda hits: hits.sort(key=lambda hit: hit.score),
    "reverse": lambda hits: hits.reverse(),
    "clear": lambda hits: hits.clear(),
    "item": lambda hits: hits.__setitem__(0, expected()[3]),
    "deletion": lambda hits: hits.__delitem__(slice(0, 2)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_they_can_be_changed_as_a_list(change: Callable[[list[Hit]], object]) -> None:
    hits, plain = found(), expected()
    change(hits)
    change(plain)
    assert list(hits) == plain
    assert len(hits) == len(plain)


def test_every_method_of_a_list_that_sees_items_makes_them() -> None:
    blind = {
        "__class_getitem__", "__getattribute__", "__hash__", "__init__", "__len__", "__new__", "__sizeof__", "__doc__",
    }  # fmt: skip
    assert set(vars(list)) - blind == set(LIST_METHODS)


def test_two_undecoded_answers_are_compared_by_their_hits() -> None:
    one, other = found(), found()
    assert one == other
    assert type(one) is type(other) is Hits
    assert found() == one
    changed = found()
    del changed[0]
    assert found() != changed


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda hits: pickle.loads(pickle.dumps(hits))])
def test_they_are_copied_with_their_snapshot(copied: Callable[[Hits], Hits]) -> None:
    hits = copied(found())
    assert hits == expected()
    assert type(hits) is Hits
    assert (hits.version, hits.sequence, hits.mode) == (3, 7, "dense")


def test_threads_that_look_first_find_the_same_hits() -> None:
    for _ in range(50):
        hits, gate, seen = found(), threading.Barrier(4), list[list[int]]()

        def look(hits: Hits = hits, gate: threading.Barrier = gate, seen: list[list[int]] = seen) -> None:
            gate.wait()
            seen.append([id(hit) for hit in hits])

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert seen == [[id(hit) for hit in hits]] * 4
        assert len(hits) == COUNT


def test_fields_are_read_in_any_order() -> None:
    for names in (("text", "attributes"), ("payload", "text"), ("title", "vector", "text", "id")):
        for hit, other in zip(found(), expected(), strict=True):
            assert [getattr(hit, name) for name in names] == [getattr(other, name) for name in names]
            assert hit == other


def test_a_hit_without_a_text_has_none() -> None:
    hits = parse_hits(pb.SearchResponse(hits=[pb.Hit(datapoint=Datapoint(id="a"))]))
    assert (hits[0].text, hits[0].score, hits[0].document_id, hits[0].attributes) == (None, 0.0, "", {})


def test_a_payload_that_cannot_be_read_is_an_error_of_the_server() -> None:
    hits = parse_hits(pb.SearchResponse(hits=[pb.Hit(datapoint=Datapoint(id="a", payload_json="{"))]))
    assert hits[0].id == "a"
    for _ in range(2):  # it does not become a datapoint without a payload
        with pytest.raises(scannery.InternalError, match="cannot be read"):
            _ = hits[0].payload


def test_a_thread_that_asks_for_the_length_while_another_one_makes_the_hits_gets_it() -> None:
    hits = found()
    begun: Callable[[Any], int] = UndecodedHits.__len__  # looked up before the hits are made, called after
    list(hits)
    assert begun(hits) == COUNT


def test_an_interruption_while_hits_are_made_leaves_none_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    hits, make = found(), results._hit

    def interrupted(message: pb.Hit) -> Hit:
        if message.datapoint.id == "a3":
            raise KeyboardInterrupt
        return make(message)

    with monkeypatch.context() as context:
        context.setattr(results, "_hit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(hits)
    assert hits == expected()


def test_a_finalizer_may_look_at_hits_while_its_thread_makes_some(monkeypatch: pytest.MonkeyPatch) -> None:
    hits, others, make = found(), found(), results._hit
    looked: list[list[Hit]] = []

    def collected(message: pb.Hit) -> Hit:
        if not looked:
            looked.append([])
            looked.extend([list(others), list(hits)])
        return make(message)

    monkeypatch.setattr(results, "_hit", collected)
    thread = threading.Thread(target=lambda: looked.append(list(hits)), daemon=True)
    thread.start()
    thread.join(20)
    assert looked[1:] == [expected()] * 3
    assert hits == expected()
