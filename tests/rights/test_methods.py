"""Every method of the contract, called with a key that opens a part of an index: what it may learn, cell by cell.

The table is made of the contract: a method that is added, and says nothing about such callers, is refused to them, and
one that answers them fails here until it has requests to compare.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

import scannery
from scannery.client.request.filters import build_filter
from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from scannery.v1 import embedding_pb2, index_pb2, search_pb2, types_pb2
from tests.served import serving

PART, TWIN = "shop", "twin"
"""An index of two customers, and one that holds only what the first of them sees."""
FOREIGN = "xenon"
"""In each name, text and value of the rows that must not be seen."""
DIMENSIONS = 8

# Their constructors take dictionaries for messages, which the stubs do not know everywhere.
SEARCH: Any = search_pb2
INDEX: Any = index_pb2
FILES = (search_pb2, index_pb2, embedding_pb2)
METHODS = {
    f"/{service.full_name}/{method.name}": method
    for file in FILES
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def rows() -> list[Any]:
    random, words = np.random.default_rng(3), ["tea", "bread", "wheel", "river", "light", "coffee", "stone"]
    made = []
    for number in range(90):
        foreign = number % 3 != 0
        name = f"{FOREIGN}-{number}" if foreign else f"own-{number}"
        texts = [" ".join(random.choice(words, 6)) for _ in range(2)]
        made.append(
            {
                "id": name,
                "document_id": f"{FOREIGN}-doc" if foreign else f"doc-{number // 9}",
                "title": f"{texts[0]} {FOREIGN}" if foreign else texts[0],
                "text": f"{texts[1]} {FOREIGN} tea" if foreign else texts[1],
                "payload": {"of": name},
                "vector": random.normal(size=DIMENSIONS).astype(np.float32),
                "attributes": {
                    "tenant": "b" if foreign else "a",
                    "kind": FOREIGN if foreign else f"kind{number % 2}",
                    "price": 7_000_000 + number if foreign else number,
                    "secret": FOREIGN if foreign else "hidden",
                },
            }
        )
    return made


class Called(NamedTuple):
    code: str
    answer: Message | None
    text: str


class World(NamedTuple):
    server: Server
    keys: Mapping[str, str]

    def call(self, path: str, request: Message, key: str, *, http: bool = False) -> Called:
        method = METHODS[path]
        kind = method.output_type._concrete_class
        if http:
            return _over_http(self.server, path, request, self.keys[key], kind)
        headers = [("authorization", f"Bearer {self.keys[key]}")]
        with grpc.insecure_channel(self.server.address) as channel:
            make: Any = channel.stream_stream if method.client_streaming else channel.unary_unary
            rpc = make(
                path,
                request_serializer=type(request).SerializeToString,
                response_deserializer=kind.FromString,
            )
            try:
                if method.client_streaming:
                    [answer] = rpc(iter([request]), metadata=headers, timeout=120)
                else:
                    answer = rpc(request, metadata=headers, timeout=120)
            except grpc.RpcError as error:
                known: Any = error
                return Called(known.code().name, None, known.details() or "")
        return Called("OK", answer, "")


def _over_http(server: Server, path: str, request: Message, key: str, kind: type[Message]) -> Called:
    call = urllib.request.Request(
        f"http://127.0.0.1:{server.http_port}{path}",
        data=request.SerializeToString(),
        headers={"authorization": f"Bearer {key}", "content-type": "application/proto"},
    )
    try:
        with urllib.request.urlopen(call, timeout=120) as answer:
            return Called("OK", kind.FromString(answer.read()), "")
    except urllib.error.HTTPError as error:
        detail = json.loads(error.read())
        return Called(detail["code"].upper(), None, detail["message"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("rights")
    options: dict[str, Any] = {
        "dimensions": DIMENSIONS,
        "lexical": True,
        "attributes": {"tenant": "string", "kind": "string", "price": "int", "secret": "string"},
    }
    with scannery.connect(folder / "store", create=True) as client:
        for name, kept in (
            (PART, rows()),
            (TWIN, [row for row in rows() if row["attributes"]["tenant"] == "a"]),
        ):
            client.create_index(name, **options).upsert(kept)
    file = KeyFile(folder / "keys.json")
    scopes = ["read", "write", "admin"]
    where = {"index": PART, "where": {"tenant": "a"}}
    keys = {
        "all": file.create("all", scopes=scopes)[1],
        "part": file.create("part", scopes=scopes, access=[where])[1],
        "fields": file.create("fields", access=[{**where, "fields": ["title", "price", "words"]}])[1],
        "get": file.create("get", access=[{**where, "methods": ["Get"]}])[1],
    }
    with serving(folder / "store", security=SecurityConfig(keys_file=str(file.path))) as server:
        yield World(server, keys)


def vector(seed: int) -> types_pb2.Vector:
    values = np.random.default_rng(seed).normal(size=DIMENSIONS).astype("<f4")
    return types_pb2.Vector(packed=values.tobytes())


def search(text: str = "", *, index: str, mode: Any = SEARCH.MODE_HYBRID, **options: Any) -> Any:
    query = SEARCH.Query(vector=vector(1), words=text) if mode == SEARCH.MODE_HYBRID else None
    query = query or (SEARCH.Query(text=text) if text else SEARCH.Query(vector=vector(2)))
    return SEARCH.SearchRequest(
        index=index, query=query, options=SEARCH.SearchOptions(k=50, mode=mode, **options)
    )


def searches(index: str) -> Iterator[Any]:
    pb = search_pb2
    yield search(index=index, mode=pb.MODE_DENSE)
    yield search(index=index, mode=pb.MODE_DENSE, return_vector=True, explain=True)
    yield search("tea bread", index=index, mode=pb.MODE_LEXICAL)
    yield search(FOREIGN, index=index, mode=pb.MODE_LEXICAL)
    yield search("xenom te", index=index, mode=pb.MODE_LEXICAL, typos=True, prefix=True, explain=True)
    yield search("tea river", index=index)
    yield search("tea", index=index, where=build_filter({"kind": {"$ne": "kind0"}}), explain=True)
    yield search("tea", index=index, crowding=pb.Crowding(max_per_group=1, group_by="kind"))
    yield search("tea", index=index, context=pb.Context(passages=2), highlight=pb.Highlight())
    yield search("tea", index=index, ranking="score + price / 100")
    yield search("tea", index=index, diversity=0.5)
    for name in ("own-9", f"{FOREIGN}-10"):
        yield pb.SearchRequest(
            index=index, query=pb.Query(id=name), options=pb.SearchOptions(k=9, mode=pb.MODE_DENSE)
        )


def same(make: Callable[[str], Iterator[Message]]) -> Callable[[World, bool], None]:
    """Return the check that requests are answered as an index of the visible rows alone answers them."""

    def check(world: World, http: bool) -> None:
        path = next(each for each, checks in CELLS.items() if check in checks)
        for of_part, of_twin in zip(make(PART), make(TWIN), strict=True):
            part, twin = (
                world.call(path, request, key, http=http)
                for request, key in ((of_part, "part"), (of_twin, "all"))
            )
            assert (part.code, part.text.replace(repr(PART), repr(TWIN))) == (twin.code, twin.text), of_part
            assert _comparable(part.answer) == _comparable(twin.answer), of_part

    return check


_OF_ALL = {
    # Of the index as a whole, which every caller may know.
    *(
        "version",
        "sequence",
        "index",
        "created_at",
        "page_token",
        "next_page_token",
        "until_sequence",
        "name",
    ),
    # Measured times, and what is told to callers who see all alone.
    *(
        "stages",
        "segments",
        "strangeness",
        "warnings",
        "expected_recall",
        "size_bytes",
        "recall",
        "spec_json",
    ),
    *("revision",),
}


def _comparable(message: Any) -> Any:
    """Return the fields of a message as plain values, without those of the index as a whole."""
    if isinstance(message, str):
        return message.replace(repr(PART), repr(TWIN))
    if not isinstance(message, Message):
        return round(message, 5) if isinstance(message, float) else message
    fields: dict[str, Any] = {}
    for field, value in message.ListFields():
        if field.name in _OF_ALL:
            continue
        if field.message_type and field.message_type.GetOptions().map_entry:
            fields[field.name] = {key: _comparable(value[key]) for key in sorted(value)}
        elif isinstance(value, Message) or not hasattr(value, "append"):
            fields[field.name] = _comparable(value)
        else:
            fields[field.name] = [_comparable(each) for each in value]
    return fields


def nothing_foreign(make: Callable[[str], Iterator[Message]]) -> Callable[[World, bool], None]:
    """Return the check that answers have no mark of rows that must not be seen."""

    def check(world: World, http: bool) -> None:
        path = next(each for each, checks in CELLS.items() if check in checks)
        for request in make(PART):
            called = world.call(path, request, "part", http=http)
            # A caller is told again what it asked for.
            assert FOREIGN not in str(called.answer) or FOREIGN in str(request), request

    return check


def _streamed(index: str) -> Iterator[Message]:
    for each in searches(index):
        yield SEARCH.SearchStreamRequest(tag=1, search=each)
        many = SEARCH.SearchManyRequest(index=index, queries=[each.query], options=each.options)
        yield SEARCH.SearchStreamRequest(tag=2, search_many=many)


def _many(index: str) -> Iterator[Message]:
    for each in searches(index):
        yield SEARCH.SearchManyRequest(index=index, queries=[each.query] * 2, options=each.options)
    for_each = [build_filter({"kind": kind}) for kind in ("kind0", FOREIGN)]
    query = search(index=index, mode=SEARCH.MODE_DENSE)
    yield SEARCH.SearchManyRequest(
        index=index, queries=[query.query] * 2, options=query.options, where_each=for_each
    )


NAMES = ["own-0", "own-3", f"{FOREIGN}-1", "absent"]
WHERES: list[Any] = [
    None,
    {"tenant": "b"},
    {"kind": FOREIGN},
    {"price": {"$gte": 30}},
    {"$not": {"tenant": "a"}},
]


def _wheres() -> Iterator[types_pb2.Filter | None]:
    for where in WHERES:
        yield None if where is None else build_filter(where)


def _writes(index: str) -> Iterator[Message]:
    """Requests that write nothing: they are dry runs, or fail."""
    for where in WHERES[1:]:
        yield INDEX.DeleteWhereRequest(index=index, where=build_filter(where), dry_run=True)


def _upserts(index: str) -> Iterator[Message]:
    point = types_pb2.Datapoint(id=f"{FOREIGN}-1", attributes={"kind": types_pb2.Value(string_value="kind0")})
    mask = ["attributes.kind"]
    yield INDEX.UpsertRequest(index=index, upserts=[{"datapoint": point, "update_mask": {"paths": mask}}])
    yield INDEX.UpsertRequest(
        index=index,
        upserts=[{"datapoint": {"id": f"{FOREIGN}-1", "vector": vector(4)}, "condition": {"if_revision": 1}}],
    )


CELLS: dict[str, Sequence[Callable[[World, bool], None]]] = {
    "/scannery.v1.SearchService/Search": [same(searches), nothing_foreign(searches)],
    "/scannery.v1.SearchService/SearchMany": [same(_many), nothing_foreign(_many)],
    "/scannery.v1.SearchService/SearchStream": [same(_streamed), nothing_foreign(_streamed)],
    "/scannery.v1.SearchService/Get": [
        same(lambda index: iter([SEARCH.GetRequest(index=index, ids=NAMES, return_vector=True)])),
    ],
    "/scannery.v1.SearchService/Count": [
        same(lambda index: (SEARCH.CountRequest(index=index, where=where) for where in _wheres())),
    ],
    "/scannery.v1.SearchService/Facets": [
        same(
            lambda index: (
                SEARCH.FacetsRequest(index=index, attribute="kind", where=where) for where in _wheres()
            )
        ),
    ],
    "/scannery.v1.SearchService/AttributeStats": [
        same(
            lambda index: (
                SEARCH.AttributeStatsRequest(index=index, attribute="price", where=where, quantiles=[0.5])
                for where in _wheres()
            )
        ),
    ],
    "/scannery.v1.SearchService/Scan": [
        same(
            lambda index: (
                SEARCH.ScanRequest(index=index, where=where, order_by={"field": "price", "descending": True})
                for where in _wheres()
            )
        ),
    ],
    "/scannery.v1.SearchService/Project": [
        same(lambda index: (SEARCH.ProjectRequest(index=index, where=where) for where in _wheres())),
    ],
    "/scannery.v1.SearchService/Explain": [
        same(
            lambda index: (
                SEARCH.ExplainRequest(index=index, query=each.query, options=each.options, id=name)
                for each in searches(index)
                for name in ("own-12", f"{FOREIGN}-13")
            )
        ),
    ],
    "/scannery.v1.SearchService/Feedback": [
        same(lambda index: iter([SEARCH.FeedbackRequest(query_id="x", clicked=[f"{FOREIGN}-1"])])),
    ],
    "/scannery.v1.IndexService/GetIndex": [same(lambda index: iter([INDEX.GetIndexRequest(index=index)]))],
    "/scannery.v1.IndexService/ListIndexes": [
        nothing_foreign(lambda index: iter([INDEX.ListIndexesRequest()])),
    ],
    "/scannery.v1.IndexService/ListAliases": [
        nothing_foreign(lambda index: iter([INDEX.ListAliasesRequest()])),
    ],
    "/scannery.v1.IndexService/WhoAmI": [nothing_foreign(lambda index: iter([INDEX.WhoAmIRequest()]))],
    "/scannery.v1.EmbeddingService/Embed": [
        nothing_foreign(lambda index: iter([embedding_pb2.EmbedRequest(texts=["tea"])])),
    ],
    "/scannery.v1.EmbeddingService/ListEncoders": [
        nothing_foreign(lambda index: iter([embedding_pb2.ListEncodersRequest()])),
    ],
    "/scannery.v1.IndexService/Upsert": [same(_upserts)],
    "/scannery.v1.IndexService/UpsertStream": [same(_upserts)],
    "/scannery.v1.IndexService/Delete": [
        same(
            lambda index: iter(
                [
                    INDEX.DeleteRequest(index=index, ids=[f"{FOREIGN}-1"], document_ids=[f"{FOREIGN}-doc"]),
                    INDEX.DeleteRequest(index=index, ids=[f"{FOREIGN}-1"], condition={"if_revision": 1}),
                ]
            )
        ),
    ],
    "/scannery.v1.IndexService/DeleteWhere": [same(_writes)],
    "/scannery.v1.IndexService/UpdateWhere": [
        same(
            lambda index: (
                INDEX.UpdateWhereRequest(
                    index=index,
                    where=build_filter(where),
                    attributes={"kind": types_pb2.Value(string_value="new")},
                    dry_run=True,
                )
                for where in WHERES[1:]
            )
        ),
    ],
}
"""Of each method that answers such callers: what is compared."""


@pytest.mark.parametrize("path", METHODS)
def test_a_caller_of_a_part_learns_nothing_of_the_rest(world: World, path: str) -> None:
    registry = world.server._lifecycle.methods.methods
    streams = {"/scannery.v1.SearchService/SearchStream", "/scannery.v1.IndexService/UpsertStream"}
    narrowed = path in streams or registry[path].narrowed
    assert narrowed == (path in CELLS), "says whether it serves callers of a part, and has its requests here"
    for http in (False, True):
        if http and METHODS[path].client_streaming:
            continue
        for check in CELLS.get(path, ()):
            check(world, http)
        if not narrowed:
            fields = METHODS[path].input_type.fields_by_name
            request = METHODS[path].input_type._concrete_class(
                **({"index": PART} if "index" in fields else {})
            )
            assert world.call(path, request, "part", http=http).code == "PERMISSION_DENIED"


def test_fields_that_a_key_does_not_open_do_not_exist(world: World) -> None:
    def called(path: str, request: Message) -> Called:
        return world.call(f"/scannery.v1.{path}", request, "fields")

    pb = search_pb2
    [hit, *_] = called("SearchService/Search", search("tea", index=PART)).answer.hits  # type: ignore[union-attr]
    point = hit.datapoint
    assert {field.name for field, _ in point.ListFields()} == {
        "id",
        "document_id",
        "title",
        "attributes",
        "revision",
    }
    assert {*point.attributes} == {"price"}
    # Tools name fields that every index has: they are as those of a datapoint without them.
    texts = search("tea", index=PART, return_fields=["title", "text", "payload", "offsets"])
    [hit, *_] = called("SearchService/Search", texts).answer.hits  # type: ignore[union-attr]
    assert {field.name for field, _ in hit.datapoint.ListFields()} == {
        "id",
        "document_id",
        "title",
        "revision",
    }
    info = called("IndexService/GetIndex", INDEX.GetIndexRequest(index=PART)).answer.index  # type: ignore[union-attr]
    assert {*info.attributes} == {"price"}
    assert "secret" not in info.spec_json
    for path, request, code in (
        ("SearchService/Search", search("tea", index=PART, return_vector=True), "PERMISSION_DENIED"),
        ("SearchService/Search", search("tea", index=PART, highlight=pb.Highlight()), "PERMISSION_DENIED"),
        (
            "SearchService/Search",
            search("tea", index=PART, context=pb.Context(passages=1)),
            "PERMISSION_DENIED",
        ),
        ("SearchService/Search", search("tea", index=PART, return_fields=["secret"]), "INVALID_ARGUMENT"),
        (
            "SearchService/Search",
            search("tea", index=PART, ranking="score + len(secret)"),
            "INVALID_ARGUMENT",
        ),
        (
            "SearchService/Search",
            search("tea", index=PART, where=build_filter({"secret": "x"})),
            "INVALID_ARGUMENT",
        ),
        (
            "SearchService/Search",
            search("tea", index=PART, crowding=pb.Crowding(max_per_group=1, group_by="kind")),
            "INVALID_ARGUMENT",
        ),
        (
            "SearchService/Get",
            pb.GetRequest(index=PART, ids=["own-0"], return_vector=True),
            "PERMISSION_DENIED",
        ),
        ("SearchService/Facets", pb.FacetsRequest(index=PART, attribute="secret"), "INVALID_ARGUMENT"),
        (
            "SearchService/Scan",
            pb.ScanRequest(index=PART, order_by=SEARCH.OrderBy(field="kind")),
            "INVALID_ARGUMENT",
        ),
        ("SearchService/Project", pb.ProjectRequest(index=PART, attributes=["secret"]), "PERMISSION_DENIED"),
    ):
        assert called(path, request).code == code, request


def test_methods_that_a_key_does_not_open_are_refused(world: World) -> None:
    get = SEARCH.GetRequest(index=PART, ids=["own-0"])
    for http in (False, True):
        assert world.call("/scannery.v1.SearchService/Get", get, "get", http=http).code == "OK"
        for path, request in (
            ("/scannery.v1.SearchService/Search", search(index=PART, mode=SEARCH.MODE_DENSE)),
            ("/scannery.v1.SearchService/Count", SEARCH.CountRequest(index=PART)),
            ("/scannery.v1.IndexService/ListIndexes", INDEX.ListIndexesRequest()),
        ):
            assert world.call(path, request, "get", http=http).code == "PERMISSION_DENIED"
    streamed = SEARCH.SearchStreamRequest(search=search(index=PART, mode=SEARCH.MODE_DENSE))
    answer: Any = world.call("/scannery.v1.SearchService/SearchStream", streamed, "get").answer
    assert answer.error.code == grpc.StatusCode.PERMISSION_DENIED.value[0]


def test_what_a_key_writes_is_of_its_part(world: World) -> None:
    with scannery.connect(
        world.server.address, api_key=world.keys["part"], tls=False, timeout_s=120
    ) as client:
        assert client.whoami().access == ({"index": PART, "where": {"tenant": "a"}},)
        part = client.index(PART)
        point: Any = {"id": "new", "vector": np.ones(DIMENSIONS, np.float32), "attributes": {"kind": "kind0"}}
        part.upsert([point])
        [stored] = part.get(["new"])
        assert stored is not None
        assert stored.attributes["tenant"] == "a"
        for refused in (
            point | {"attributes": {"tenant": "b"}},
            point | {"id": f"{FOREIGN}-1", "attributes": {"tenant": "a"}},
        ):
            with pytest.raises(scannery.PermissionDeniedError):
                part.upsert([refused])
        with pytest.raises(scannery.PermissionDeniedError, match="tenant"):
            part.update(where={"id": "new"}, attributes={"tenant": "b"})
        assert part.delete(ids=["new", f"{FOREIGN}-1"]).deleted == 1
        assert part.delete(document_ids=[f"{FOREIGN}-doc"]).deleted == 0
    with scannery.connect(
        world.server.address, api_key=world.keys["all"], tls=False, timeout_s=120
    ) as client:
        assert client.index(PART).count() == 90
