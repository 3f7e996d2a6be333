"""A store whose indexes differ in what they have: texts and an encoder, words only, fewer shards than groups."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scannery.indexer import Store
from scannery.pipelines import build
from tests.data import without_ids
from tests.embed.tiny_models import make_cross_encoder
from tests.served import MINILM, SENTENCES

__all__ = ["DELETED", "TALKS", "make_talks"]

TALKS = 48
DELETED = ("t5", "t17", "t40")
_SHOWS = ("gotime", "jsparty", None)


def make_talks(folder: Path) -> Path:
    """Return a store of `talks` (encoder, words, reranker, deleted rows), `notes` (no vectors), `few` (one shard)."""
    store = folder / "store"
    talks = {
        "index": "talks",
        "source": {"id": "id", "text": "text", "sparse_vector": "sparse"},
        "encoder": {"model": MINILM},
        "reranker": {"model": str(make_cross_encoder(folder / "cross"))},
        "lexical": True,
        "dynamic": True,
        "shards": 5,
        "attributes": {"show": "string", "year": "int", "at": "timestamp", "rating": "float"},
    }
    build(talks, _written(folder / "talks.jsonl", [_talk(n) for n in range(TALKS)]), str(store))
    without_ids(Store.open(store), "talks", DELETED)
    notes = {
        "index": "notes",
        "source": {"id": "id", "text": "text"},
        "vectors": "optional",
        "lexical": True,
        "shards": 3,
    }
    lines = [{"id": name, "text": text} for name, text in SENTENCES.items()]
    build(notes, _written(folder / "notes.jsonl", lines), str(store))
    few = {"index": "few", "source": {"id": "id", "vector": "v"}, "attributes": {"n": "int"}}
    rows = [{"id": f"f{n}", "v": [n / 9, 1.0, 0.5], "n": n % 3} for n in range(9)]
    build(few, _written(folder / "few.jsonl", rows), str(store))
    return store


def _talk(number: int) -> dict[str, Any]:
    texts = list(SENTENCES.values())
    record: dict[str, Any] = {
        "id": f"t{number}",
        "text": f"{texts[number % 6]} {texts[number // 7 % 6]} Talk {number}.",
        "sparse": {str(number % 5): 1.0 + number / 10},
        "year": 2000 + number % 7,
        "at": f"2024-01-{1 + number % 28:02}T00:00:00Z",
        "rating": number / 4,
        "level": number % 4 if number % 2 else "low",
        "nested": {"speaker": f"s{number % 3}"},
    }
    if show := _SHOWS[number % 3]:
        record["show"] = show
    return record


def _written(path: Path, records: list[dict[str, Any]]) -> list[str]:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return [str(path)]
