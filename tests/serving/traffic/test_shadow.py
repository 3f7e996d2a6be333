"""A shadow on a running server: what it answers is logged, and people choose between both."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import scannery
from scannery.cli.commands.log import log_app
from scannery.indexer import Store
from scannery.indexer.traffic.day_files import read_rows
from scannery.indexer.traffic.forgetting import forget_client, forget_documents
from scannery.indexer.traffic.rows import LoggedQuery, ShadowAnswer
from scannery.runtime.errors import ConfigError
from scannery.serving import SecurityConfig
from scannery.serving.config import TrafficConfig
from scannery.serving.security.api_keys import KeyFile
from tests.served import serving

TEXTS = [f"{word} {number}" for number in range(10) for word in ("river", "guitar", "garden")]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with an index of words, and one with the same texts and one more."""
    path = tmp_path / "store"
    with scannery.connect(path, create=True) as client:
        for name, more in (("talks", []), ("trial", ["river river river"])):
            index = client.create_index(name, lexical=True)
            index.upsert([{"id": f"d{n}", "text": text} for n, text in enumerate([*TEXTS, *more])])
    return path


@contextmanager
def shadowing(store: Path, **options: object) -> Iterator[scannery.Client]:
    traffic = TrafficConfig(share=1.0, text=True, shadow=("talks=trial",), **options)  # type: ignore[arg-type]
    with serving(store, traffic=traffic) as server, scannery.connect(server.address) as client:
        yield client


@pytest.mark.system
def test_both_answers_are_logged_under_one_id(store: Path) -> None:
    with shadowing(store) as client:
        for text in ("river", "guitar"):
            client.index("talks").search(text, k=3)
        client.index("trial").search("garden", k=3)
        time.sleep(3)  # for the time that is saved up
    opened = Store.open(store)
    rows = {row.query_id: row for row in read_rows(opened, "talks", LoggedQuery)}
    shadows = list(read_rows(opened, "talks", ShadowAnswer))
    assert {rows[each.query_id].user_query for each in shadows} == {"river", "guitar"}
    assert all(each.attributes["shadow"] == "trial" and each.latency_us > 0 for each in shadows)
    [river] = [each for each in shadows if each.user_query == "river"]
    assert river.query_response_hit_ids[0] == "d30" != rows[river.query_id].query_response_hit_ids[0]
    assert list(read_rows(opened, "trial", ShadowAnswer)) == []
    assert [row.user_query for row in read_rows(opened, "trial", LoggedQuery)] == ["garden"]
    report = shadow(store)
    assert report["answers"] == 2 and report["overlap"]["mean"] < 1

    forget_documents(opened, "talks", ["d30"])
    assert all("d30" not in each.query_response_hit_ids for each in read_rows(opened, "talks", ShadowAnswer))
    forget_client(opened, "talks", "127.0.0.1")
    assert list(read_rows(opened, "talks", ShadowAnswer)) == []


@pytest.mark.system
def test_a_shadow_that_cannot_answer_harms_nothing(store: Path) -> None:
    with shadowing(store, interleave=1.0) as client:
        client.drop_index("trial")
        assert len(client.index("talks").search("river", k=3)) == 3
    assert shadow(store)["answers"] == 0


@pytest.mark.system
def test_an_alias_in_place_of_an_index_is_told(store: Path, caplog: pytest.LogCaptureFixture) -> None:
    with scannery.connect(store) as client:
        client.alias("live", "talks")
    with serving(store, traffic=TrafficConfig(share=1.0, shadow=("live=trial",))):
        assert "--shadow: 'live' is an alias, for which no query is asked: name 'talks'" in caplog.text


@pytest.mark.system
def test_answers_of_a_shadow_are_of_it_alone(store: Path) -> None:
    """It has a shadow, too, and answers to its people have hits of both."""
    shadows = ("talks=trial", "trial=talks")
    traffic = TrafficConfig(share=1.0, text=True, shadow=shadows, interleave=0.5)
    with serving(store, traffic=traffic) as server, scannery.connect(server.address) as client:
        for number in range(24):
            client.index("talks").search(f"river {'so ' * number}", k=3)
        time.sleep(3)
    answers = {
        tuple(row.query_response_hit_ids) for row in read_rows(Store.open(store), "talks", ShadowAnswer)
    }
    assert len(answers) == 1 and next(iter(answers))[0] == "d30"


@pytest.mark.system
def test_people_choose_between_both(store: Path) -> None:
    """They click the hit that only the shadow has: 40 answers are enough, and none is needed for the others."""
    chosen = random.Random(1)
    with shadowing(store, interleave=1.0) as client:
        index, first, again = client.index("talks"), [], []
        for number in range(40):
            text = f"river {'very ' * number}"
            hits = index.search(text, k=5)
            first.append([hit.id for hit in hits])
            again.append([hit.id for hit in index.search(text, k=5)])
            assert len(set(first[-1])) == 5
            if "d30" in first[-1]:
                client.feedback(hits.query_id, clicked=["d30"])
            else:
                client.feedback(hits.query_id, clicked=[chosen.choice(first[-1])])
        assert first == again, "who asks again sees the same"
        assert any("d30" in each for each in first)
        paged = index.search("river", k=5, offset=5)
        assert "d30" not in [hit.id for hit in paged]
    rows = [row for row in read_rows(Store.open(store), "talks", LoggedQuery) if "teams" in row.attributes]
    assert len(rows) == 80 and {len(row.attributes["teams"]) for row in rows} == {5}
    preference = shadow(store)["preference"]
    assert preference["answers"] == 80 and preference["clicked"] == 40
    assert preference["verdict"] == "shadow", preference


@pytest.mark.system
def test_hits_of_a_shadow_are_for_those_who_may_see_it(store: Path, tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.json")
    _, both = keys.create("both", scopes=["read"])
    _, one = keys.create("one", scopes=["read"], indexes=["talks"])
    traffic = TrafficConfig(share=1.0, shadow=("talks=trial",), interleave=1.0)
    security = SecurityConfig(keys_file=str(tmp_path / "keys.json"))
    with serving(store, traffic=traffic, security=security) as server:

        def hits(key: str) -> set[str]:
            with scannery.connect(server.address, api_key=key) as client:
                index = client.index("talks")
                return {hit.id for number in range(9) for hit in index.search(f"river {'so ' * number}", k=3)}

        assert "d30" in hits(both)
        assert "d30" not in hits(one)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shadow": ("a=b",)}, "--traffic-share"),
        ({"share": 1.0, "shadow": ("a",)}, "INDEX=OTHER"),
        ({"share": 1.0, "shadow": ("a=a",)}, "INDEX=OTHER"),
        ({"share": 1.0, "shadow": ("a=b", "a=c")}, "INDEX=OTHER"),
        ({"share": 1.0, "shadow": ("a=B!",)}, "INDEX=OTHER"),
        ({"share": 1.0, "interleave": 0.5}, "--shadow"),
        ({"share": 1.0, "shadow": ("a=b",), "interleave": 2.0}, "interleave"),
    ],
)
def test_wrong_options_are_told(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrafficConfig(**options)  # type: ignore[arg-type]


def shadow(store: Path) -> dict[str, Any]:
    """Return the report of the command."""
    options = ["--index", "talks", "--shadow", "trial", "--store", str(store), "--json"]
    done = CliRunner().invoke(log_app, ["shadow", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    report: dict[str, Any] = json.loads(done.stdout)
    return report
