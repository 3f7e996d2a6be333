"""The passages around hits against a model that joins them character by character."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from scannery import InvalidArgumentError
from scannery.cli.main import main
from scannery.embed import Encoder
from scannery.indexer import Store, parse_spec
from scannery.pipelines import build
from scannery.runtime.errors import DeadlineError
from scannery.runtime.retry import Deadline
from scannery.serving.engine import context as context_module
from scannery.serving.engine import passages as passages_module
from scannery.serving.engine.context import token_counter
from scannery.serving.engine.row_source import LocalRows
from scannery.serving.engine.top_k import Ranking
from scannery.serving.request.context import Context
from tests.data import clustered, datapoints
from tests.served import MINILM, TEXTS, WIRES, connected, publish_version, serving

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("merges_by_hand")]

DOCUMENTS = 12
RNG = random.Random(3)
WORDS = [f"w{number}" for number in range(50)]
TEXT_OF = {
    f"doc{number}": " ".join(RNG.choices(WORDS, k=RNG.randrange(30, 90))) for number in range(DOCUMENTS)
}


def passages() -> list[dict[str, Any]]:
    """Return passages of 20 to 60 characters without white space at their ends, which overlap, touch or leave a gap."""
    rows = []
    for document, text in TEXT_OF.items():
        start, number = 0, 0
        while start < len(text):
            end = min(len(text), start + RNG.randrange(20, 60))
            while text[start] == " ":
                start += 1
            while text[end - 1] == " ":
                end -= 1
            rows.append(
                {
                    "id": f"{document}#{number}", "document_id": document, "text": text[start:end],
                    "text_start": start, "text_end": end,
                    "time_start_s": start / 10, "time_end_s": end / 10,
                }
            )  # fmt: skip
            start = end if end == len(text) else end + RNG.choice([-9, -4, 0])
            number += 1
    return rows


ROWS = passages()
BY_ID = {row["id"]: row for row in ROWS}
IN_ORDER = {document: [row["id"] for row in ROWS if row["document_id"] == document] for document in TEXT_OF}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The passages in one shard and in four, in no order."""
    folder = tmp_path_factory.mktemp("context")
    fingerprint = Encoder.load(MINILM, device="cpu").fingerprint.to_dict()
    opened = Store.open(folder / "store", create=True)
    rows = random.Random(5).sample(ROWS, len(ROWS))
    for shards in (1, 4):
        spec = parse_spec({**TEXTS.model_dump(), "index": f"talks{shards}", "lexical": {"language": "none"}})
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "id"}
        table = datapoints(spec, clustered(len(rows), 384), ids=[row["id"] for row in rows], columns=columns)
        publish_version(opened, spec, table, folder, shards=shards, encoder=fingerprint)
    return folder / "store"


@pytest.fixture(scope="module", params=["talks1", "talks4"])
def index(request: pytest.FixtureRequest, store: Path) -> Iterator[scannery.Index]:
    with scannery.connect(store) as client:
        yield client.index(request.param)


def window(identifier: str, passages: int) -> list[str]:
    ids = IN_ORDER[BY_ID[identifier]["document_id"]]
    position = ids.index(identifier)
    return ids[max(0, position - passages) : position + passages + 1]


def model(hits: list[str], passages: int) -> list[tuple[list[str], str | None]]:
    """Return the ids of the context of each hit, and the hit that has its passage, without a budget."""
    chosen = {each for hit in hits for each in window(hit, passages)}
    answers: list[tuple[list[str], str | None]] = []
    owners: dict[str, str] = {}
    for hit in hits:
        if hit in owners:
            answers.append(([], owners[hit]))
            continue
        ids, stretch = IN_ORDER[BY_ID[hit]["document_id"]], [hit]
        for step in (-1, 1):
            position = ids.index(hit) + step
            while 0 <= position < len(ids) and ids[position] in chosen:
                stretch.append(ids[position])
                position += step
        owners |= dict.fromkeys(stretch, hit)
        answers.append((sorted(stretch, key=ids.index), None))
    return answers


@pytest.mark.parametrize("passages", [0, 1, 3, 100])
@pytest.mark.parametrize("mode", ["dense", "lexical", "hybrid"])
def test_contexts_are_those_of_the_model(index: scannery.Index, mode: Any, passages: int) -> None:
    hits = index.search("w3 w9 w1", 8, mode=mode, context=passages)
    expected = model([hit.id for hit in hits], passages)
    assert [hit.id for hit in hits] == [hit.id for hit in index.search("w3 w9 w1", 8, mode=mode)]
    for hit, (ids, within) in zip(hits, expected, strict=True):
        context = hit.context
        assert context is not None and (list(context.ids), context.within, context.cut) == (
            ids,
            within,
            False,
        )
        if within is not None:
            assert (context.text, context.start, context.tokens) == ("", None, 0)
            continue
        first, last = BY_ID[ids[0]], BY_ID[ids[-1]]
        # All gaps are of one space, so the joined text is that of the document.
        assert context.text == TEXT_OF[hit.document_id][first["text_start"] : last["text_end"]]
        assert (context.start, context.end) == (first["text_start"], last["text_end"])
        assert (context.time_start_s, context.time_end_s) == (first["time_start_s"], last["time_end_s"])
        assert context.tokens > 0


def test_a_budget_is_filled_from_the_best_hit_on(index: scannery.Index) -> None:
    encoder = Encoder.load(MINILM, device="cpu").chunker(8, 0)
    whole = index.search("w3 w9", 8, context=2)
    everything = sum(hit.context.tokens for hit in whole if hit.context)
    last = 0
    for budget in (1, 20, 60, 150, everything + 10):
        hits = index.search("w3 w9", 8, context=2, token_budget=budget)
        assert [hit.id for hit in hits] == [hit.id for hit in whole]
        contexts = [hit.context for hit in hits if hit.context is not None]
        assert len(contexts) == 8
        tokens = sum(context.tokens for context in contexts)
        assert last <= tokens <= budget
        assert tokens == sum(encoder.count_tokens([each.text]) for each in contexts if each.text)
        last = tokens
        # The window of a hit is whole, or it says that it is not.
        returned = {each for context in contexts for each in context.ids}
        for hit, context in zip(hits, contexts, strict=True):
            if not set(window(hit.id, 2)) <= returned:
                best = {each.id: each.context for each in hits}[context.within or hit.id]
                assert best is not None and best.cut
    assert hits == whole
    first = index.search("w3 w9", 8, context=2, token_budget=60)[0].context
    assert first is not None and hits[0].id in first.ids and first.cut and first.tokens > 20


def test_without_neighbours_the_budget_has_hits_alone(index: scannery.Index) -> None:
    hits = index.search("w3 w9", 8, token_budget=50)
    fitting = [hit for hit in hits if hit.context and hit.context.ids]
    assert 0 < len(fitting) < 8
    assert fitting[0].id == hits[0].id and fitting[0].context is not None
    assert fitting[0].context.text == hits[0].text
    assert all(hit.context and hit.context.cut for hit in hits if hit not in fitting)


def test_pages_batches_filters_and_crowding(index: scannery.Index) -> None:
    page = index.search("w3 w9", 3, offset=3, context=1)
    assert [hit.id for hit in page] == [hit.id for hit in index.search("w3 w9", 6)][3:]
    assert [list(hit.context.ids) for hit in page if hit.context] == [
        ids for ids, _ in model([hit.id for hit in page], 1)
    ]
    many = index.search_many(["w3 w9", "w7", np.ones(384)], 4, context=1)
    assert many == [index.search(query, 4, context=1) for query in ("w3 w9", "w7", np.ones(384))]
    where = {"id": {"$in": [IN_ORDER["doc3"][1]]}}
    [hit] = index.search("w3", 3, where=where, mode="dense", context=1, max_per_group=1, diversity=0.5)
    # A filter is for hits: those around them need not pass it.
    assert hit.context is not None and list(hit.context.ids) == IN_ORDER["doc3"][:3]
    [nothing] = index.search_many(["w3"], 3, where={"id": "none"}, mode="dense", context=1)
    assert not nothing


def test_all_wires_answer_alike(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options: dict[str, Any] = {"context": 1, "token_budget": 100}
    with serving(store, device="cpu") as server, scannery.connect(store) as embedded:
        expected = embedded.index("talks4").search("w3 w9", 5, **options)
        for target, http in ((server.address, False), (f"http://127.0.0.1:{server.http_port}", True)):
            with scannery.connect(target, http=http) as client:
                assert client.index("talks4").search("w3 w9", 5, **options) == expected
        question = (
            "search",
            "w3 w9",
            "--index",
            "talks4",
            "--target",
            server.address,
            "-k",
            "5",
            "--context",
            "1",
        )
        assert main([*question, "--token-budget", "100", "--json"]) == 0
        body = json.loads(capsys.readouterr().out)
        for hit, told in zip(expected, body["hits"], strict=True):
            assert hit.context is not None
            assert told["context"].get("text", "") == hit.context.text
            assert tuple(told["context"].get("ids", ())) == hit.context.ids
        assert main([*question, "--token-budget", "100"]) == 0
        out = capsys.readouterr().out
        assert "(beyond the budget)" in out
        assert main(list(question)) == 0


@pytest.mark.parametrize("wire", WIRES)
def test_passages_without_offsets_are_in_the_order_of_their_ids(tmp_path: Path, wire: str) -> None:
    with connected(tmp_path, wire) as client:
        index = client.create_index("notes", lexical=True)
        index.upsert([{"id": "lone", "text": "w1"}])
        with pytest.raises(InvalidArgumentError, match="^context: index 'notes' has no documents") as caught:
            index.search("w1", context=1)
        assert caught.value.field == "context"
        index.upsert(
            [{"id": f"a#{number}", "document_id": "a", "text": f"w{number}"} for number in range(12)]
        )
        [hit] = index.search("w10", 1, context=1)
        assert hit.context is not None
        assert hit.context.ids == ("a#9", "a#10", "a#11")
        assert (hit.context.text, hit.context.start, hit.context.end) == ("w9\n\nw10\n\nw11", None, None)
        index.delete(["a#11"])
        index.upsert([{"id": "b#2", "document_id": "b", "text": "other", "text_start": 4, "text_end": 9}])
        index.upsert([{"id": "b#1", "document_id": "b", "payload": "neither text nor offsets"}])
        [hit] = index.search("other", 1, context=1)
        assert hit.context is not None and (hit.context.ids, hit.context.start) == (("b#1", "b#2"), None)
        index.upsert([{"id": "a#9", "document_id": "a", "text": "new 九十"}])
        [hit] = index.search("w10", 1, context=1, token_budget=7)
        # 1.3 tokens a word; scripts without spaces have one a character.
        assert hit.context is not None and hit.context.text == "new 九十\n\nw10"
        assert (hit.context.tokens, hit.context.cut) == (6, False)
        [hit] = index.search("w10", 1, context=1, token_budget=5)
        assert hit.context is not None and (hit.context.text, hit.context.cut) == ("w10", True)


def test_passages_that_a_build_cut(tmp_path: Path) -> None:
    """What is written later is beside what was built, and deleted passages are gone."""
    # Offsets count characters, also those of four bytes and two units of UTF-16.
    text = "\n\n".join(
        f"🌋 Part {number}. " + " 𠮷".join(WORDS[number : number + 20]) for number in range(12)
    )
    spec = {
        "index": "books", "source": {"id": "id", "text": "text", "chunk": {"max_tokens": 40, "overlap_tokens": 8}},
        "encoder": {"model": MINILM}, "lexical": True,
    }  # fmt: skip
    (tmp_path / "in.jsonl").write_text(json.dumps({"id": "book", "text": text}) + "\n")
    build(spec, [str(tmp_path / "in.jsonl")], str(tmp_path / "store"))
    with scannery.connect(tmp_path / "store") as client:
        index = client.index("books")
        [hit] = index.search("part 5", 1, context=100)
        assert hit.context is not None
        assert hit.context.text == text and (hit.context.start, hit.context.end) == (0, len(text))
        ids = hit.context.ids
        points = list(index.scan())
        assert len(ids) > 8 and sorted(ids) == sorted(point.id for point in points)
        assert all(text[point.text_start : point.text_end] == point.text for point in points)
        for near in index.search("w3 w9", 20, context=1):
            if near.context is not None and near.context.text:
                assert near.context.text == text[near.context.start : near.context.end]
        index.upsert([{"id": "short", "text": "Nothing but this."}])
        [hit] = index.search("nothing but this", 1, context=3)
        assert hit.context is not None and (hit.context.text, hit.context.ids) == (
            "Nothing but this.",
            ("short#0",),
        )


@pytest.mark.parametrize(
    ("options", "field", "message"),
    [
        ({"context": 101}, "context", "must be 0 to 100, got 101"),
        ({"context": -1}, "context", "got -1"),
        ({"context": "all"}, "context", "got 'all'"),
        ({"context": 100, "k": 50}, "context", "10050 passages"),
        ({"context": 1, "token_budget": 0}, "token_budget", "must be 1 to 1000000, got 0"),
        ({"token_budget": 1.5}, "token_budget", "got 1.5"),
    ],
    ids=str,
)
def test_a_wrong_option_is_named(
    index: scannery.Index, options: dict[str, Any], field: str, message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message) as caught:
        index.search("w3", **options)
    assert caught.value.field == field
    with pytest.raises(InvalidArgumentError, match="100 hits with 50"):
        index.search_many(["w3"] * 10, context=50)


def test_the_passages_of_the_documents_of_hits_are_limited(
    index: scannery.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passages_module, "MAX_PASSAGES", 3)
    with pytest.raises(InvalidArgumentError, match="passages, more than 3") as caught:
        index.search("w3", 5, context=0)
    assert caught.value.field == "context"


def test_the_size_of_texts_is_checked_before_all_are_read(
    index: scannery.Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context_module, "TEXTS_AT_ONCE", 2)
    whole = index.search("w3 w9", 8, context=2)
    size = sum(len(hit.context.text) for hit in whole if hit.context)
    monkeypatch.setattr(context_module, "MAX_ANSWER_BYTES", size // 4)
    reads: list[int] = []
    read = LocalRows.texts

    def counted(rows: LocalRows, ranking: Ranking, max_characters: int) -> list[str]:
        reads.append(len(ranking))
        return read(rows, ranking, max_characters)

    monkeypatch.setattr(LocalRows, "texts", counted)
    with pytest.raises(InvalidArgumentError, match="^context: the answer would have more than"):
        index.search("w3 w9", 8, context=2)
    assert set(reads) == {2} and sum(reads) < sum(len(hit.context.ids) for hit in whole if hit.context)


def test_tokens_are_counted_until_the_deadline() -> None:
    times = iter((0.0, 1.0))
    by_words = Context(passages=0, token_budget=None, vectors=None)
    count = token_counter(None, by_words, Deadline(1, lambda: next(times)))  # type: ignore[arg-type]  # no encoder
    assert count("one word") == 3
    with pytest.raises(DeadlineError):
        count("two words")
