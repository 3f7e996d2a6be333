"""Takes steps on a store by the code of whatever release is on PYTHONPATH: `python steps.py STORE ANSWERS < STEPS`.

Only names that all releases have are imported, and nothing of the tests. A step is a list: the name of a function,
and its arguments. The file of answers has for each step its value, or the text of its error.
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

import scannery
from scannery.indexer.manifest import Manifest

__all__ = ["keys", "models_in", "take"]


def create(store: str, client: scannery.Client, name: str, options: dict[str, Any]) -> None:
    """Create an index."""
    client.create_index(name, **options)


def upsert(store: str, client: scannery.Client, name: str, records: Any) -> int:
    """Write records."""
    return client.index(name).upsert(records).sequence


def delete(store: str, client: scannery.Client, name: str, ids: list[str]) -> int:
    """Delete datapoints."""
    return client.index(name).delete(ids).sequence


def alter(store: str, client: scannery.Client, name: str, changes: dict[str, Any]) -> None:
    """Change the spec."""
    client.index(name).alter(**changes)


def alias(store: str, client: scannery.Client, name: str, index: str) -> None:
    """Set an alias."""
    client.alias(name, index)


def aliases(store: str, client: scannery.Client) -> dict[str, str]:
    """Return the aliases."""
    return client.aliases()


def branch(store: str, client: Any, name: str, new: str) -> None:
    """Branch an index."""
    client.branch_index(name, new)


def rows(store: str, client: scannery.Client, name: str, with_vectors: bool = True) -> dict[str, Any]:
    """Return all of every datapoint, by id."""
    datapoints = {}
    for each in client.index(name).scan(vectors=with_vectors):
        content: dict[str, Any] = {"text": each.text, "attributes": dict(each.attributes)}
        datapoints[each.id] = content
        if with_vectors:
            named = {key: _rounded(vector) for key, vector in each.vectors.items() if key}
            content |= {"vector": _rounded(each.vector), "vectors": named}
    return datapoints


def ids(store: str, client: scannery.Client, name: str, query: Any, options: dict[str, Any]) -> list[str]:
    """Return the ids of the hits of a search."""
    return [hit.id for hit in client.index(name).search(query, **options)]


def feedback(store: str, client: object, name: str, query: Any) -> int:
    """Search with an id of the answer, and tell that the first hit was clicked: both are kept in the store."""
    with scannery.connect(store, query_ids=True) as learning:
        hits = learning.index(name).search(query, k=1)
        return learning.feedback(hits.query_id, clicked=[hits[0].id])


def command(store: str, client: scannery.Client, *arguments: str) -> str:
    """Run a command of `scannery` on the store, and return what it prints."""
    from typer.testing import CliRunner

    from scannery.cli.main import app

    for _ in range(60):
        result = CliRunner().invoke(app, [argument.replace("STORE", store) for argument in arguments])
        if "another process runs this task" not in repr(result.exception):
            break
        time.sleep(1)  # the client maintains its indexes in the background
    if result.exit_code:
        raise RuntimeError(f"exit code {result.exit_code}: {result.output} {result.exception!r}")
    return result.output


def keys(store: str = "", client: object = None) -> list[str]:
    """Return the dotted paths of all keys of a manifest, which has the spec."""
    return sorted(set(_keys(Manifest, "")))


def _keys(model: type[BaseModel], prefix: str, *outer: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for part in models_in(field.annotation):
            if part not in (model, *outer):
                yield from _keys(part, f"{prefix}{name}.", model, *outer)


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the models in the type of a field."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from models_in(part)


def _rounded(vector: Any) -> list[float] | None:
    return None if vector is None else [round(float(number), 4) for number in vector]


STEPS: dict[str, Any] = {
    each.__name__: each
    for each in (create, upsert, delete, alter, alias, aliases, branch, rows, ids, feedback, command, keys)
}


@contextmanager
def _client(store: str) -> Iterator[scannery.Client]:
    """Give a client in this process, or where logs are elsewhere, one of a server in it."""
    if not (log := os.environ.get("SCANNERY_LOG")):
        with scannery.connect(store, create=True, timeout_s=120) as client:
            yield client
        return
    from scannery.indexer import Store
    from scannery.serving import Server, ServerConfig

    Store.open(store, create=True)
    # The environment names bridges that former releases do not have.
    has_bridges = "bridges" in inspect.signature(ServerConfig).parameters
    options: dict[str, Any] = {"bridges": "none"} if has_bridges else {}
    with (
        Server(ServerConfig(store=store, listen="127.0.0.1:0", log=log, **options)) as server,
        scannery.connect(server.address, timeout_s=120) as client,
    ):
        yield client


def take(store: str, steps: list[list[Any]]) -> list[dict[str, Any]]:
    """Take steps one after the other, and return what each returned or raised."""
    answers = []
    with _client(store) as client:
        for name, *arguments in steps:
            try:
                answers.append({"value": STEPS[name](store, client, *arguments)})
            except Exception as error:  # noqa: BLE001  the answer has it
                answers.append({"error": f"{type(error).__name__}: {error}"})
    return answers


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(json.dumps(take(sys.argv[1], json.load(sys.stdin))))
