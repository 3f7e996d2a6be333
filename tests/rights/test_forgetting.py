"""A customer is forgotten: nothing of its rows is left in the files of a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import scannery
from scannery.cli.main import app
from scannery.client import NewDatapoint

MARK = "xenonium"


def point(tenant: str, number: int) -> NewDatapoint:
    random = np.random.default_rng(number)
    return {
        "id": f"{MARK if tenant == 'acme' else 'other'}-{number}",
        "text": f"{MARK if tenant == 'acme' else 'plain'} words {number}",
        "vector": random.normal(size=8).astype(np.float32),
        "attributes": {"tenant": tenant},
    }


def files_with_mark(store: Path) -> list[str]:
    return [
        path.name
        for path in store.rglob("*")
        if path.is_file() and MARK.encode() in path.read_bytes().lower()
    ]


@pytest.mark.system
def test_no_file_has_what_was_forgotten(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with scannery.connect(store, create=True) as client:
        shop = client.create_index("shop", dimensions=8, lexical=True, attributes={"tenant": "string"})
        shop.upsert([point(tenant, number) for number in range(50) for tenant in ("acme", "beta")])
    seal = ["index", "seal", "shop", "--store", str(store)]
    assert CliRunner().invoke(app, seal).exit_code == 0
    with scannery.connect(store) as client:
        client.index("shop").upsert([point("acme", 50)])  # in the log alone
    assert files_with_mark(store)
    for command in (
        ["delete", "--store", str(store), "--index", "shop", "--where", '{"tenant": "acme"}', "--yes"],
        seal,
        ["index", "compact", "shop", "--store", str(store)],
        ["index", "gc", "shop", "--store", str(store), "--keep", "1", "--min-age-hours", "0"],
    ):
        done = CliRunner().invoke(app, command)
        assert done.exit_code == 0, done.output
    assert files_with_mark(store) == []
    with scannery.connect(store) as client:
        assert client.index("shop").count() == 50
