"""Vectors of another model than the index's: refused where the model is named, noticed where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scannery
from benchmarks.collections import xquad_r
from scannery.client import InvalidArgumentError
from scannery.client.request.writes import NewDatapoint
from scannery.embed import Encoder
from scannery.indexer import OpenIndex, Store, parse_spec
from scannery.indexer.reader import open_index
from scannery.serving.snapshot.vector_checks import VectorChecks
from tests.data import datapoints
from tests.indexer.vectors.test_strangeness import D, model, vectors
from tests.served import MINILM, connected, make_text_store, publish_version, serving

ROWS = 600
OWN, FOREIGN = vectors(model(0), 1000, topic=1), vectors(model(1), 300, topic=1)
DRIFT = vectors(model(0), 300, topic=2)


def points(vectors_ND: np.ndarray, front: str) -> list[NewDatapoint]:
    return [{"id": f"{front}{row}", "vector": vector_D} for row, vector_D in enumerate(vectors_ND)]


def built(folder: Path, **keys: Any) -> Path:
    spec = parse_spec({"index": "given", "source": {"id": "id", "vector": "vector"}, **keys})
    store = Store.open(folder / "store", create=True)
    publish_version(
        store, spec, datapoints(spec, OWN[:ROWS], ids=[f"row{row}" for row in range(ROWS)]), folder
    )
    return folder / "store"


@pytest.fixture(params=["embedded", "gRPC", "HTTP"])
def index(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[scannery.Index]:
    with connected(built(tmp_path, vector_model="org/model-a"), request.param) as client:
        yield client.index("given")


def test_a_named_model_of_another_kind_is_refused(index: scannery.Index) -> None:
    refused = r"vector_model: is 'model-b', but the vectors of index 'given' are of 'org/model-a'"
    with pytest.raises(InvalidArgumentError, match=refused) as error:
        index.search(OWN[0], vector_model="model-b")
    assert error.value.field == "vector_model"
    with pytest.raises(InvalidArgumentError, match=refused):
        index.search_many(OWN[:2], vector_model="model-b")
    with pytest.raises(InvalidArgumentError, match=refused):
        index.upsert(points(OWN[:2], "new"), vector_model="model-b")
    with pytest.raises(InvalidArgumentError, match=refused):
        index.upsert_many(points(OWN[:2], "new"), vector_model="model-b")
    assert index.count() == ROWS


@pytest.mark.parametrize("name", ["org/model-a", "model-a", None])
def test_the_model_of_the_index_is_taken(index: scannery.Index, name: str | None) -> None:
    assert index.search(OWN[0], 3, vector_model=name)[0].score > 0.999
    assert index.upsert(points(OWN[:2], "new"), vector_model=name).warnings == ()
    assert index.count() == ROWS + 2


def test_foreign_vectors_are_written_with_a_warning(index: scannery.Index) -> None:
    done = index.upsert(points(FOREIGN, "foreign"))
    [warning] = done.warnings
    assert warning.startswith(
        "upserts[0].datapoint.vector: 256 of 256 vectors, this one first, do not look like"
    )
    assert "'org/model-a'" in warning
    assert index.count() == ROWS + 300
    assert len(index.upsert_many(points(FOREIGN, "more"), batch_size=100).warnings) == 3


def test_new_topics_are_no_foreign_vectors(index: scannery.Index) -> None:
    assert index.upsert(points(DRIFT, "drift")).warnings == ()
    assert index.upsert_many(points(OWN[ROWS:], "own"), batch_size=50).warnings == ()


def test_single_rows_are_judged_together(index: scannery.Index) -> None:
    warnings = [
        index.upsert(points(row_D[None], f"row{i}-")).warnings for i, row_D in enumerate(FOREIGN[:12])
    ]
    assert [len(each) for each in warnings] == [0] * 7 + [1] * 5
    assert index.upsert(points(OWN[ROWS : ROWS + 1], "own")).warnings == ()


def test_a_refused_batch_is_refused_whole(index: scannery.Index) -> None:
    index.alter(live={"foreign_vectors": "refuse"})
    mixed = np.concatenate([OWN[ROWS : ROWS + 50], FOREIGN[:50]])
    with pytest.raises(InvalidArgumentError, match=r"50 of 100 vectors, this one first") as error:
        index.upsert(points(mixed, "mixed"))
    assert error.value.field == "upserts[50].datapoint.vector"
    assert index.count() == ROWS
    assert index.upsert(points(OWN[ROWS : ROWS + 50], "own")).written == 50
    # One by one, as a bulk write tries those of a refused batch.
    done = index.upsert_many(points(mixed, "mixed"), errors="return")
    assert done.written == 50
    assert {each.id for each in done.failed} == {f"mixed{row}" for row in range(50, 100)}
    assert index.upsert(points(FOREIGN, "named"), vector_model="model-a").written == 300


def test_nothing_is_compared_where_all_are_allowed(index: scannery.Index) -> None:
    index.alter(live={"foreign_vectors": "allow"})
    assert index.upsert(points(FOREIGN, "foreign")).warnings == ()


def test_explain_warns_of_a_foreign_query(index: scannery.Index) -> None:
    foreign = index.search(FOREIGN[0], explain=True).explanation
    assert foreign is not None and foreign.strangeness is not None and foreign.strangeness > 0.6
    [warning] = foreign.warnings
    assert warning.startswith(
        "the vector of the query does not look like those of the index of 'org/model-a'"
    )
    explained = [hits.explanation for hits in index.search_many(FOREIGN[:3], explain=True)]
    assert [len(each.warnings) for each in explained if each is not None] == [1, 1, 1]
    for query_D in (*OWN[ROWS : ROWS + 20], *DRIFT[:20]):
        own = index.search(query_D, explain=True).explanation
        assert own is not None and own.strangeness is not None and own.strangeness < 0.6
        assert not own.warnings
    by_id = index.search(scannery.Like("row0"), explain=True).explanation
    assert by_id is not None and by_id.strangeness is None


def test_a_model_is_named_once(index: scannery.Index) -> None:
    with pytest.raises(
        InvalidArgumentError, match="vector_model: is 'org/model-a', that of the stored vectors"
    ):
        index.alter(vector_model="model-b")


def test_an_encoder_is_named_by_its_digest(tmp_path: Path) -> None:
    with scannery.connect(make_text_store(tmp_path)) as client:
        index = client.index("texts")
        encoder = index.stats().encoder
        assert encoder is not None
        digest = encoder.fingerprint
        [vector] = index.embed(["rising dough"])
        for name in (MINILM, "all-MiniLM-L6-v2", digest, digest[:8]):
            assert index.search(vector, 1, vector_model=name)[0].id == "bread"
        other = "0" * 8 if digest[:8] != "0" * 8 else "1" * 8
        for name in (other, digest[:7], "someone/all-MiniLM-L6-v2"):
            with pytest.raises(InvalidArgumentError, match=rf"are of '{MINILM}' \(digest {digest[:12]}\)"):
                index.search(vector, vector_model=name)
        with pytest.raises(InvalidArgumentError, match="at most 1000 characters"):
            index.search(vector, vector_model="m" * 1001)
        # A text is encoded by the index.
        assert index.upsert([{"id": "new", "text": "Rye bread."}], vector_model="another").written == 1


@pytest.mark.system
def test_vectors_of_the_real_model_are_told_from_others(tmp_path: Path) -> None:
    encoder = Encoder.load(MINILM, device="cpu")
    english, german = ([text for _, _, text in xquad_r(language).documents] for language in ("en", "de"))
    own_ND = encoder.encode_documents(english[:1100])
    spec = parse_spec(
        {"index": "given", "source": {"id": "id", "vector": "vector"}, "encoder": {"model": MINILM}}
    )
    store = Store.open(tmp_path / "store", create=True)
    publish_version(
        store, spec, datapoints(spec, own_ND[:1000]), tmp_path, encoder=encoder.fingerprint.to_dict()
    )
    with scannery.connect(tmp_path / "store") as client:
        index = client.index("given")
        assert not index.upsert(points(own_ND[1000:], "own")).warnings
        assert not index.upsert(points(encoder.encode_documents(german[:100]), "german")).warnings
        rotated_ND = np.roll(own_ND[:50], 100, axis=1)
        [warning] = index.upsert(points(rotated_ND, "rolled")).warnings
        assert MINILM in warning
        for query_D in encoder.encode_queries(["who won the game?", "wie hoch ist der Berg?", "iphone"]):
            explained = index.search(query_D, explain=True).explanation
            assert explained is not None and not explained.warnings


def test_a_spec_cannot_name_another_model_than_its_encoder(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        with pytest.raises(InvalidArgumentError, match=r"vector_model: is 'other', but the encoder is"):
            client.create_index("texts", encoder=MINILM, vector_model="other")
        index = client.create_index("texts", encoder=MINILM, vector_model="all-MiniLM-L6-v2")
        assert index.stats().spec["vector_model"] == "all-MiniLM-L6-v2"
        bare = client.create_index("bare", dimensions=D)
        assert bare.upsert(points(OWN[:5], "a"), vector_model="any").written == 5  # whose model is not known
        bare.alter(vector_model="model-a")
        with pytest.raises(InvalidArgumentError, match="are of 'model-a'"):
            bare.upsert(points(OWN[:5], "a"), vector_model="any")


def test_metrics_count_foreign_batches_and_queries(tmp_path: Path) -> None:
    with serving(built(tmp_path), recall_share=0.0) as server, scannery.connect(server.address) as client:
        index = client.index("given")
        index.upsert(points(FOREIGN, "foreign"))
        index.search(FOREIGN[0], explain=True)
        assert sorted(server.metrics.foreign_vectors.dump().values()) == [1.0, 1.0]


def test_a_sample_is_read_again_when_the_index_has_twice_as_many_rows(tmp_path: Path) -> None:
    checks, spec = VectorChecks(), parse_spec({"index": "given", "source": {"id": "id", "vector": "vector"}})
    store = Store.open(tmp_path / "store", create=True)

    def opened(rows_ND: np.ndarray) -> OpenIndex:
        publish_version(store, spec, datapoints(spec, rows_ND), tmp_path)
        return open_index(store, "given")

    few, index = opened(OWN[:100]), opened(OWN[:300])
    assert checks.strangeness(few, "", OWN[:5]) is None
    strangeness = checks.strangeness(index, "", FOREIGN[:5])
    assert strangeness is not None and strangeness.min() > 0.6
    # Both models are those of the index by now.
    both = opened(np.concatenate([OWN[:400], FOREIGN]))
    strangeness = checks.strangeness(both, "", FOREIGN[:5])
    assert strangeness is None or strangeness.max() < 0.6


def test_a_sample_is_read_again_after_a_full_build_with_another_model(tmp_path: Path) -> None:
    checks, spec = VectorChecks(), parse_spec({"index": "given", "source": {"id": "id", "vector": "vector"}})
    store = Store.open(tmp_path / "store", create=True)
    for rows_ND in (OWN[:400], vectors(model(1), 400, topic=1)):
        publish_version(store, spec, datapoints(spec, rows_ND), tmp_path)
        index = open_index(store, "given")
        own = checks.strangeness(index, "", rows_ND[-20:])
        foreign = checks.strangeness(index, "", vectors(model(2), 20, topic=1))
        assert own is not None and foreign is not None
        assert own.max() < 0.5 < foreign.min()


def test_named_vectors_are_compared_apart(tmp_path: Path) -> None:
    with scannery.connect(tmp_path / "store", create=True) as client:
        index = client.create_index("named", named_vectors={"a": D, "b": D})
        for first in range(0, 600, 200):
            rows = zip(
                OWN[first : first + 200], vectors(model(1), 600, topic=1)[first : first + 200], strict=True
            )
            done = index.upsert(
                [
                    {"id": f"{first + row}", "vectors": {"a": own_D, "b": other_D}}
                    for row, (own_D, other_D) in enumerate(rows)
                ]
            )
            assert not done.warnings
        [warning] = index.upsert(
            [{"id": f"x{row}", "vectors": {"b": row_D}} for row, row_D in enumerate(OWN[-100:])]
        ).warnings
        assert warning.startswith("upserts[0].datapoint.vectors.b: 100 of 100 vectors")
        explained = index.search(OWN[0], vectors="a", explain=True).explanation
        assert explained is not None and explained.strangeness is not None and explained.strangeness < 0.6
