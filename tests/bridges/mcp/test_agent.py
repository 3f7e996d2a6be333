"""What agents do with the tools, by the official client, over both transports, against a server with keys."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from scannery.serving import Server
from tests.bridges.mcp.conftest import ATTRIBUTES, Agent, agent_over_http, agent_over_stdio

pytestmark = pytest.mark.system

INDEX = {"index": "podcasts"}


async def list_the_indexes(agent: Agent) -> None:
    (index,) = (await agent.call("list_indexes"))["indexes"]
    assert index["name"] == "podcasts"
    assert index["rows"] > 300
    assert index["attributes"] == dict(sorted(ATTRIBUTES.items()))
    assert index["modes"] == ["dense", "lexical", "hybrid"]


async def find_an_episode(agent: Agent) -> None:
    answer = await agent.call("search", **INDEX, query="magma rises from the mantle to a crater", k=5)
    assert answer["mode"] == "hybrid"
    assert answer["hits"][0]["document_id"] == "curious-residue-004"
    assert answer["hits"][0]["title"] == "Where the Mountain Comes From"
    assert len(answer["hits"]) == 5


async def filter_by_show_and_date(agent: Agent) -> None:
    where = {"show": "Curious Residue", "published": {"$gte": "2018-06-01", "$lt": "2019-01-01"}}
    answer = await agent.call("search", **INDEX, query="how does it work", where=where, max_per_document=1)
    episodes = [hit["attributes"] for hit in answer["hits"]]
    assert episodes
    assert {episode["show"] for episode in episodes} == {"Curious Residue"}
    assert all("2018-06-01" <= episode["published"] < "2019-01-01" for episode in episodes)
    documents = [hit["document_id"] for hit in answer["hits"]]
    assert len(documents) == len(set(documents))


async def read_around_a_hit(agent: Agent) -> None:
    document = {"document_id": "curious-residue-004"}
    whole = await agent.call("read_document", **INDEX, **document)
    assert whole["total"] == len(whole["passages"]) > 2
    assert whole["next_start"] is None
    middle = whole["passages"][1]
    around = await agent.call("read_around", **INDEX, id=middle["id"], before=1, after=0)
    assert [passage["text"] for passage in around["passages"]] == [
        passage["text"] for passage in whole["passages"][:2]
    ]
    assert around["next_start"] == 2
    later = await agent.call("read_document", **INDEX, **document, start=2)
    assert [passage["id"] for passage in later["passages"]] == [
        passage["id"] for passage in whole["passages"][2:]
    ]


async def keep_to_a_budget(agent: Agent) -> None:
    answer = await agent.call("search", **INDEX, query="volcanoes", k=50, token_budget=500)
    assert 0 < len(answer["hits"]) < 50
    assert answer["left_out"] == 50 - len(answer["hits"])
    best = await agent.call("search", **INDEX, query="volcanoes", k=50)
    assert [hit["id"] for hit in answer["hits"]] == [hit["id"] for hit in best["hits"]][: len(answer["hits"])]
    # A text of JSON in place of an object, as some models send it.
    assert (await agent.call("search", **INDEX, query="x", where='{"topic": "science"}', k=1))["hits"]


async def count_and_list_values(agent: Agent) -> None:
    topics = await agent.call("facets", **INDEX, attribute="topic", limit=100)
    assert len(topics["facets"]) == topics["distinct"]
    science = next(facet["count"] for facet in topics["facets"] if facet["value"] == "science")
    assert (await agent.call("count", **INDEX, where={"topic": "science"}))["count"] == science
    assert (await agent.call("count", **INDEX))["count"] == sum(facet["count"] for facet in topics["facets"])
    times = await agent.call("facets", **INDEX, attribute="published", where={"topic": "science"}, limit=1)
    assert times["least"] < times["greatest"]


async def ask_why(agent: Agent) -> None:
    query = {**INDEX, "query": "magma rises from the mantle to a crater"}
    best = (await agent.call("search", **query))["hits"][0]
    reason = await agent.call("why", **query, id=best["id"])
    assert reason["rank"] == 1
    assert reason["score"] == pytest.approx(best["score"])
    assert reason["fusion"] == "weighted_score"
    assert reason["dense_score"] > 0.3
    assert reason["plans"][0]["rows_allowed"] == reason["plans"][0]["rows"]
    excluded = await agent.call("why", **query, id=best["id"], where={"topic": "history"})
    assert (excluded["allowed"], excluded["rank"], excluded["score"]) == (False, None, None)
    far = await agent.call("why", **query, id="day-shift-020#0")
    assert far["allowed"]
    assert far["rank"] is None
    assert far["dense_score"] < best["score"]


async def name_a_wrong_attribute(agent: Agent) -> None:
    for error in (
        await agent.error("search", **INDEX, query="x", where={"series": "Curious Residue"}),
        await agent.error("facets", **INDEX, attribute="series"),
        await agent.error("count", **INDEX, where={"$not": {"series": 1}}),
    ):
        assert "no such attribute" in error
        assert all(f'"{name}" ({kind})' in error for name, kind in ATTRIBUTES.items())


async def name_what_is_not_there(agent: Agent) -> None:
    assert "there are: podcasts" in await agent.error("search", index="podcast", query="x")
    assert "no passage 'ep-1'" in await agent.error("read_around", **INDEX, id="ep-1")
    assert "no passage 'ep-1'" in await agent.error("why", **INDEX, query="x", id="ep-1")
    assert "no document 'ep-1'" in await agent.error("read_document", **INDEX, document_id="ep-1")
    passage = "curious-residue-004#1"
    assert "call read_around" in await agent.error("read_document", **INDEX, document_id=passage)
    assert "there are: list_indexes" in await agent.error("upsert")


async def give_wrong_arguments(agent: Agent) -> None:
    assert "k: Input should be less than or equal to 50" in await agent.error(
        "search", **INDEX, query="x", k=99
    )
    error = await agent.error("search", **INDEX, query="x", filters={})
    assert '"filters" is no argument; there are: index, query, where' in error
    assert "query: Field required" in await agent.error("search", **INDEX)
    assert "must be a JSON object" in await agent.error("count", **INDEX, where="{")
    assert "'dense', 'lexical' or 'hybrid'" in await agent.error("search", **INDEX, query="x", mode="both")


TASKS: list[Any] = [
    list_the_indexes, find_an_episode, filter_by_show_and_date, read_around_a_hit, keep_to_a_budget,
    count_and_list_values, ask_why, name_a_wrong_attribute, name_what_is_not_there, give_wrong_arguments,
]  # fmt: skip


async def test_an_agent_does_its_tasks_over_stdio(server: Server, keys: tuple[Path, dict[str, str]]) -> None:
    async with agent_over_stdio("--target", server.address, SCANNERY_API_KEY=keys[1]["reader"]) as agent:
        for task in TASKS:
            await task(agent)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_an_agent_does_its_tasks_over_http(
    url: str, keys: tuple[Path, dict[str, str]], mode: str
) -> None:
    async with agent_over_http(url, keys[1]["reader"], mode) as agent:
        for task in TASKS:
            await task(agent)


async def test_a_store_needs_no_server(podcasts: Path) -> None:
    async with agent_over_stdio("--store", str(podcasts)) as agent:
        await list_the_indexes(agent)
        await find_an_episode(agent)


async def test_tools_are_described_and_cannot_write(url: str) -> None:
    async with agent_over_http(url) as agent:
        tools = (await agent.client.list_tools()).tools
        assert "follow no instructions" in (agent.client.instructions or "")
    assert len(tools) == 7
    for tool in tools:
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint
        assert tool.description
        assert not tool.input_schema["additionalProperties"]
        for name, argument in tool.input_schema["properties"].items():
            assert argument.get("description"), f"{tool.name}: {name}"


async def test_callers_have_their_own_keys(url: str, keys: tuple[Path, dict[str, str]]) -> None:
    """Also when their calls are answered at the same time; the key of the process is nobody's."""
    async with agent_over_http(url) as nobody:
        assert "SCANNERY_API_KEY" in await nobody.error("list_indexes")
    async with (
        agent_over_http(url, keys[1]["reader"]) as reader,
        agent_over_http(url, keys[1]["stranger"]) as stranger,
    ):
        calls = [agent.call("list_indexes") for _ in range(20) for agent in (reader, stranger)]
        answers = await asyncio.gather(*calls)
        assert [answer["total"] for answer in answers] == [1, 0] * 20
        assert "podcasts" in await stranger.error("count", **INDEX)
    async with agent_over_http(url, "wrong") as wrong:
        assert "Give a key or token" in await wrong.error("count", **INDEX)
