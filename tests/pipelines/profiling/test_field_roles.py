from __future__ import annotations

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
