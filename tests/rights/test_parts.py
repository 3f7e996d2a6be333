"""What callers who see parts of an index are told, and what not, where an index of the part says nothing of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseDict

from scannery.runtime.where import build_filter
from scannery.v1 import index_pb2, search_pb2
from tests.rights.principals import Caller
from tests.rights.world import Engine, Refusal

ROWS = 12


class Talks(Engine):
    """The index `talks`, of tenants t0, t1 and t2, and the index `plain` without tenants."""

    def __init__(self, store: Path) -> None:
        super().__init__(store)
        for name, attributes in (("plain", {"year": "int"}), ("talks", {"tenant": "string", "year": "int"})):
            spec = {
                "index": name, "source": {"id": "id", "vector": "vector", "text": "text"},
                "attributes": attributes, "lexical": True,
            }  # fmt: skip
            request = index_pb2.CreateIndexRequest(spec_json=json.dumps(spec), dimensions=4)
            assert not isinstance(self.ask(None, "CreateIndex", request), Refusal)
        rows = [row(number, text=f"words of {number}", tenant=f"t{number % 3}") for number in range(ROWS)]
        self.written = self.upsert(None, *rows)

    def upsert(self, caller: Caller | None, *points: dict[str, Any], **fields: Any) -> Any:
        """Return the answer to an upsert of datapoints as JSON."""
        body = {"index": "talks", "upserts": [{"datapoint": point} for point in points], **fields}
        return self.ask(caller, "Upsert", ParseDict(body, index_pb2.UpsertRequest()))

    def key(self, name: str = "t1", **access: Any) -> Caller:
        """Return a caller with a key for all indexes."""
        caller = Caller(name, access, lambda point, groups: False)
        self.add(caller, "*")
        return caller


def row(number: int, *, text: str, tenant: str | None) -> dict[str, Any]:
    """Return a datapoint as JSON."""
    attributes = {} if tenant is None else {"tenant": {"string_value": tenant}}
    return {
        "id": f"d{number}",
        "text": text,
        "vector": {"values": [1, number, 0, 1]},
        "attributes": attributes,
    }


@pytest.fixture
def talks(tmp_path: Path) -> Iterator[Talks]:
    engine = Talks(tmp_path)
    yield engine
    engine.close()


def test_indexes_that_a_filter_does_not_fit_do_not_hide_the_others(talks: Talks) -> None:
    tenant = talks.key(where={"tenant": "t1"})
    listed = talks.ask(tenant, "ListIndexes", index_pb2.ListIndexesRequest())
    assert [(info.name, info.rows) for info in listed.indexes] == [("talks", ROWS / 3)]
    counted = talks.ask(tenant, "Count", search_pb2.CountRequest(index="plain"))
    assert counted.code == "PERMISSION_DENIED"


def test_a_part_by_words_takes_rows_that_have_them(talks: Talks) -> None:
    words = talks.key(where={"text": {"$phrase": "words of"}})
    assert talks.upsert(words, row(50, text="more words of mine", tenant=None)).written == 1
    refused = talks.upsert(words, row(51, text="of words", tenant=None))
    assert refused.message == "upserts: datapoint 'd51' does not pass the filter of these credentials"


def test_values_of_attributes_that_are_not_declared_may_be_left_out(talks: Talks) -> None:
    spec = {"index": "notes", "source": {"id": "id", "vector": "vector", "text": "text"}, "dynamic": True}
    request = index_pb2.CreateIndexRequest(spec_json=json.dumps(spec), dimensions=4)
    assert not isinstance(talks.ask(None, "CreateIndex", request), Refusal)
    mine = talks.key(where={"owner": "me", "year": 5, "meta.of": {"$ne": "you"}, "public": True})
    points = [row(number, text="a note", tenant=None) for number in range(2)]
    points[1]["dynamic_json"] = '{"owner": "me", "kind": "k"}'
    assert talks.upsert(mine, *points, index="notes").written == 2
    answer = talks.ask(mine, "Get", search_pb2.GetRequest(index="notes", ids=["d0", "d1"]))
    values = {"owner": "me", "public": True, "year": 5}
    assert [json.loads(each.dynamic_json) for each in answer.datapoints] == [values, values | {"kind": "k"}]
    points[0]["dynamic_json"] = '{"owner": "you"}'
    assert talks.upsert(mine, points[0], index="notes").code == "PERMISSION_DENIED"


def test_undeclared_attributes_are_among_the_fields_of_a_key(talks: Talks) -> None:
    spec = {"index": "notes", "source": {"id": "id", "vector": "vector", "text": "text"}, "dynamic": True}
    request = index_pb2.CreateIndexRequest(spec_json=json.dumps(spec), dimensions=4)
    assert not isinstance(talks.ask(None, "CreateIndex", request), Refusal)
    point = row(1, text="a note", tenant=None)
    point["dynamic_json"] = '{"kind": "k", "meta": {"a": 1}, "secret": "s", "words": "w"}'
    assert talks.upsert(None, point, index="notes").written == 1
    fields = talks.key(fields=["kind", "meta.a", "words"])
    for names in ([], ["kind", "secret", "text"]):
        answer = talks.ask(
            fields, "Get", search_pb2.GetRequest(index="notes", ids=["d1"], return_fields=names)
        )
        [found] = answer.datapoints
        assert (found.dynamic_json, found.text) == ('{"kind":"k"}', "")
    # An object may be filtered by, and is not returned: another name says both.
    filters: tuple[Any, ...] = (
        {"kind": "k", "meta.a": 1},
        {"secret": "s"},
        {"meta": {"$exists": True}},
        {"words": "w"},
        {"text": "x"},
    )
    counts = [
        talks.ask(fields, "Count", search_pb2.CountRequest(index="notes", where=build_filter(where))).count
        for where in filters
    ]
    assert counts == [1, 0, 0, 0, 0]
    for name, distinct in (("kind", 1), ("secret", 0)):
        facets = talks.ask(fields, "Facets", search_pb2.FacetsRequest(index="notes", attribute=name))
        assert len(facets.facets) == distinct
    # A name alone opens the attribute, and no path into it, since a dot may also be part of a name.
    part = talks.key(fields=["meta"])
    answer = talks.ask(part, "Get", search_pb2.GetRequest(index="notes", ids=["d1"]))
    assert answer.datapoints[0].dynamic_json == '{"meta":{"a":1}}'
    where = build_filter({"meta.a": 1})
    assert talks.ask(part, "Count", search_pb2.CountRequest(index="notes", where=where)).count == 0


@pytest.mark.parametrize("mode", ["MODE_LEXICAL", "MODE_HYBRID"])
def test_texts_that_may_not_be_read_are_not_searched_by_words(talks: Talks, mode: str) -> None:
    titles = talks.key(where={"tenant": "t1"}, fields=["title", "tenant"])
    phrase = search_pb2.CountRequest(index="talks", where=build_filter({"text": {"$phrase": "of 4"}}))
    assert talks.ask(titles, "Count", phrase).code == "FAILED_PRECONDITION"
    query = {"words": "4", "vector": {"values": [1, 0, 0, 0]}} if mode == "MODE_HYBRID" else {"words": "4"}
    request = ParseDict(
        {"index": "talks", "query": query, "options": {"mode": mode}}, search_pb2.SearchRequest()
    )
    assert talks.ask(titles, "Search", request).code == "FAILED_PRECONDITION"
    assert len(talks.ask(talks.key(where={"tenant": "t1"}, fields=["text"]), "Search", request).hits) > 0


def test_a_document_of_several_tenants(talks: Talks) -> None:
    points = [
        row(number, text=f"mark{number % 2} shared", tenant=f"t{number % 2}") for number in range(20, 26)
    ]
    assert talks.upsert(None, *({**point, "document_id": "both"} for point in points)).written == len(points)
    tenant = talks.key(where={"tenant": "t1"})
    body = {
        "index": "talks", "query": {"words": "shared"},
        "options": {"mode": "MODE_LEXICAL", "context": {"passages": 5}, "highlight": {}},
    }  # fmt: skip
    hits = talks.ask(tenant, "Search", ParseDict(body, search_pb2.SearchRequest()))
    assert len(hits.hits) == len(points) / 2
    assert "mark0" not in str(hits)
    deleted = talks.ask(tenant, "Delete", index_pb2.DeleteRequest(index="talks", document_ids=["both"]))
    assert deleted.deleted == len(points) / 2
    assert len(talks.ask(None, "Search", ParseDict(body, search_pb2.SearchRequest())).hits) == len(points) / 2


def test_requests_of_the_same_id_are_of_their_callers(talks: Talks) -> None:
    first, second = (talks.key(name, where={"tenant": name}) for name in ("t1", "t2"))
    point = row(60, text="mine", tenant="t1")
    answer = talks.upsert(first, point, request_id="again")
    assert talks.upsert(second, point, request_id="again").code == "PERMISSION_DENIED"
    assert talks.upsert(first, point, request_id="again") == answer


def test_all_that_a_write_of_an_invisible_datapoint_tells(talks: Talks) -> None:
    tenant = talks.key(where={"tenant": "t1"})
    refused = talks.upsert(tenant, row(2, text="mine", tenant="t1"))
    assert refused.message == "upserts: datapoint 'd2' cannot be written with these credentials"
    revision = talks.written.sequence
    for name in ("d2", "none"):
        body = {
            "upserts": [
                {"datapoint": row(int(name[1:]) if name[1:].isdigit() else 99, text="mine", tenant="t1")}
                | {"condition": {"if_revision": revision}}
            ],
            "index": "talks",
        }
        answer = talks.ask(tenant, "Upsert", ParseDict(body, index_pb2.UpsertRequest()))
        assert "there is no datapoint" in answer.message
        changed = {"id": name, "title": "mine"}
        answer = talks.ask(
            tenant, "Upsert",
            ParseDict(
                {"index": "talks", "upserts": [{"datapoint": changed, "update_mask": "title"}]},
                index_pb2.UpsertRequest(),
            ),
        )  # fmt: skip
        assert answer == Refusal(
            "NOT_FOUND", f"upserts[0].datapoint.id: index 'talks' has no datapoint '{name}' to update"
        )
        deleted = talks.ask(tenant, "Delete", index_pb2.DeleteRequest(index="talks", ids=[name]))
        assert deleted.deleted == 0


def test_rankings_and_links_do_not_name_attributes_that_may_not_be_read(talks: Talks) -> None:
    rankings = {"fresh": "score + year / 1000", "secret": "score + salary"}
    for name, link in (
        ("shown", "https://example.org/{id}/{year}"),
        ("hidden", "https://example.org/{salary}"),
    ):
        spec = {
            "index": name, "source": {"id": "id", "vector": "vector"},
            "attributes": {"year": "int", "salary": "float"}, "search": {"ranking": rankings, "link": link},
        }  # fmt: skip
        request = index_pb2.CreateIndexRequest(spec_json=json.dumps(spec), dimensions=4)
        assert not isinstance(talks.ask(None, "CreateIndex", request), Refusal)
    reader = talks.key(fields=["year"])
    texts = {
        name: talks.ask(reader, "GetIndex", index_pb2.GetIndexRequest(index=name)).index.spec_json
        for name in ("shown", "hidden")
    }
    assert "salary" not in str(texts)
    assert json.loads(texts["shown"])["search"]["ranking"] == {"fresh": rankings["fresh"]}
    assert "{year}" in texts["shown"]
    for ranking, code in (("fresh", None), ("secret", "INVALID_ARGUMENT")):
        body = {
            "index": "shown",
            "query": {"vector": {"values": [1, 0, 0, 0]}},
            "options": {"ranking": ranking},
        }
        answer = talks.ask(reader, "Search", ParseDict(body, search_pb2.SearchRequest()))
        assert getattr(answer, "code", None) == code
        assert "salary" not in str(answer)
