"""Limits of callers: how they are written, and which requests they refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.client.request import calls
from scannery.runtime.errors import ConfigError, PermissionDeniedError
from scannery.serving import EncoderConfig, SecurityConfig, ServerConfig
from scannery.serving.security import KeyFile
from scannery.serving.security.authentication import Authenticator
from scannery.serving.security.limits import STRICT, Limits, parse_items, parse_limits
from scannery.serving.security.policy import check_policy
from scannery.serving.security.principal import Principal
from scannery.v1 import index_pb2, search_pb2, types_pb2
from tests.served import DIMENSIONS
from tests.serving.security.test_jwt import Issuer

VECTOR = np.random.default_rng(0).normal(size=DIMENSIONS).astype(np.float32)


# How they are written


def test_limits_are_the_same_as_text_json_and_fields() -> None:
    items = [
        "requests_per_s=50",
        "rows_per_s=1e6",
        "max_k=100",
        "refuse=scan,exact",
        "tenant=acme",
        "burst_s=2",
    ]
    limits = Limits(
        requests_per_s=50, rows_per_s=1e6, max_k=100, refuse=("exact", "scan"), tenant="acme", burst_s=2
    )
    assert parse_items(items) == limits
    assert parse_limits(json.loads(json.dumps(limits.to_dict()))) == limits
    assert parse_items(str(limits).split()) == limits
    assert parse_items(["none"]) == Limits() == parse_limits({})
    assert (str(Limits()), Limits().to_dict()) == ("none", {})


def test_strict_is_a_set_of_limits_that_others_change() -> None:
    assert parse_items(["strict"]) == STRICT == parse_limits({"strict": True})
    assert parse_items(["max_k=500", "strict"]).max_k == 500
    assert parse_items(["strict", "refuse=scan"]).refuse == ("scan",)
    assert parse_items(["strict", "queries_per_s=3"]).to_dict() == {**STRICT.to_dict(), "queries_per_s": 3.0}


def test_a_limit_of_rows_is_not_one_of_requests() -> None:
    limits = parse_items(["max_rows=1e5"])
    assert limits.to_dict() == {"max_rows": 100_000}
    assert not limits.has_policy  # no request is looked at for it
    assert STRICT.max_rows is None


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["max_rows=0"], "max_rows: must be a number from 1 to"),
        (["max_rows=1.5"], "max_rows: must be a whole number, got 1.5"),
        (["request_per_s=3"], "no limit 'request_per_s'.*did you mean requests_per_s"),
        (["max_k"], "NAME=VALUE.*did you mean max_k"),
        (["max_k=many"], "max_k: must be a number, got 'many'"),
        (["max_k=1.5"], "max_k: must be a whole number, got 1.5"),
        (["max_k=0"], "max_k: must be a number from 1 to"),
        (["requests_per_s=0"], "requests_per_s: must be a number from 0.001 to"),
        (["requests_per_s=nan"], "requests_per_s: must be a number from"),
        (["requests_per_s=inf"], "requests_per_s: must be a number from"),
        (["burst_s=0"], "burst_s: must be a number from"),
        (["max_target_recall=2"], "max_target_recall: must be a number from 0.5 to 1"),
        (["refuse=scans"], "'scans' is not among exact,.*did you mean scan"),
        (["max_k=1", "max_k=2"], "max_k is there twice"),
        (["tenant=" + "x" * 65], "tenant: must be a text of at most 64"),
    ],
)
def test_wrong_limits_are_refused(items: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_items(items)


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        3,
        "strict",
        {"strict": 1},
        {"max_k": "5"},
        {"max_k": True},
        {"refuse": "scan"},
        {"tenant": 1},
    ],
)
def test_json_that_is_no_limits_is_refused(data: object) -> None:
    with pytest.raises(ConfigError):
        parse_limits(data)


def test_a_key_has_its_limits_in_the_file(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / "keys.json")
    limits = parse_items(["strict", "rows_per_s=10"])
    key, _ = file.create("web", limits=limits)
    plain, _ = file.create("plain")
    assert file.read() == [key, plain]
    assert (key.principal.limits, plain.principal.limits) == (limits, None)
    items = json.loads(file.path.read_text())["keys"]
    assert "limits" not in items[1]
    items[0]["limits"]["max_kk"] = 3
    file.path.write_text(json.dumps({"keys": items}))
    with pytest.raises(ConfigError, match="no limit 'max_kk'"):
        file.read()


def test_a_token_has_its_limits_in_a_claim(tmp_path: Path) -> None:
    issuer = Issuer(tmp_path)
    authenticator = Authenticator(issuer.security)

    def caller(**claims: Any) -> Principal | None:
        return authenticator.principal((("authorization", f"Bearer {issuer.token(**claims)}"),))

    limited = caller(scannery_limits={"strict": True, "requests_per_s": 5})
    assert limited is not None
    assert limited.limits == parse_items(["strict", "requests_per_s=5"])
    assert (plain := caller()) is not None
    assert plain.limits is None
    assert caller(scannery_limits={"request_per_s": 5}) is None  # not a caller without limits
    assert caller(scannery_limits="strict") is None


def test_options_name_wrong_limits_and_a_leaf_takes_none(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no limit 'max_hits'"):
        SecurityConfig(limits=("max_hits=3",))
    security = SecurityConfig(limits=("max_k=3",))
    assert security.default_limits == Limits(max_k=3)
    with pytest.raises(ConfigError, match="not for a leaf"):
        ServerConfig(store=str(tmp_path), role="leaf", group="0/1", security=security)
    assert EncoderConfig(models=("m",), security=security).security.default_limits == Limits(max_k=3)


# Strict mode


def search(**options: Any) -> search_pb2.SearchRequest:
    return calls.search("library", VECTOR, **{"k": 10, **options}).request


def substring(field: str = "show") -> types_pb2.Filter:
    value = types_pb2.Value(string_value="x")
    condition = types_pb2.Condition(field=field, operator=types_pb2.OPERATOR_ISUBSTRING, values=[value])
    return types_pb2.Filter(
        any_of=types_pb2.FilterList(
            filters=[types_pb2.Filter(negation=types_pb2.Filter(condition=condition))]
        )
    )


def many(**fields: Any) -> search_pb2.SearchManyRequest:
    return search_pb2.SearchManyRequest(index="library", **fields)


GROUP = search_pb2.Query(group=search_pb2.QueryGroup(queries=[search_pb2.Query(id="a")] * 4))
CONDITIONS = {"$and": [{"year": number} for number in range(4)]}
MATRIX = types_pb2.Matrix(packed=bytes(4 * 4), dimensions=1)


@pytest.mark.parametrize(
    ("limit", "request_", "field"),
    [
        ("max_k=9", search(), "k"),
        ("max_k=9", search_pb2.SearchRequest(), "k"),  # the default is 10
        ("max_k=9", search_pb2.ExplainRequest(), "k"),
        ("max_k=9", many(), "k"),
        ("max_offset=0", search(offset=1), "offset"),
        ("max_target_recall=0.9", search(target_recall=0.95), "target_recall"),
        ("max_queries=3", many(queries=[search_pb2.Query(id="a")] * 4), "queries"),
        ("max_queries=3", many(vectors=MATRIX), "vectors"),
        ("max_queries=3", many(queries=[GROUP]), r"queries\[0\].group.queries"),
        ("max_queries=3", search_pb2.SearchRequest(query=GROUP), "query.group.queries"),
        ("max_ids=2", search_pb2.GetRequest(ids=["a"] * 3), "ids"),
        ("max_ids=2", index_pb2.DeleteRequest(document_ids=["a"] * 3), "document_ids"),
        ("max_conditions=3", search(where=CONDITIONS), "where"),
        ("max_page_size=9", search_pb2.ScanRequest(page_size=10), "page_size"),
        ("max_page_size=999", search_pb2.ScanRequest(), "page_size"),
        ("max_page_size=999", search_pb2.ProjectRequest(), "page_size"),
        ("max_rerank=9", search(rerank=10), "rerank.candidates"),
        ("refuse=exact", search(exact=True), "exact"),
        (
            "refuse=knobs",
            search_pb2.SearchRequest(
                options=search_pb2.SearchOptions(knobs=search_pb2.SearchKnobs(leaves=3))
            ),
            "knobs",
        ),
        ("refuse=explain", search(explain=True), "explain"),
        ("refuse=explain", search_pb2.ExplainRequest(), "id"),
        ("refuse=rerank", search(rerank=10), "rerank"),
        ("refuse=scan", search_pb2.ScanRequest(), "index"),
        ("refuse=scan", search_pb2.ProjectRequest(), "index"),
        ("refuse=sort", search_pb2.ScanRequest(order_by=search_pb2.OrderBy(field="id")), "order_by"),
        ("refuse=sort", search_pb2.ScanRequest(sample=3), "sample"),
        (
            "refuse=substring",
            search_pb2.SearchRequest(options=search_pb2.SearchOptions(where=substring())),
            "where.show",
        ),
        ("refuse=substring", many(where_each=[substring()]), r"where_each\[0\].show"),
        ("refuse=substring", search_pb2.CountRequest(where=substring()), "where.show"),
        ("refuse=aggregate", search_pb2.FacetsRequest(), "attribute"),
        ("refuse=aggregate", search_pb2.AttributeStatsRequest(), "attribute"),
        ("refuse=filtered_write", index_pb2.DeleteWhereRequest(), "where"),
        ("refuse=filtered_write", index_pb2.UpdateWhereRequest(), "where"),
    ],
)
def test_a_policy_refuses_and_names_the_field_and_the_limit(limit: str, request_: Any, field: str) -> None:
    with pytest.raises(
        PermissionDeniedError, match=rf"^{field}: .*{limit.split('=', maxsplit=1)[0]}"
    ) as caught:
        check_policy(request_, parse_items([limit]))
    assert caught.value.field is not None


def test_what_is_within_the_limits_passes() -> None:
    limits = parse_items(["max_k=10", "max_conditions=4", "max_queries=4", "max_ids=3", "max_page_size=1000"])
    for request in (
        search(where=CONDITIONS),
        many(queries=[GROUP] * 4),
        search_pb2.GetRequest(ids=["a"] * 3),
        search_pb2.ScanRequest(),
        index_pb2.CreateIndexRequest(),
    ):
        check_policy(request, limits)
