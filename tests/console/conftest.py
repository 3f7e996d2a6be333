"""A server with the sample podcasts behind keys, and one that anybody may ask."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import scannery
from scannery.cli.sample import EPISODES_PATH
from scannery.serving import SecurityConfig, Server
from scannery.serving.security import KeyFile
from tests.served import MINILM, copied, made_once, serving

SPEC = {
    "index": "podcasts",
    "source": {"id": "id", "title": "title", "text": "description"},
    "encoder": {"model": MINILM},
    "attributes": {
        "show": "string",
        "speakers": "string_list",
        "published": "timestamp",
        "topic": "string",
        "minutes": "int",
        "explicit": "bool",
    },
    "lexical": True,
}


@pytest.fixture(scope="package")
def podcasts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the index `podcasts`."""

    def make(folder: Path) -> None:
        episodes = [json.loads(line) for line in EPISODES_PATH.read_text().splitlines()]
        with scannery.connect(folder, create=True, timeout_s=120) as client:
            client.create_index(SPEC).upsert_many(episodes)

    return copied(made_once(tmp_path_factory, "podcasts", make), tmp_path_factory.mktemp("console"))


@pytest.fixture(scope="package")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A file of keys, and the keys by name."""
    file = KeyFile(tmp_path_factory.mktemp("keys") / "keys.json")
    scopes = {"reader": ["read"], "writer": ["read", "write"], "admin": ["read", "write", "admin"]}
    keys = {name: file.create(name, scopes=each)[1] for name, each in scopes.items()}
    part = {"index": "podcasts", "where": {"topic": "science"}}
    for name, access in {"part": part, "fields": {**part, "fields": ["minutes", "words"]}}.items():
        keys[name] = file.create(name, scopes=["read", "admin"], access=[access])[1]
    return file.path, keys


@pytest.fixture(scope="package")
def server(podcasts: Path, keys: tuple[Path, dict[str, str]]) -> Iterator[Server]:
    """The server behind keys."""
    with serving(podcasts, security=SecurityConfig(keys_file=str(keys[0])), device="cpu") as server:
        yield server
