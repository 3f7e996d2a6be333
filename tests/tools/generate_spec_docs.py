"""Generates docs/spec.md and docs/spec.schema.json from the spec's models: `python -m tests.tools.generate_spec_docs`.

Types, defaults, limits and descriptions are those of the JSON Schema; the examples are written here, and a test reads
each with the parser.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from scannery.indexer import spec_json_schema
from tests.data import ROOT

__all__ = ["EXAMPLES", "example_spec", "keys_of", "spec_page"]

EXAMPLES: dict[str, Any] = {
    "index": "podcasts",
    "source": {"text": "body"},
    "encoder": {"model": "sentence-transformers/all-MiniLM-L6-v2"},
    "reranker": {"model": "cross-encoder/ms-marco-MiniLM-L6-v2"},
    "vector_model": "org/model-384",
    "distance": "dot",
    "attributes": {"show": "string", "price": {"type": "float", "from": "Price (USD)"}},
    "dynamic": True,
    "vectors": "optional",
    "named_vectors": {"title": {"encoder": {"model": "all-MiniLM-L6-v2"}}, "image": {"dimensions": 512}},
    "named_vectors.encoder": {"model": "all-MiniLM-L6-v2"},
    "named_vectors.from": "text",
    "named_vectors.vector": "image_vector",
    "named_vectors.dimensions": 512,
    "named_vectors.distance": "dot",
    "attributes.type": "float",
    "attributes.from": "meta.prices.0",
    "attributes.value": "archive",
    "attributes.split": ",",
    "attributes.unit": "ms",
    "attributes.format": "%d/%m/%Y",
    "attributes.decimal": ",",
    "lexical": True,
    "shards": 4,
    "target_recall": 0.99,
    "search": {"mode": "dense"},
    "search.mode": "dense",
    "search.fusion": "reciprocal_rank",
    "search.alpha": 0.6,
    "search.typos": False,
    "search.link": "https://example.org/{document_id}?t={seconds}",
    "search.ranking": {"fresh": [{"attribute": "published", "decay": "90d", "weight": 0.2}]},
    "search.synonyms": ["tv, television", "nyc, big apple => new york"],
    "scann": {"soar": True},
    "live": {"seal_rows": 50000},
    "source.format": "managed",
    "source.id": "isbn",
    "id.from": "content",
    "source.text": ["summary", "body"],
    "source.title": "headline",
    "source.text_format": "html",
    "source.vector": "embedding",
    "source.vector_bytes": "float32",
    "source.sparse_vector": "splade",
    "source.document_id": "episode",
    "source.payload": "links",
    "source.fetch": ["example.com"],
    "source.max_errors": "1%",
    "chunk.headings": True,
    "source.records": "data.items",
    "source.encoding": "windows-1252",
    "source.csv": {"delimiter": ";", "encoding": "latin-1"},
    "csv.delimiter": ";",
    "csv.quote": "'",
    "csv.escape": "\\",
    "csv.encoding": "windows-1252",
    "csv.header": 3,
    "csv.missing": ["NULL", "n/a"],
    "source.chunk": {"max_tokens": 200, "overlap_tokens": 20},
    "chunk.max_tokens": 200,
    "chunk.overlap_tokens": 20,
    "encoder.model": "intfloat/multilingual-e5-small",
    "encoder.query_model": "models/e5-small-podcasts",
    "encoder.device": "cuda",
    "encoder.dtype": "bfloat16",
    "encoder.dimensions": 256,
    "encoder.query_prompt": "query: ",
    "encoder.document_prompt": "passage: ",
    "encoder.max_tokens": 256,
    "reranker.model": "cross-encoder/ms-marco-MiniLM-L6-v2",
    "reranker.max_tokens": 512,
    "lexical.language": "german",
    "lexical.stop_words": ["the", "of"],
    "lexical.analyser": 4,
    "lexical.compounds": True,
    "lexical.scope": "document",
    "scann.exact_below_rows": 50000,
    "scann.leaves": 1000,
    "scann.training_rows": 200000,
    "scann.dimensions_per_block": 2,
    "scann.anisotropic_threshold": 0.1,
    "scann.soar": True,
    "scann.rescore": 200,
    "live.seal_rows": 50000,
    "live.seal_bytes": 536870912,
    "live.seal_age_s": 60.0,
    "live.max_rows": 500000,
    "live.max_bytes": 2147483648,
    "live.merge_segments": 8,
    "live.merge_deleted_share": 0.3,
    "live.gc_every_s": 600.0,
    "live.gc_keep": 5,
    "live.gc_min_age_s": 86400.0,
    "live.foreign_vectors": "refuse",
    "live.expire": {"from": "published", "after": "30d"},
    "expire.from": "expires_at",
    "expire.after": "12h",
}
"""A value for each key; keys of a mapping are named by the last key of its path: `chunk.max_tokens`."""

_BASE: Mapping[str, Any] = {
    "index": "example",
    "source": {"text": "text"},
    "encoder": {"model": "sentence-transformers/all-MiniLM-L6-v2"},
}
_NEEDS: Mapping[str, Mapping[str, Any]] = {
    "source.vector_bytes": {"vector": "embedding"},
    "attributes.from": {"type": "float"},
    "attributes.value": {"type": "string"},
    "attributes.split": {"type": "string_list"},
    "attributes.unit": {"type": "timestamp"},
    "attributes.format": {"type": "timestamp"},
    "attributes.decimal": {"type": "float"},
    "reranker.max_tokens": {"model": EXAMPLES["reranker.model"]},
    "named_vectors.from": {"encoder": EXAMPLES["named_vectors.encoder"]},
    "named_vectors.vector": {"dimensions": 512},
    "named_vectors.distance": {"dimensions": 512},
    "expire.after": {"from": "published"},
}
_INTRODUCTION = """# The spec, key by key

<!-- Made from indexer/spec by `make spec-docs`; do not edit. -->

```sh
scannery spec schema > spec.schema.json
```

prints the JSON Schema of specs, with which editors complete and check keys ([spec.schema.json](spec.schema.json)).
A spec is a YAML file that says what to build. `scannery spec init DATA` writes one for your data, with comments;
`scannery spec check SPEC.yaml --input DATA` shows what becomes of the data before you build
([quickstart](quickstart.md)). An unknown key is an error.

```yaml
index: podcasts
source: {id: id, text: text, title: title, chunk: {max_tokens: 128, overlap_tokens: 16}}
encoder: {model: sentence-transformers/all-MiniLM-L6-v2}
attributes: {show: string, speakers: string_list, published: timestamp}
lexical: true
```
"""


def keys_of(schema: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any], bool]]:
    """Yield (section, key, schema of the key, whether it is required), section by section; the first section is ""."""
    for section, model in _sections(schema):
        required = model.get("required", ())
        for key, value in model["properties"].items():
            yield section, key, value, key in required


def example_spec(section: str, key: str) -> dict[str, Any]:
    """Return a spec in which the key has its example."""
    path = f"{section}.{key}" if section else key
    place = _path_of(section)
    spec: dict[str, Any] = yaml.safe_load(yaml.safe_dump(dict(_BASE)))
    if path == "source.format":
        spec["source"] = {}
    if path == "search.synonyms":
        spec["lexical"] = True
    if path == "search.ranking" or "expire" in path:
        spec["attributes"] = {"published": "timestamp", "expires_at": "timestamp"}
    node = spec
    for part in place:
        found = node.get(part)
        node[part] = dict(found) if isinstance(found, dict) else {}
        node = node[part]
    node.update(_NEEDS.get(path, {}))
    node[key] = EXAMPLES[path]
    return spec


def spec_page() -> str:
    """Return docs/spec.md."""
    schema = spec_json_schema()
    rows: dict[str, list[str]] = {}
    for section, key, value, required in keys_of(schema):
        path = f"{section}.{key}" if section else key
        example = f"`{key}: {_inline(EXAMPLES[path])}`" if path in EXAMPLES else ""
        about = value.get("description", "")
        cells = (f"`{key}`", _type(value, schema), _default(value, required), about, example)
        rows.setdefault(section, []).append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    parts = [_INTRODUCTION]
    for section, lines in rows.items():
        title = "Keys of a spec" if not section else f"`{'.'.join(_path_of(section))}`"
        about = "" if not section else f"{_model(schema, section)['description']}\n\n"
        table = "\n".join(
            ["| key | type | default | meaning | example |", "| --- | --- | --- | --- | --- |", *lines]
        )
        parts.append(f"## {title}\n\n{about}{table}\n")
    return "\n".join(parts)


def _sections(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the spec, then each mapping in it, in the order of their keys; `chunk` follows `source`."""
    yield "", schema
    waiting, known = _mappings(schema, schema), set()
    while waiting:
        name, model = waiting.pop(0)
        if name in known:  # the encoder of an index, and of a named vector
            continue
        known.add(name)
        yield name, model
        waiting = _mappings(model, schema) + waiting


def _mappings(model: Mapping[str, Any], schema: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    found = []
    for key, value in model["properties"].items():
        of_names = value.get("additionalProperties")
        choices = [value, *([of_names] if isinstance(of_names, dict) else [])]
        for choice in [one for outer in choices for one in (outer, *outer.get("anyOf", ()))]:
            if "$ref" in choice and "properties" in (target := _target(choice, schema)):
                found.append((key, target))
    return found


def _model(schema: Mapping[str, Any], section: str) -> Mapping[str, Any]:
    return dict(_sections(schema))[section]


def _path_of(section: str) -> list[str]:
    nested = {
        "id": ["source", "id"],
        "chunk": ["source", "chunk"],
        "csv": ["source", "csv"],
        "expire": ["live", "expire"],
        "attributes": ["attributes", "NAME"],
        "named_vectors": ["named_vectors", "NAME"],
    }
    return nested.get(section, [section] if section else [])


def _target(value: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema["$defs"][value["$ref"].rsplit("/", 1)[1]]
    return found


def _type(value: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    """Return the type and the allowed values of a key, in words."""
    if "anyOf" in value:
        texts = [_type(choice, schema) for choice in value["anyOf"] if choice.get("type") != "null"]
        return " or ".join(dict.fromkeys(texts))
    if "$ref" in value:
        target = _target(value, schema)
        return "mapping, see below" if "properties" in target else _type(target, schema)
    if choices := value.get("enum", [value["const"]] if "const" in value else []):
        return ", ".join(f"`{choice}`" for choice in choices)
    if value.get("type") == "array":
        return f"list of {_type(value.get('items', {}), schema)}"
    if value.get("type") == "object":
        return f"mapping of names to {_type(value.get('additionalProperties', {}), schema)}"
    return value.get("type", "any value") + _limits(value)


def _limits(value: Mapping[str, Any]) -> str:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    limits = [f"{word} {value[name]:,}" for name, word in words.items() if name in value]
    return f" {' '.join(limits)}" if limits else ""


def _default(value: Mapping[str, Any], required: bool) -> str:
    if required:
        return "required"
    default = value.get("default")
    return (
        "–"
        if default is None or default in ({}, []) or isinstance(default, dict)
        else f"`{_inline(default)}`"
    )


def _inline(value: object) -> str:
    return (
        yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False)
        .removesuffix("\n...\n")
        .strip()
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    (ROOT / "docs" / "spec.md").write_text(spec_page())
    (ROOT / "docs" / "spec.schema.json").write_text(
        json.dumps(spec_json_schema(), indent=2, ensure_ascii=False) + "\n"
    )
