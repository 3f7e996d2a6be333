"""Phrases in quotes: which signs make one, and what becomes of the query."""

from __future__ import annotations

from typing import Any

import pytest

from scannery.client.request.filters import Where, build_filter
from scannery.indexer import Manifest, parse_spec
from scannery.runtime.errors import DeadlineError, InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving.limits import (
    MAX_FILTER_CONDITIONS,
    MAX_FILTER_DEPTH,
    MAX_FILTER_VALUES,
    MAX_PHRASES,
    MAX_QUERIES,
    MAX_QUERY_TEXT_BYTES,
)
from scannery.serving.request.filter import AllOf, parse_filter
from scannery.serving.request.options import Options, parse_options
from scannery.serving.request.phrases import each_with_phrases, with_phrases, without_quotes
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import Filter
from tests.serving.request.test_filter import nested

SPEC = parse_spec({
    "index": "words", "source": {"id": "id", "text": "text"}, "encoder": {"model": "none"},
    "attributes": {"show": "string", "year": "int"},
    "lexical": {"analyser": 4, "stop_words": ["to", "be"]},
})  # fmt: skip
MANIFEST = Manifest(
    index="words",
    version=1,
    created_at="2026-01-01T00:00:00Z",
    spec=SPEC,
    dimensions=4,
    shards=1,
    segments=(),
)

NEVER = Deadline.after(None)


def options(**settings: Any) -> Options:
    return parse_options(pb.SearchOptions(**settings), MANIFEST)


def changed(query: pb.Query, *, has_rows: bool = True, **settings: Any) -> pb.SearchRequest:
    request = pb.SearchRequest(index="words", query=query, options=pb.SearchOptions(**settings))
    before = request.SerializeToString(deterministic=True)
    answer = with_phrases(request, SPEC, options(**settings), lambda *_: has_rows)
    assert request.SerializeToString(deterministic=True) == before
    return answer


def phrases_in(where: Filter) -> list[tuple[str, int]]:
    parts = where.all_of.filters if where.WhichOneof("kind") == "all_of" else [where]
    conditions = [part.condition for part in parts if part.condition.field == "text"]
    return [(each.values[0].string_value, each.values[1].int_value) for each in conditions]


@pytest.mark.parametrize(
    ("text", "plain", "phrases"),
    [
        ('volcano "plate boundary"', "volcano plate boundary", [("plate boundary", 0)]),
        ('"plate boundary"~2 volcano', "plate boundary volcano", [("plate boundary", 2)]),
        ("“plate boundary”, why?", "plate boundary, why?", [("plate boundary", 0)]),
        ("„Plattengrenze“ und „Vulkan”~1", "Plattengrenze und Vulkan", [("Plattengrenze", 0), ("Vulkan", 1)]),
        ('("a b") "c"', "(a b) c", [("a b", 0), ("c", 0)]),
        ('"a""b"“c”', "a b c", [("a", 0), ("b", 0), ("c", 0)]),  # words stay apart
        ("x“a b”y", "x a b y", [("a b", 0)]),
        ('x."y z".z', "x. y z .z", [("y z", 0)]),
        ('请问"板块边界"是什么', "请问板块边界是什么", [("板块边界", 0)]),
        ('"판 경계"는 무엇', "판 경계는 무엇", [("판 경계", 0)]),
        ('"to be or"', "to be or", [("to be or", 0)]),
        ('one "unbalanced quote', None, []),
        ("one “unbalanced quote", None, []),
        ('5" pipe and 6" pipe', None, []),
        ('צה"ל and נה"ל', None, []),
        ('" spaced "', None, []),
        ('"" “”', None, []),
        ('"?!" here', None, []),
        ('"to be"', None, []),  # stop words alone are not indexed
        ("it's 'plain'", None, []),
        ('"a b"~x', "a b~x", [("a b", 0)]),
        ('"a b" "c', 'a b "c', [("a b", 0)]),
        ('"a b"~12345678901', "a b~12345678901", [("a b", 0)]),
        (" ".join(["x"] * 31 + ['"y"']), " ".join(["x"] * 31 + ["y"]), [("y", 0)]),
        (" ".join(["x"] * 32 + ['"y"']), None, []),  # prose
        (f"“界限”{'界' * 90}", f"界限{'界' * 90}", [("界限", 0)]),
        (f"“界限”{'界' * 99}", None, []),
        (",".join(['"x"'] * 16), ", ".join("x" * 16), [("x", 0)] * 16),
        (",".join(['"x"'] * 17), None, []),  # data
        (f"“{'界' * 32}”", "界" * 32, [("界" * 32, 0)]),
        (f"“{'界' * 33}”", None, []),
    ],
)
def test_quotes_make_phrases(text: str, plain: str | None, phrases: list[tuple[str, int]]) -> None:
    request = changed(pb.Query(text=text))
    assert request.query.text == (text if plain is None else plain)
    assert phrases_in(request.options.where) == phrases
    words = changed(pb.Query(words=text))
    assert words.query.words == request.query.text and phrases_in(words.options.where) == phrases


def test_phrases_come_to_the_filter() -> None:
    where = build_filter({"show": "gotime"})
    request = changed(pb.Query(text='"a b" c'), where=where, k=3)
    assert (request.index, request.options.k) == ("words", 3)
    assert request.options.where.all_of.filters[0] == where
    assert phrases_in(request.options.where.all_of.filters[1]) == [("a b", 0)]


@pytest.mark.parametrize(
    "where",
    [
        {"$or": [{"show": str(number)} for number in range(MAX_FILTER_CONDITIONS)]},
        {"show": {"$in": [str(number) for number in range(MAX_FILTER_VALUES)]}},
        nested(MAX_FILTER_DEPTH - 1),
    ],
)
def test_filters_may_be_as_large_beside_phrases(where: Where) -> None:
    message = build_filter(where)
    plain = parse_filter(message, SPEC)
    request = changed(pb.Query(text=",".join(['"a"'] * MAX_PHRASES)), where=message)
    joined = parse_filter(request.options.where, SPEC)
    assert isinstance(joined, AllOf) and joined.parts[0] == plain and len(joined.parts) == MAX_PHRASES + 1


def test_texts_that_are_too_long_are_not_read() -> None:
    request = pb.SearchRequest(query=pb.Query(text='"a b"~101' + "x" * MAX_QUERY_TEXT_BYTES))
    assert with_phrases(request, SPEC, options(), lambda *_: True) is request  # is refused


def test_phrases_that_no_row_has_select_nothing() -> None:
    where = build_filter({"show": "gotime"})
    request = changed(pb.Query(text='"a b"'), has_rows=False, where=where)
    assert request.query.text == "a b" and request.options.where == where
    assert not changed(pb.Query(text='"a b"'), has_rows=False).options.HasField("where")


@pytest.mark.parametrize(
    ("query", "settings"),
    [
        (pb.Query(text='"a b"'), {"mode": pb.MODE_DENSE}),
        (pb.Query(text='"a b"'), {"min_score": 0.5}),  # dense, too
        (pb.Query(words='"a b"'), {"mode": pb.MODE_DENSE}),
        (pb.Query(id='"a b"'), {"mode": pb.MODE_LEXICAL}),
        (pb.Query(group=pb.QueryGroup(queries=[pb.Query(text='"a b"')])), {"mode": pb.MODE_LEXICAL}),
    ],
)
def test_quotes_mean_nothing_elsewhere(query: pb.Query, settings: dict[str, Any]) -> None:
    request = changed(query, **settings)
    assert request.query == query and not request.options.HasField("where")


def test_quotes_mean_nothing_beside_sparse_vectors_and_without_words() -> None:
    query = pb.Query(text='"a b"')
    query.sparse_vector.indices.append(1)
    assert changed(query, mode=pb.MODE_HYBRID).query == query
    request = pb.SearchRequest(query=pb.Query(text='"a b"'))
    silent = SPEC.model_copy(update={"lexical": None})
    assert with_phrases(request, silent, options(), lambda *_: True) is request


def test_too_much_slop_is_refused() -> None:
    assert phrases_in(changed(pb.Query(text='"a b"~100')).options.where) == [("a b", 100)]
    with pytest.raises(InvalidRequestError, match=r"query: the slop of a phrase must be 0 to 100, got ~101"):
        changed(pb.Query(text='"a b"~101'))


def test_each_query_of_a_batch_has_its_phrases() -> None:
    queries = [pb.Query(text='"a b" c'), pb.Query(text="plain"), pb.Query(text='"d"~1')]
    batch = pb.SearchManyRequest(index="words", queries=queries)
    request = each_with_phrases(batch, SPEC, options(), lambda *_: True, NEVER)
    assert [query.text for query in request.queries] == ["a b c", "plain", "d"]
    assert [phrases_in(where) for where in request.where_each] == [[("a b", 0)], [], [("d", 1)]]
    batch.where_each.extend([build_filter({"show": "x"})] * 3)
    request = each_with_phrases(
        batch,
        SPEC,
        options(),
        lambda path, where: (path, phrases_in(where)) != ("queries[2]", [("d", 1)]),
        NEVER,
    )
    assert [len(where.all_of.filters) for where in request.where_each] == [2, 0, 0]
    plain = pb.SearchManyRequest(queries=queries[1:2])
    assert each_with_phrases(plain, SPEC, options(), lambda *_: True, NEVER) is plain
    del batch.where_each[0]
    assert each_with_phrases(batch, SPEC, options(), lambda *_: True, NEVER) is batch  # to be refused
    large = pb.SearchManyRequest(queries=queries[:1] * (MAX_QUERIES + 1))
    assert each_with_phrases(large, SPEC, options(), lambda *_: True, NEVER) is large


def test_a_batch_is_read_in_time() -> None:
    queries = [pb.Query(text=f'"{"?" * 100}"')] * 3  # no phrase, which rows would be looked up for
    batch = pb.SearchManyRequest(index="words", queries=queries)
    clock = iter([0.0, 0.0, 2.0])
    with pytest.raises(DeadlineError):
        each_with_phrases(batch, SPEC, options(), lambda *_: True, Deadline(1.0, lambda: next(clock)))


def test_apis_without_phrases_have_quotes_as_signs() -> None:
    for text in ('"a b" c', "“a b” „c“", '"'):
        query = pb.Query(text=without_quotes(text))
        assert changed(query).query == query and len(query.text) == len(text)
