from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from scannery.indexer import IndexSpec, InvalidSpecError, load_spec, parse_spec, spec_json_schema
from scannery.pipelines.state.work_units import key_of
from tests.data import ROOT
from tests.tools.generate_spec_docs import example_spec, keys_of, spec_page

FULL: dict[str, Any] = {
    "index": "podcasts",
    "source": {"id": "id", "text": "text", "title": "title", "chunk": {"max_tokens": 128, "overlap_tokens": 16}},
    "encoder": {"model": "sentence-transformers/all-MiniLM-L6-v2"},
    "distance": "cosine",
    "attributes": {"show": "string", "speakers": "string_list", "published": "timestamp"},
    "lexical": True,
    "shards": "auto",
    "target_recall": 0.95,
}  # fmt: skip


def changed(path: str, value: object) -> dict[str, Any]:
    """Return FULL with one key, given by its dotted path, set; None removes it."""
    spec: dict[str, Any] = yaml.safe_load(yaml.safe_dump(FULL))
    *parents, key = path.split(".")
    node = spec
    for parent in parents:
        node = node[parent]
    if value is None:
        node.pop(key)
    else:
        node[key] = value
    return spec


def test_the_documented_spec_is_read_as_written():
    spec = parse_spec(FULL)
    assert spec.model_dump(exclude_unset=True) == FULL
    assert IndexSpec.model_validate_json(spec.model_dump_json()) == spec


MAPPED = {
    **FULL,
    "source": {"id": "meta.id", "text": ["a", "b.c"], "csv": {"delimiter": ";", "header": ["a"]}, "records": "items"},
    "attributes": {"price": {"type": "float", "from": "Price (USD)", "decimal": ","}, "year": "int",
     "kind": {"type": "string", "value": "x"}},
}  # fmt: skip


@pytest.mark.system
def test_a_spec_with_mapped_fields_is_read_as_written():
    spec = parse_spec(MAPPED)
    assert spec.attributes == {"price": "float", "year": "int", "kind": "string"}
    assert spec.model_dump(exclude_unset=True) == MAPPED
    assert IndexSpec.model_validate_json(spec.model_dump_json()) == spec
    assert parse_spec(spec.model_dump(mode="json")) == spec
    jsonschema.Draft202012Validator(spec_json_schema()).validate(MAPPED)
    with pytest.raises(InvalidSpecError, match="'price' can only be a type with `format: datapoints`"):
        parse_spec({**MAPPED, "source": {"format": "datapoints"}})


def test_a_spec_without_mapped_fields_is_written_as_by_earlier_releases():
    # Keys of finished work are hashes of it, and earlier releases refuse keys that they do not know.
    spec = parse_spec(FULL)
    assert key_of("x", spec.model_dump(mode="json")) == "3647d417345c53b87b9ce806259b3dee"
    assert {"records", "csv", "attribute_specs"}.isdisjoint(spec.source.model_dump() | spec.model_dump())


def test_a_source_of_vectors_needs_no_encoder():
    spec = parse_spec({"index": "vectors", "source": {"vector": "embedding"}})
    assert spec.encoder is None
    assert spec.target_recall == 0.95


@pytest.mark.parametrize(("path", "value", "says", "field"), [
    ("distanse", "dot", "did you mean `distance`?", "distanse"),
    ("source.chunk.max_token", 3, "did you mean `max_tokens`?", "source.chunk.max_token"),
    ("encoder.modle", "x", "did you mean `model`?", "encoder.modle"),
    ("source", None, "Field required", "source"),
    ("zzz", 1, "valid keys: attributes, distance", "zzz"),
    ("index", "Pod casts", "must match", "index"),
    ("index", "../x", "must match", "index"),
    ("index", None, "Field required", "index"),
    ("distance", "euclid", "'cosine', 'dot' or 'squared_l2', got 'euclid'", "distance"),
    ("shards", 0, "from 1 to 4096, got 0", "shards"),
    ("shards", "many", "got 'many'", "shards"),
    ("target_recall", 1.5, "less than or equal to 0.999, got 1.5", "target_recall"),
    ("attributes.id", "string", "'id' is reserved", "attributes"),
    ("attributes._leaf", "int", "must match", "attributes"),
    ("attributes.year", "number", "got 'number'", "attributes.year"),
    ("source.chunk.overlap_tokens", 64, "less than half of max_tokens (128), got 64", "source.chunk"),
    ("source.format", "manged", "'managed', got 'manged'", "source.format"),
    ("source.format", ["managed"], "'managed'", "source.format"),
    ("source.format", "managed", "`text` cannot be set with `format: managed`, got 'text'", "source"),
    ("source.vector", "v", "`chunk` needs `text` and no `vector`", "source"),
    ("source.vector_bytes", "float32", "`vector_bytes` needs `vector`", "source"),
    ("source.text", None, "needs `text`, `vector` or both", "source"),
    ("encoder", None, "`encoder` is required", None),
    ("encoder", "all-MiniLM-L6-v2", "such as `{model: all-MiniLM-L6-v2}`, got 'all", "encoder"),
    ("source", "text", "such as `{id: id, text: text}`, got 'text'", "source"),
    ("source.text", [], "a list of fields, or a template", "source.text"),
    ("source.csv", {"delimiter": ";;"}, "must be one character or `tab`, got ';;'", "source.csv.delimiter"),
    ("source.csv", {"encoding": "utf-eight"}, "such as utf-8", "source.csv.encoding"),
    ("source.csv", {"quot": '"'}, "did you mean `quote`?", "source.csv.quot"),
    ("source.csv", {"delimiter": '"'}, "must differ", "source.csv"),
    ("source.csv", {"header": ["a", "a"]}, "different names", "source.csv.header"),
    ("attributes.year", "number", "did you mean `float`?", "attributes.year"),
    ("attributes.year", {"type": "date"}, "did you mean `timestamp`?", "attributes.year.type"),
    ("attributes.year", {"from": "x"}, "Field required", "attributes.year.type"),
    ("attributes.year", {"type": "int", "frm": "x"}, "did you mean `from`?", "attributes.year.frm"),
    ("attributes.year", {"type": "int", "split": ","}, "`split` is for type string_list", "attributes.year"),
    ("attributes.year", {"type": "int", "value": "3"}, "`value` must be of type int", "attributes.year"),
    ("attributes.year", {"type": "int", "value": 3, "from": "x"}, "`value` excludes `from`", "attributes.year"),
    ("attributes.Price (USD)", "float", 'write `price: {type: float, from: "Price (USD)"}`', "attributes"),
    ("attributes.Größe", "int", 'write `grosse: {type: int, from: "Größe"}`', "attributes"),
    ("attributes.title", "string", "`own_title: {type: string, from: title}`", "attributes"),
    ("attribute_specs", {}, "unknown key `attribute_specs`", None),
])  # fmt: skip
def test_a_wrong_spec_names_the_key(path: str, value: object, says: str, field: str | None):
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec(changed(path, value))
    assert says in str(caught.value)
    assert caught.value.field == field


@pytest.mark.parametrize(("spec", "says", "field"), [
    ({"source": {"id": "id"}}, "needs `text`, `vector` or both, got neither", "source"),
    ({"source": {"text": "t"}, "lexical": True}, "For an index of words alone, add `vectors: optional`", None),
    ({"source": {"id": "id"}, "vectors": "optional", "lexical": True}, "needs `source.text`", None),
    ({"source": {"id": "id"}, "vectors": "optional", "encoder": {"model": "m"}},
     "`encoder` needs `source.text` or `source.vector`", None),
    ({"source": {"text": "t", "chunk": {}}, "vectors": "optional"}, "`source.chunk` needs `encoder`", None),
    ({"source": {"text": "t"}, "vectors": "optional", "search": {"mode": "dense"}},
     "`search.mode: dense` needs `encoder`", None),
    ({"source": {"text": "t"}, "vectors": "maybe"}, "'required' or 'optional', got 'maybe'", "vectors"),
])  # fmt: skip
def test_what_an_index_without_vectors_needs(spec: dict[str, Any], says: str, field: str | None):
    with pytest.raises(InvalidSpecError) as caught:
        parse_spec({"index": "x", **spec})
    assert says in str(caught.value)
    assert caught.value.field == field


def test_an_index_needs_no_vectors_if_they_are_optional():
    for source in ({"id": "id"}, {"text": "t"}, {"sparse_vector": "s"}):
        spec = parse_spec(
            {"index": "x", "source": source, "vectors": "optional", "lexical": "text" in source}
        )
        assert not spec.embeds
        assert IndexSpec.model_validate_json(spec.model_dump_json()) == spec
    assert "vectors" not in parse_spec({"index": "x", "source": {"vector": "v"}}).model_dump()


def test_formats_with_fields_of_their_own_need_nothing_else():
    managed = parse_spec({"index": "m", "source": {"format": "managed"}})
    assert (managed.source.vector, managed.source.payload) == ("embedding", "embedding_metadata")
    exported = parse_spec({"index": "m", "source": {"format": "datapoints"}, "lexical": True})
    assert (exported.source.document_id, exported.source.vector) == ("document_id", "embedding")
    for spec in (managed, exported):
        assert IndexSpec.model_validate_json(spec.model_dump_json()) == spec
    with pytest.raises(InvalidSpecError, match="'embedding_metadata' is taken"):
        parse_spec(
            {"index": "m", "source": {"format": "managed"}, "attributes": {"embedding_metadata": "string"}}
        )


def test_files_that_are_no_spec(tmp_path: Path):
    with pytest.raises(InvalidSpecError, match="cannot read the spec"):
        load_spec(tmp_path / "missing.yaml")
    (tmp_path / "broken.yaml").write_text("index: [")
    with pytest.raises(InvalidSpecError, match="not valid YAML"):
        load_spec(tmp_path / "broken.yaml")
    (tmp_path / "list.yaml").write_text("- index")
    with pytest.raises(InvalidSpecError, match=r"list\.yaml: the spec must be a mapping of keys, got list"):
        load_spec(tmp_path / "list.yaml")


@pytest.mark.system
def test_the_json_schema_agrees_with_the_parser():
    validator = jsonschema.Draft202012Validator(spec_json_schema())
    validator.validate(FULL)
    validator.validate({"index": "m", "source": {"format": "managed"}})
    for path, value in [("distanse", "dot"), ("shards", 0), ("source.chunk.max_token", 3), ("index", None),
                        ("source.format", "manged"), ("source.vector_bytes", "int8")]:  # fmt: skip
        assert not validator.is_valid(changed(path, value)), path


def test_a_misspelt_required_key_is_called_misspelt():
    with pytest.raises(InvalidSpecError, match="unknown key `sorce`; did you mean `source`"):
        parse_spec({"index": "p", "sorce": {"text": "t"}, "encoder": {"model": "m"}})


@pytest.mark.system
def test_the_published_schema_and_the_reference_page_are_current():
    # `make spec-docs` renews them.
    assert json.loads((ROOT / "docs" / "spec.schema.json").read_text()) == spec_json_schema()
    assert (ROOT / "docs" / "spec.md").read_text() == spec_page()


KEYS = list(keys_of(spec_json_schema()))


@pytest.mark.parametrize(("section", "key"), [key[:2] for key in KEYS])
def test_the_example_of_each_key_is_read(section: str, key: str):
    parse_spec(example_spec(section, key))


def test_each_key_has_a_description():
    assert [(section, key) for section, key, schema, _ in KEYS if not schema.get("description")] == []
