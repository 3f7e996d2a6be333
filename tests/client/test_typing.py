"""The type checker accepts right use of the SDK and refuses wrong use."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from mypy import api

from tests.data import ROOT

pytestmark = pytest.mark.system

RIGHT = """
    import datetime as dt
    import numpy as np
    import scannery

    with scannery.connect("./store", timeout_s=5) as client:
        index = client.index("podcasts")
        hits = index.search("volcanoes", k=10, where={"show": "gotime", "year": {"$gte": 2020}}, mode="dense",
                            max_per_group=1, target_recall=0.95)
        index.search([0.1, 0.2], where={"$or": [{"a": 1}, {"b": {"$in": ["x", "y"]}}], "$not": {"c": True}})
        index.search(np.zeros(3), where={"when": {"$lt": dt.datetime.now(), "$exists": True}}, timeout_s=1.5)
        index.search(scannery.Like("a"))
        explanation = index.search([1.0], leaves=3, rescore=90, explain=True).explanation
        if explanation is not None:
            explanation.segments[0].rows_allowed + explanation.stages_us["search"]
        index.search_many(np.zeros((3, 2)), 5)
        index.search_many(["a", scannery.Like("b"), [0.1]], fields=["title"], vectors=True)
        index.search("a", vectors={"title": 2, "body": 0.5}, return_vectors=True)[0].vector_scores["title"] + 1.0
        index.search("a", vectors=["title", ""])[0].vectors["title"].shape
        client.create_index("talks", named_vectors={"title": "m", "image": 512, "body": {"dimensions": 3}})
        index.upsert([{"id": "a", "vectors": {"title": [1.0], "image": np.zeros(3)}}])
        index.update([{"id": "a", "vectors": {"title": None}}])
        named = index.stats().named_vectors["title"]
        named.dimensions + named.rows
        hits[0].score + hits.version
        for point in index.get(["a"]):
            if point is not None:
                point.attributes["show"]
        index.stats().rows + 1
        index.embed(["a"], kind="document").shape
        client.embed(["a"], model="m").shape
        [encoder.model for encoder in client.encoders()]
        done = index.upsert_many([{"id": "a", "text": "b"}], errors="return", progress=print)
        [(failed.position, failed.error.message) for failed in done.failed]
        for found in index.search_each(["a"]):
            found[0].score
        for maybe in index.search_each(["a"], errors="return"):
            if not isinstance(maybe, scannery.ScanneryError):
                maybe[0].score

    scannery.connect("localhost:7077", retries=False, http=False).close()
    scannery.connect("https://search.example.com", api_key="k").close()

    async def main() -> None:
        async with scannery.aio.connect("localhost:7077") as client:
            hits = await client.index("podcasts").search("volcanoes")
            hits[0].id.upper()
            (await client.embed(["a"])).shape
            async for found in client.index("podcasts").search_each(["a"], in_flight=2):
                found[0].id.upper()
            (await client.index("podcasts").upsert_many([{"id": "a", "text": "b"}])).written + 1
"""

WRONG = {
    'index.search("a", limit=3)': "limit",
    'index.search("a", mode="fuzzy")': "mode",
    'index.search("a", k="10")': "k",
    "index.search(3)": "query",
    'index.search("a", where=["x"])': "where",
    'index.search("a", vectors=2.5)': "vectors",
    'index.search("a", vectors={"title": "much"})': "vectors",
    'client.create_index("a", named_vectors=["title"])': "named_vectors",
    'index.search("a", max_per_group="1")': "max_per_group",
    'index.search("a")[0].scores': "scores",
    'index.search("a")[0].score = 1.0': "read-only",
    'index.get(["a"])[0].id': "None",
    "scannery.connect(7077)": "target",
    'scannery.connect("localhost:7077", http="no")': "http",
    'scannery.connect("localhost:7077", coalesce=False)': "coalesce",
    'index.upsert([{"id": "a", "vektor": [1.0]}])': "vektor",
    'index.update([{"id": "a", "text": "b"}])': "text",
    'index.delete("a").sequences': "sequences",
    'index.serch("a")': "serch",
    'index.embed(["a"], kind="song")': "kind",
    'index.embed(["a"]).text': "text",
    'index.upsert_many([{"id": "a", "vektor": [1.0]}])': "vektor",
    'index.upsert_many([], errors="ignore")': "errors",
    'next(index.search_each(["a"], errors="return"))[0]': "errors are no hits",
}

# What the SDK's types do not depend on is not analysed: torch alone takes most of the time of a first run.
CONFIG = """
[mypy]
strict = True
mypy_path = {src}
ignore_missing_imports = True
[mypy-torch.*,transformers.*,sentence_transformers.*,apache_beam.*,pandas.*,polars.*]
follow_imports = skip
[mypy-scannery.serving.*,scannery.embed.*,scannery.indexer.*,scannery.live.*,scannery.pipelines.*]
follow_imports = skip
"""
CACHE = ROOT / ".mypy_cache" / "typing"
"""Beside that of `make check`, whose options are others."""


def checked(folder: Path, code: str) -> str:
    path = folder / "use.py"
    path.write_text(textwrap.dedent(code))
    config = folder / "mypy.ini"
    config.write_text(CONFIG.format(src=ROOT / "src"))
    output, errors, _ = api.run(["--config-file", str(config), "--cache-dir", str(CACHE), str(path)])
    assert errors == ""
    return output


@pytest.fixture(autouse=True)
def _in_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_right_use_passes(tmp_path: Path) -> None:
    assert "Success" in checked(tmp_path, RIGHT)


def test_every_wrong_use_fails(tmp_path: Path) -> None:
    lines = ["import scannery", 'index = scannery.connect("./store").index("podcasts")', *WRONG]
    output = checked(tmp_path, "\n".join(lines))
    flagged = {int(number) for number in re.findall(r"use\.py:(\d+): error", output)}
    missed = [use for number, use in enumerate(WRONG, 3) if number not in flagged]
    assert missed == []
