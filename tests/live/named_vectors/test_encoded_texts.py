"""Named vectors that writes encode from the texts of datapoints, with the real model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scannery.embed import Encoder
from scannery.indexer import Store
from scannery.live.log.mutation_log import Request
from scannery.live.maintenance.seal import seal
from scannery.live.prepare import TextVectors, prepare
from scannery.live.writing.resolve import look_ahead, resolve_upsert
from scannery.runtime.errors import InvalidRequestError, OverloadedError
from scannery.runtime.retry import Deadline
from scannery.serving.request.write import parse_upsert
from scannery.v1 import index_pb2 as pb
from tests.live.named_vectors.named_index import TEXTS, Named, opened
from tests.served import MINILM

pytestmark = pytest.mark.system

BODY = "Molten rock rises from deep below."


@pytest.fixture(scope="module")
def encoders() -> dict[str, Encoder]:
    sizes = {"title": 8, "show": 6, "body": None}
    return {name: Encoder.load(MINILM, device="cpu", dimensions=size) for name, size in sizes.items()}


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Named]:
    with opened(tmp_path / "store") as index:
        index.create(TEXTS)
        yield index


def check(index: Named, encoders: dict[str, Encoder], expected: dict[str, dict[str, Any]]) -> None:
    """Check the vectors of all datapoints; a text stands for its vector."""
    found = index.vectors()
    assert {name: {*own} for name, own in found.items()} == {name: {*own} for name, own in expected.items()}
    for identifier, own in expected.items():
        for name, value in own.items():
            wanted = encoders[name].encode_documents([value])[0] if isinstance(value, str) else value
            np.testing.assert_allclose(
                found[identifier][name], wanted, atol=1e-5, err_msg=f"{identifier} {name}"
            )


@pytest.mark.system
def test_names_are_encoded_from_their_own_texts(index: Named, encoders: dict[str, Encoder]) -> None:
    index.upsert(
        {"id": "a", "title": "Volcanoes", "text": BODY, "attributes": {"show": "geo"}},
        {"id": "b", "text": BODY, "vectors": {"body": [1.0] * 384, "image": [1, 2]}},
        {"id": "c", "title": "  ", "attributes": {"show": " "}},
        {"id": "d", "title": "Volcanoes"},
    )
    expected: dict[str, dict[str, Any]] = {
        "a": {"title": "Volcanoes", "body": BODY, "show": "geo"},
        "b": {"body": [1.0] * 384, "image": [1, 2]},
        "c": {},
        "d": {"title": "Volcanoes"},
    }
    check(index, encoders, expected)
    index.upsert({"id": "a", "text": "Other"})
    check(index, encoders, expected | {"a": {"body": "Other"}})


@pytest.mark.system
def test_masks_encode_what_they_change(index: Named, encoders: dict[str, Encoder], tmp_path: Path) -> None:
    index.upsert(
        {"id": "a", "title": "Volcanoes", "text": BODY, "attributes": {"show": "geo"}, "vectors": {"image": [1, 1]}},
        {"id": "b", "title": "Bread"},
    )  # fmt: skip
    seal(Store.open(tmp_path / "store"), "named")
    a: dict[str, Any] = {"title": "Volcanoes", "body": BODY, "show": "geo", "image": [1, 1]}
    index.upsert({"id": "a", "title": "Eruptions"}, {"id": "b", "title": "Cake"}, mask=["title"])
    a["title"] = "Eruptions"
    check(index, encoders, {"a": a, "b": {"title": "Cake"}})
    index.upsert(
        {"id": "b", "title": "Tea", "vectors": {"title": [1.0] * 8}}, mask=["title", "vectors.title"]
    )
    check(index, encoders, {"a": a, "b": {"title": [1.0] * 8}})
    index.upsert({"id": "b"}, mask=["title"])  # no title any more
    check(index, encoders, {"a": a, "b": {}})
    index.upsert({"id": "a", "vectors": {"title": [2.0] * 8}}, mask=["vectors.title"])
    check(index, encoders, {"a": a | {"title": [2.0] * 8}, "b": {}})
    # All are replaced: what is not given is encoded from the stored texts, as in an upsert without a mask.
    index.upsert({"id": "a", "vectors": {"image": [5, 5]}, "title": "New"}, mask=["vectors", "title"])
    a |= {"image": [5, 5], "title": "New"}
    check(index, encoders, {"a": a, "b": {}})
    index.upsert({"id": "a"}, mask=["vectors.body"])  # removed, though there is a text
    a.pop("body")
    check(index, encoders, {"a": a, "b": {}})


@pytest.mark.system
def test_a_change_by_filter_encodes_the_attribute_once_for_all(
    index: Named, encoders: dict[str, Encoder]
) -> None:
    index.upsert(
        *({"id": f"d{row}", "attributes": {"show": "old"}} for row in range(5)), {"id": "e", "title": "x"}
    )
    assert index.update_where(show="new") == 6
    check(
        index,
        encoders,
        {**{f"d{row}": {"show": "new"} for row in range(5)}, "e": {"show": "new", "title": "x"}},
    )


def test_a_text_that_an_encoder_refuses_is_named(index: Named) -> None:
    catalog = index.catalog
    vectors = TextVectors(catalog.manifest("named"), catalog.encoders, Deadline.after(60))
    fields = ["upserts[0].datapoint.title", "upserts[1].datapoint.title"]
    with pytest.raises(InvalidRequestError, match="cannot be encoded") as caught:
        vectors.encode("title", ["fine", "\ud800"], fields.__getitem__)
    assert caught.value.field == fields[1]


def test_a_text_that_changes_while_it_is_encoded_is_encoded_again(
    index: Named, encoders: dict[str, Encoder]
) -> None:
    """The vectors of a stored text are made before the transaction, which may come upon another text."""
    catalog, live = index.catalog, index.catalog.live("named")
    index.upsert({"id": "a", "title": "Volcanoes"})
    manifest, request = live.state.manifest, pb.UpsertRequest(index="named")
    request.upserts.add(datapoint={"id": "a"}, update_mask={"paths": ["vectors"]})
    prepared = prepare(
        parse_upsert(request, manifest, Deadline.after(60)), manifest, catalog.encoders, Deadline.after(60)
    )
    before = live.state
    look_ahead(prepared, before)
    index.upsert({"id": "a", "title": "Bread"})
    assert resolve_upsert(prepared, before).rows.num_rows == 1
    with pytest.raises(OverloadedError, match="another write has just changed it"):
        resolve_upsert(prepared, live.state)
    live.upsert(prepared, Request(""), Deadline.after(60))
    check(index, encoders, {"a": {"title": "Bread"}})


@pytest.mark.system
def test_passages_have_texts_of_their_own_and_titles_once(
    tmp_path: Path, encoders: dict[str, Encoder]
) -> None:
    spec = TEXTS | {
        "encoder": {"model": MINILM},
        "source": TEXTS["source"] | {"chunk": {"max_tokens": 40, "overlap_tokens": 0}},
    }
    text = " ".join(f"Sentence number {number} is about volcanoes and lava." for number in range(12))
    with opened(tmp_path / "store") as index:
        index.create(spec)
        index.upsert({"id": "a", "title": "Volcanoes", "text": text, "vectors": {"image": [1, 2]}})
        segment = index.catalog.live("named").state.opened().segments[0]
        texts = dict(zip(segment.ids.to_pylist(), segment.column("text").to_pylist(), strict=True))
        assert len(texts) > 2
        expected: dict[str, dict[str, Any]] = {name: {"body": own} for name, own in texts.items()}
        expected["a#0"] |= {"title": "Volcanoes", "image": [1, 2]}
        check(index, encoders, expected)
        index.upsert({"id": "a", "title": "Lava"}, mask=["title"])
        expected["a#0"]["title"] = "Lava"
        check(index, encoders, expected)
        index.upsert({"id": "a", "vectors": {"body": [1.0] * 384}}, mask=["vectors.body"])
        for own in expected.values():
            own.pop("body")
        expected["a#0"]["body"] = [1.0] * 384
        check(index, encoders, expected)
        index.upsert({"id": "a"}, mask=["vectors"])
        expected = {name: {"body": own} for name, own in texts.items()}
        expected["a#0"]["title"] = "Lava"
        check(index, encoders, expected)
        index.upsert({"id": "a", "title": "New", "text": "Short.", "vectors": {"body": [3.0] * 384}})
        check(index, encoders, {"a#0": {"title": "New", "body": [3.0] * 384}})
