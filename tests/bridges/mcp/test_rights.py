"""A key for one index reads that index alone: by the tools, and by the contexts of hits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.bridges.mcp.server import TOOLS
from scannery.serving import SecurityConfig
from scannery.serving.security import KeyFile
from tests.bridges.mcp.conftest import agent_over_http, http_process
from tests.served import serving

pytestmark = pytest.mark.system

SECRET = "saffron"
NEIGHBOURS = ["The harbour was closed.", "A nutmeg cost a house.", "The ships came back in May."]
FOREIGN = [f"{text} Nobody may know of the {SECRET}." for text in NEIGHBOURS]
ATTRIBUTES = {"open": "bool", "colour": "string"}


def rows(texts: Sequence[str], front: str = "") -> list[Any]:
    return [
        {
            "id": f"{front}talk#{number}",
            "document_id": "talk",
            "text": text,
            "vector": [1.0, float(number)],
            "attributes": {"open": number == 1, "colour": SECRET if SECRET in text else "red"},
        }
        for number, text in enumerate(texts)
    ]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    """The address of a server with two indexes of the same ids, and keys: one reads one of them, one cannot read."""
    folder: Path = tmp_path_factory.mktemp("rights")
    with scannery.connect(folder / "store", create=True) as client:
        for name, texts in {"own": NEIGHBOURS, "foreign": FOREIGN}.items():
            index = client.create_index(name, dimensions=2, lexical=True, attributes=ATTRIBUTES)
            index.upsert_many(rows(texts))
        shared = client.create_index("shared", dimensions=2, lexical=True, attributes=ATTRIBUTES)
        # The talk of both, as one document.
        shared.upsert_many([*rows(NEIGHBOURS), *rows(FOREIGN, front="foreign-")])
        client.alias("alias", "foreign")
    file = KeyFile(folder / "keys.json")
    keys = {
        "reader": file.create("reader", indexes=["own"])[1],
        "writer": file.create("writer", scopes=["write"], indexes=["own"])[1],
        "part": file.create("part", access=[{"index": "shared", "where": {"colour": "red"}}])[1],
        "fields": file.create("fields", access=[{"index": "own", "fields": ["open", "words"]}])[1],
    }
    with serving(folder / "store", security=SecurityConfig(keys_file=str(file.path))) as server:
        yield server.address, keys


CALLS: dict[str, dict[str, Any]] = {
    "search": {"query": f"nutmeg {SECRET}", "mode": "lexical"},
    "read_around": {"id": "talk#1"},
    "read_document": {"document_id": "talk"},
    "count": {},
    "facets": {"attribute": "colour"},
    "why": {"query": "nutmeg", "mode": "lexical", "id": "talk#1"},
}


async def test_tools_read_the_indexes_of_the_key_alone(address: tuple[str, dict[str, str]]) -> None:
    target, keys = address
    assert CALLS.keys() | {"list_indexes"} == TOOLS.keys()
    with http_process("--target", target) as (url, _):
        async with agent_over_http(url, keys["reader"]) as agent:
            listed = await agent.call("list_indexes")
            assert [index["name"] for index in listed["indexes"]] == ["own"]
            assert listed["total"] == 1
            for tool, arguments in CALLS.items():
                assert SECRET not in str((await agent.call(tool, index="own", **arguments)).get("hits"))
                for name in ("foreign", "alias", "own/../foreign", "nothing"):
                    message = await agent.error(tool, index=name, **arguments)
                    assert SECRET not in message.replace(str(arguments.get("query")), "")
                    # It does not show that one of them is there.
                    assert "foreign" not in message.replace(f"'{name}'", "").replace(f'"{name}"', "")
            wrong = await agent.error("count", index="own", where={"hue": "red"})
            assert "colour" in wrong
        async with agent_over_http(url, keys["writer"]) as agent:
            for tool, arguments in CALLS.items():
                assert "needs the scope" in await agent.error(tool, index="own", **arguments)


async def test_a_key_for_a_part_gets_the_answers_of_an_index_of_that_part(
    address: tuple[str, dict[str, str]],
) -> None:
    target, keys = address
    with http_process("--target", target) as (url, _):
        async with agent_over_http(url, keys["part"]) as part, agent_over_http(url, keys["reader"]) as reader:
            listed = (await part.call("list_indexes"))["indexes"]
            assert [(each["name"], each["rows"]) for each in listed] == [("shared", len(NEIGHBOURS))]
            for tool, arguments in CALLS.items():
                answers = [
                    without_times(await agent.call(tool, index=name, **arguments))
                    for agent, name in ((part, "shared"), (reader, "own"))
                ]
                assert answers[0] == answers[1] | {"index": "shared"}, tool
            for tool in ("read_around", "why"):
                told = {
                    (await part.error(tool, index="shared", **CALLS[tool] | {"id": name})).replace(name, "")
                    for name in ("foreign-talk#1", "nothing")
                }
                assert len(told) == 1, tool


async def test_a_key_without_texts_reads_passages_without_them(address: tuple[str, dict[str, str]]) -> None:
    target, keys = address
    with http_process("--target", target) as (url, _):
        async with agent_over_http(url, keys["fields"]) as agent:
            for tool, arguments in CALLS.items():
                if tool == "facets":
                    assert "colour" in await agent.error(tool, index="own", **arguments)
                    continue
                answer = await agent.call(tool, index="own", **arguments)
                assert not {"nutmeg", "red", "colour"} & {*str(answer).lower().replace("'", " ").split()}, (
                    tool
                )


def without_times(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without the times and the plans of the search."""
    return {name: value for name, value in answer.items() if name not in ("stages_us", "plans")}


@pytest.mark.parametrize("http", [False, True])
def test_contexts_are_of_the_index_of_the_hit(address: tuple[str, dict[str, str]], http: bool) -> None:
    target, keys = address
    options: dict[str, Any] = {"mode": "lexical", "context": 2, "token_budget": 500}
    with scannery.connect(target, api_key=keys["reader"], http=http) as client:
        [hit] = client.index("own").search("nutmeg", where={"open": True}, **options)
        assert hit.context is not None
        # The filter chooses hits; what stands around them is of the same document, whatever the filter says.
        assert hit.context.text == "\n\n".join(NEIGHBOURS)
        [hit] = client.index("own").search("nutmeg", where={"open": True}, **options | {"context": 0})
        assert hit.context is not None
        assert hit.context.text == NEIGHBOURS[1]
        for name in ("foreign", "alias"):
            with pytest.raises(scannery.NotFoundError):
                client.index(name).search("nutmeg", **options)
    with (
        scannery.connect(target, api_key=keys["writer"], http=http) as client,
        pytest.raises(scannery.PermissionDeniedError),
    ):
        client.index("own").search("nutmeg", **options)
