"""What credentials open of an index, as key files, tokens and tables of groups say it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import scannery
from scannery.cli.main import app
from scannery.runtime.mirror_names import mirror_name
from scannery.runtime.where import build_filter
from scannery.serving import ConfigError, SecurityConfig
from scannery.serving.security import KeyFile
from scannery.serving.security.access import access_to, parse_access
from scannery.serving.security.authentication import Authenticator
from scannery.serving.security.groups import GroupTable
from tests.served import serving
from tests.serving.security.test_jwt import Issuer


def test_the_first_pattern_that_names_an_index_counts() -> None:
    entries = parse_access([{"index": "shop", "where": {"year": 2020}}, {"index": "sh*"}])
    seen = [access_to(entries, name) for name in ("shop", "shoes", "books")]
    assert seen[0] is not None
    assert seen[0].seen is not None
    assert seen[0].seen.where == build_filter({"year": 2020})
    assert seen[1] is not None
    assert seen[1].seen is None
    assert seen[2] is None


def test_an_entry_of_an_index_counts_for_its_mirror() -> None:
    """A migration makes it, with the same datapoints."""
    long = "n" * 62

    def opened(name: str, *entries: dict[str, Any]) -> str | None:
        access = access_to(parse_access(entries), mirror_name(name))
        return None if access is None else access.index

    assert opened("shop", {"index": "shop"}) is None
    assert opened("shop", {"index": "shop", "where": {"a": 1}}, {"index": "*"}) == "shop"
    assert opened("shop", {"index": "*", "where": {"a": 1}}, {"index": "shop"}) == "*"
    assert opened("shop", {"index": "shop-mirror"}, {"index": "shop", "where": {"a": 1}}) == "shop-mirror"
    assert opened("shoes", {"index": "shop", "where": {"a": 1}}, {"index": "*"}) == "*"
    assert opened(long, {"index": long, "where": {"a": 1}}, {"index": "*"}) == long


@pytest.mark.parametrize(
    ("entries", "place"),
    [
        ([], "access"),
        ({"index": "a"}, "access"),
        ([{"index": "a", "were": {}}], r"access\[0\]"),
        ([{"where": {"a": 1}}], r"access\[0\].index"),
        ([{"index": "a", "where": {}}], r"access\[0\].where: allows all"),
        ([{"index": "a", "where": {"a": {"$lik": 1}}}], r"access\[0\].where: is not a filter"),
        ([{"index": "a", "where": {"a": float("nan")}}], r"access\[0\].where"),
        ([{"index": "a", "where": {"a": {"$not": {"$in": "$groups"}}}}], r"access\[0\].where"),
        ([{"index": "a", "fields": "title"}], r"access\[0\].fields"),
        ([{"index": "a", "fields": None}], r"access\[0\].fields: must not be null"),
        ([{"index": "a", "where": None}], r"access\[0\].where: must not be null"),
        ([{"index": "a", "where": {"$or": [{"b": 1}, {"$not": {"a": {"$in": "$groups"}}}]}}], "no group"),
        ([{"index": "a", "where": {"a": {"$ne": "$groups"}}}], "below [$]in"),
    ],
)
def test_what_is_no_access_opens_nothing(entries: Any, place: str) -> None:
    with pytest.raises(ConfigError, match=place):
        parse_access(entries)


def test_a_key_file_keeps_what_a_key_opens(tmp_path: Path) -> None:
    file = str(tmp_path / "keys.json")
    where = {"tenant": "acme", "$or": [{"year": {"$gte": 2020}}, {"public": True}]}
    options = ["--index", "shop", "--where", json.dumps(where), "--field", "title", "--method", "Search"]
    made = CliRunner().invoke(app, ["keys", "create", "web", "-f", file, *options])
    assert made.exit_code == 0, made.output
    [key] = KeyFile(file).read()
    [entry] = key.access
    assert entry.as_json() == {"index": "shop", "where": where, "fields": ["title"], "methods": ["Search"]}
    listed = json.loads(CliRunner().invoke(app, ["keys", "list", "-f", file, "--json"]).stdout)
    assert listed[0]["access"] == [entry.as_json()]
    # A release that does not know what a key opens must not open all: it refuses the file.
    KeyFile(file).create("plain")
    assert ["access" in item for item in json.loads(Path(file).read_text())["keys"]] == [True, False]
    with pytest.raises(ConfigError, match="scope write"):
        KeyFile(file).create("w", scopes=["write"], access=[{"index": "*", "fields": ["title"]}])


def test_groups_are_looked_up_for_each_request(tmp_path: Path) -> None:
    keys, groups, now = KeyFile(tmp_path / "keys.json"), tmp_path / "groups.json", [time.time()]
    key, text = keys.create("ann", access=[{"index": "*", "where": {"groups": {"$in": "$groups"}}}])
    groups.write_text("{}")
    security = SecurityConfig(keys_file=str(keys.path), groups_file=str(groups))
    authenticator = Authenticator(security, clock=lambda: now[0], ticks=lambda: now[0])

    def where() -> Any:
        principal = authenticator.principal((("authorization", f"Bearer {text}"),))
        assert principal is not None
        access = principal.access_to("shop")
        assert access is not None
        assert access.seen is not None
        return access.seen.where

    assert where() == build_filter({"$not": {}})
    groups.write_text(json.dumps({f"ann/{key.id}": ["staff", "sales"]}))
    now[0] += 1
    assert where() == build_filter({"groups": {"$in": ["sales", "staff"]}})
    groups.write_text('{"ann": "sales"}')  # is no table: the last one stays in force, and the server tells
    now[0] += 1
    assert where() == build_filter({"groups": {"$in": ["sales", "staff"]}})
    assert authenticator.stale_s > 0


@pytest.mark.parametrize("text", ["[]", '{"a": "b"}', '{"a": [1]}', json.dumps({"a": ["g"] * 1001})])
def test_what_is_no_table_of_groups_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "groups.json").write_text(text)
    with pytest.raises(ConfigError, match="groups_file"):
        GroupTable.read(str(tmp_path / "groups.json"))


@pytest.mark.system
def test_a_claim_says_what_a_token_opens(tmp_path: Path, library: Path) -> None:
    issuer = Issuer(tmp_path)
    options: dict[str, Any] = {
        "jwks_file": str(issuer.jwks),
        "jwt_issuer": "https://issuer.example",
        "jwt_audience": "scannery",
    }
    security = SecurityConfig(**options, jwt_access_claim="rights")
    with serving(library, security=security) as server:

        def count(**claims: Any) -> int:
            token = issuer.token(**claims)
            with scannery.connect(server.address, token=token, tls=False, timeout_s=120) as client:
                return client.index("library").count()

        assert (
            0
            < count(rights=[{"index": "lib*", "where": {"show": "gotime"}}])
            < count(rights=[{"index": "*"}])
        )
        claims: dict[str, Any]
        for claims in (
            {},
            {"rights": "all"},
            {"rights": []},
            {"rights": [{"index": "*", "where": {"show": {"$a": 1}}}]},
        ):
            with pytest.raises(scannery.PermissionDeniedError):
                count(**claims)
        with pytest.raises(scannery.PermissionDeniedError, match="not one of index"):
            count(rights=[{"index": "*", "where": {"absent": 1}}])
        with pytest.raises(scannery.NotFoundError):
            count(rights=[{"index": "flat"}])
