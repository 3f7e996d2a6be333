from __future__ import annotations

import json
from typing import Any

import pytest

from scannery.pipelines.profiling.field_profiles import profile_fields
from scannery.pipelines.profiling.field_roles import Roles, find_roles

TEXTS = [
    "The lighthouse keeper counts the ships at night.",
    "A recipe for plum dumplings with poppy seeds and butter.",
    "How to prune an apple tree in late winter.",
    "Trains in the valley run every hour until midnight.",
]


def roles_of(records: list[dict[str, Any]], **given: str) -> Roles:
    return find_roles(profile_fields(records), given)


def rows(**columns: list[Any]) -> list[dict[str, Any]]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def paths(roles: Roles) -> dict[str, str | None]:
    names = ("id", "text", "title", "vector", "document_id")
    found = {name: getattr(roles, name) for name in names}
    return {name: role.field.path for name, role in found.items() if role is not None}


def test_roles_by_values_alone():
    found = roles_of(
        rows(a=["x1", "x2", "x3", "x4"], b=["Light", "Food", "Trees", "Rail"], c=TEXTS, d=[3, 3, 1, 2])
    )
    assert paths(found) == {"id": "a", "text": "c", "title": "b"}
    assert [(one.field.path, one.guess.kind) for one in found.attributes] == [("d", "int")]


def test_a_name_decides_between_unique_fields():
    found = roles_of(
        rows(
            url=["https://a/1", "https://a/2", "https://a/3", "https://a/4"], post_id=[4, 5, 6, 7], body=TEXTS
        )
    )
    assert paths(found)["id"] == "post_id"
    foreign_key = roles_of(rows(user_id=[1, 1, 2, 2], nr=[1, 2, 3, 4], body=TEXTS))
    assert paths(foreign_key)["id"] == "nr"


def test_amounts_and_measures_are_no_ids():
    columns: dict[str, list[Any]] = {
        "price": ["$3,400.50", "$120.00", "$12,000.00", "$7"],
        "ZIP code": ["02139", "90210", "10001", "10002"],
        "item": ["SKU-1", "SKU-2", "SKU-3", "SKU-4"],
        "body": TEXTS,
    }
    assert paths(roles_of(rows(**columns)))["id"] == "item"
    del columns["item"]
    assert roles_of(rows(**columns)).id is None


def test_short_descriptions_are_texts_rather_than_names():
    found = roles_of(
        rows(
            id=[1, 2, 3],
            name=["Bike", "Helmet", "Bell"],
            price=["5 €", "7 €", "9,50 €"],
            description=["light and fast", "protects your head", "loud"],
        )
    )
    assert (paths(found)["text"], paths(found)["title"]) == ("description", "name")
    names = roles_of(rows(id=[1, 2, 3], name=["Ann Lee", "Bo Chu", "Cy Dee"], city=["Ulm", "Graz", "Bern"]))
    assert paths(names)["text"] == "name"


def test_two_fields_identify_where_none_does():
    found = roles_of(rows(show=["a", "a", "b", "b"], number=[1, 2, 1, 2], body=TEXTS))
    assert (found.id, found.id_template) == (None, "{show}-{number}")
    assert roles_of(rows(body=["same words in every one of them"] * 4)).id_template is None


def test_nested_fields_have_paths():
    found = roles_of(
        [
            {"_id": str(n), "meta": {"headline": f"Headline {n}", "x.y": n}, "body": text}
            for n, text in enumerate(TEXTS)
        ]
    )
    assert paths(found) == {"id": "_id", "text": "body", "title": "meta.headline"}
    assert [one.field.path for one in found.attributes] == ["meta.x.y"]


def test_vectors_are_lists_of_numbers_of_one_length():
    vectors = [[float(n)] * 24 for n in range(4)]
    found = roles_of(
        rows(id=["a", "b", "c", "d"], emb=vectors, scores=[[1, 2], [1], [], [3]], label=["p", "q", "p", "q"])
    )
    assert paths(found)["vector"] == "emb"
    assert paths(found).get("text") is None
    assert {one.field.path: one.guess.kind for one in found.attributes}["scores"] == "string_list"


def test_names_are_the_text_where_nothing_is_longer():
    found = roles_of(rows(id=[1, 2, 3, 4], name=["Oslo", "Bergen", "Bodø", "Hamar"], people=[9, 8, 7, 6]))
    assert paths(found) == {"id": "id", "text": "name"}


def test_passages_of_documents():
    found = roles_of(rows(id=["a0", "a1", "b0", "b1"], document_id=["a", "a", "b", "b"], text=TEXTS))
    assert paths(found)["document_id"] == "document_id"


def test_what_is_left_out_says_why():
    ids = ["a", "b", "c", "d"]
    same: dict[str, list[Any]] = {"status": ["ok"] * 4, "empty": [None] * 4, "parts": [[{"x": 1}]] * 4}
    found = roles_of(rows(id=ids, key=ids, text=TEXTS, notes=TEXTS, **same))
    assert {one.field.path: one.why for one in found.left_out} == {
        "key": "the same as id",
        "notes": "the same as text",
        "status": "the same in every record",
        "empty": "has no value in the sample",
        "parts": "lists or mappings; one such field can be the `payload`",
    }
    part = find_roles(
        profile_fields(rows(id=["a", "b", "c", "d"], text=TEXTS, status=["ok"] * 4)), is_whole=False
    )
    assert [one.field.path for one in part.attributes] == ["status"]


@pytest.mark.parametrize(("role", "path"), [("id", "slug"), ("text", "summary"), ("title", "slug")])
def test_what_the_user_names_wins(role: str, path: str):
    records = rows(
        id=[1, 2, 3, 4],
        slug=["light", "dumplings", "apple", "train"],
        summary=TEXTS,
        body=[t * 4 for t in TEXTS],
    )
    assert paths(roles_of(records, **{role: path}))[role] == path


VECTORS = [[round(0.01 * row + 0.1 * place - 1, 3) for place in range(24)] for row in range(4)]
TABLES: dict[str, tuple[list[dict[str, Any]], dict[str, str]]] = {
    "chroma": (
        rows(id=["a", "b", "c", "d"], document=TEXTS, embedding=VECTORS, metadata=[{"page": n} for n in range(4)]),
        {"id": "id", "text": "document", "vector": "embedding"},
    ),
    "chroma, short documents": (
        rows(id=["a", "b", "c", "d"], document=["red bees", "grey owls", "two cats", "a dog"], embedding=VECTORS),
        {"id": "id", "text": "document", "vector": "embedding"},
    ),
    "pinecone": (
        rows(id=["a", "b", "c", "d"], values=VECTORS, metadata=[{"text": text} for text in TEXTS]),
        {"id": "id", "text": "metadata.text", "vector": "values"},
    ),
    "pinecone, few dimensions": (
        rows(id=["a", "b", "c", "d"], values=[one[:3] for one in VECTORS], metadata=[{"text": one} for one in TEXTS]),
        {"id": "id", "text": "metadata.text", "vector": "values"},
    ),
    "qdrant": (
        rows(id=[1, 2, 3, 4], vector=VECTORS, payload=[{"content": text, "lang": "en"} for text in TEXTS]),
        {"id": "id", "text": "payload.content", "vector": "vector"},
    ),
    "qdrant, named": (
        rows(id=[1, 2, 3, 4], vector=[{"image": one} for one in VECTORS], payload=[{"body": one} for one in TEXTS]),
        {"id": "id", "text": "payload.body", "vector": "vector.image"},
    ),
    "langchain": (
        rows(page_content=TEXTS, metadata=[{"source": f"{n}.pdf"} for n in range(4)]),
        {"text": "page_content", "id": "metadata.source"},
    ),
    "cookbook": (rows(text=TEXTS, embedding=[str(one) for one in VECTORS]), {"text": "text", "vector": "embedding"}),
    "cohere": (
        rows(id=[0, 1, 2, 3], title=["Light", "Food", "Trees", "Rail"], text=TEXTS, emb=VECTORS),
        {"id": "id", "title": "title", "text": "text", "vector": "emb"},
    ),
    "weaviate": (
        rows(uuid=["a", "b", "c", "d"], properties=[{"body": text} for text in TEXTS], vector=VECTORS),
        {"id": "uuid", "text": "properties.body", "vector": "vector"},
    ),
    "payload as JSON": (
        rows(id=[1, 2, 3, 4], vector=VECTORS, payload=[json.dumps({"content": text, "n": 1}) for text in TEXTS]),
        {"id": "id", "text": "payload.content", "vector": "vector"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_other_systems(name: str):
    records, expected = TABLES[name]
    assert paths(roles_of(records)) == expected


NO_TEXTS: dict[str, list[Any]] = {
    "numbers": ["1 2 3 4 5 6", "2 3 4 5 6 7", "3 4 5 6 7 8", "4 5 6 7 8 9"],
    "floats": [0.5, 0.25, 0.125, 0.1],
    "vectors": [str(one) for one in VECTORS],
    "cut vectors": ["[0.1 0.2 0.3 ... 0.4 0.5 0.6]", "[0.2 0.2 0.3 ... 0.4 0.5 0.6]"] * 2,
    "hashes": [f"{row:0>64x}" for row in (10**70, 10**71, 10**72, 10**73)],
    "uuids": [f"0b5e6f0e-1c5f-4a52-9d3b-3a52b1c5d0a{row}" for row in range(4)],
    "addresses": [f"https://example.com/a-long-name/of-a-page/{row}" for row in range(4)],
    "several addresses": [f"http://a.de/{n} http://b.de/{n} http://c.de/{n} http://d.de/{n}" for n in range(4)],
    "mails": [f"anna{row}@example.com" for row in range(4)],
    "dates": [f"2024-0{row + 1}-01" for row in range(4)],
    "times": [f"Tue, 0{row + 1} Mar 2022 10:00:00 GMT" for row in range(4)],
    "base64": ["aGVsbG8gd29ybGQgdGhpcw==", "dGhpcyBpcyBhIHRlc3Q0NQ==", "MTIzNDU2Nzg5MGFiY2RlZg==", "QUJDREVGR0g5M=="],
}  # fmt: skip


@pytest.mark.parametrize("name", NO_TEXTS)
@pytest.mark.parametrize("field", ["text", "content", "embedding", "a"])
def test_what_is_no_text_is_never_embedded(name: str, field: str):
    found = roles_of([{"nr": row, field: value} for row, value in enumerate(NO_TEXTS[name])])
    assert found.text is None


def test_a_few_damaged_vectors_do_not_hide_the_others():
    texts = [str(VECTORS[row % 4]) for row in range(40)]
    texts[0], texts[7] = texts[1], "[0.1 0.2 ... 0.3]"
    found = roles_of([{"id": f"a{row}", "embedding": text} for row, text in enumerate(texts)])
    assert paths(found) == {"id": "id", "vector": "embedding"}


def test_vectors_that_were_cut_off_are_named():
    found = roles_of(rows(id=["a", "b", "c", "d"], body=TEXTS, embedding=NO_TEXTS["cut vectors"]))
    assert {one.field.path: one.why.split(":")[0] for one in found.left_out} == {
        "embedding": "vectors of which only some numbers were written"
    }
