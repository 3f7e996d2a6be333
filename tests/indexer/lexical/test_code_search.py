"""Words of code are found whole before others, and by their parts, in live, sealed and merged rows alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import scannery
from scannery.indexer import Store
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.seal import seal

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("merges_by_hand")]

TEXTS = {
    "cpp": "Templates in C++ are expanded by the compiler", "csharp": "Templates in C# are made by the runtime",
    "c": "C, C and C: macros in C are expanded by a preprocessor of C", "fsharp": "A pipe of F# is an operator",
    "net": "We deploy .NET to servers", "asp": "ASP.NET has controllers", "fish": "A net for fish, a net for birds",
    "node": "Node.js has one event loop", "at&t": "AT&T sold its cables", "at": "At noon T shirts are at the shop",
    "rd": "The costs of R&D rise", "camel": "Call getUserById before the request", "snake": "Call get_user_by_id first",
    "prose": "Get the user by id: a user has an id, get it by the id of the user", "kebab": "A kebab-case name",
    "http": "HTTPServer2 listens", "version": "Released v1.2.3 today", "other version": "Released v1.2.4 today",
    "handle": "Ask @grace_h about it", "tag": "Posted with #volcano today", "thumb": "Great 👍🏽 show",
    "astronaut": "She is an 👩‍🚀 now", "rocket": "A 🚀 started", "heart": "I ❤️ you",
}  # fmt: skip
QUERIES: dict[str, list[str]] = {
    "C++": ["cpp"], "c++ templates": ["cpp", "csharp"], "C#": ["csharp"], "F#": ["fsharp"], ".NET": ["net"],
    "asp.net": ["asp"], "ASP": ["asp"], "node": ["node"], "Node.js": ["node"], "AT&T": ["at&t"], "at&t": ["at&t"],
    "R&D": ["rd"], "getUserById": ["camel"], "get_user_by_id": ["snake"], "kebab-case": ["kebab"],
    "kebab": ["kebab"], "HTTPServer2": ["http"], "server": [], "user": [], "http": ["http"], "v1.2.3": ["version"],
    "@grace_h": ["handle"], "grace": ["handle"], "#volcano": ["tag"], "volcano": ["tag"], "👍🏽": ["thumb"],
    "👍": ["thumb"], "👩‍🚀": ["astronaut", "rocket"], "🚀": ["rocket", "astronaut"], "❤": ["heart"],
}  # fmt: skip
MARKS = {
    "C++": ("cpp", ["C++"]), "node": ("node", ["Node"]), "user": ("camel", ["User"]), "👍": ("thumb", ["👍"]),
    "getUserById": ("camel", ["getUserById"]), "#volcano": ("tag", ["#volcano"]), "volcano": ("tag", ["volcano"]),
    "AT&T": ("at&t", ["AT&T"]), "🚀": ("astronaut", ["🚀"]), "👩‍🚀": ("astronaut", ["👩‍🚀"]),
}  # fmt: skip


def answers(index: scannery.Index) -> dict[str, list[tuple[str, float]]]:
    batch = index.search_many(list(QUERIES), len(TEXTS), mode="lexical")
    return {query: [(hit.id, hit.score) for hit in hits] for query, hits in zip(QUERIES, batch, strict=True)}


def test_words_of_code_are_found_whole_first_and_by_their_parts(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    lexical: Any = {"language": "english"}
    with scannery.connect(tmp_path / "store") as client:
        index = client.create_index("words", lexical=lexical, vectors="optional", live={"merge_segments": 2})
        index.upsert([{"id": name, "text": text} for name, text in TEXTS.items()])
        live = answers(index)
        for query, first in QUERIES.items():
            assert [name for name, _ in live[query]][: len(first)] == first, query
        found = {query: {name for name, _ in hits} for query, hits in live.items()}
        assert found["user"] == {"camel", "snake", "prose"} < found["getUserById"]
        assert found["server"] == {"net", "http"}
        assert {"cpp", "c"} < found["C++"], "C is a part of C++"
        for query, (name, words) in MARKS.items():
            hits = {hit.id: hit for hit in index.search(query, len(TEXTS), highlight="words")}
            snippet, text = hits[name].snippet, TEXTS[name]
            assert snippet is not None
            assert [text[start:end] for start, end in snippet.words] == words
    for change in (seal, merge):
        change(store, "words")
        with scannery.connect(tmp_path / "store") as client:
            index = client.index("words")
            assert answers(index) == live
            if change is seal:
                index.upsert([{"id": "rocket", "text": TEXTS["rocket"]}])
                seal(store, "words")
