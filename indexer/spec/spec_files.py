"""Read a spec from YAML or JSON, with errors that name the key."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from scannery.indexer.errors import InvalidSpecError
from scannery.indexer.spec.source_spec import GeneratedId
from scannery.indexer.spec.spec import AttributeSpec, IndexSpec, NamedVectorSpec

__all__ = ["load_spec", "parse_spec", "spec_json_schema", "spec_yaml"]


def parse_spec(data: object) -> IndexSpec:
    """Return the spec in `data`, a mapping as YAML or JSON gives it.

    Raises:
        InvalidSpecError: names the first wrong key by its dotted path; for an unknown key, the nearest valid one.

    """
    if not isinstance(data, Mapping):
        raise InvalidSpecError(f"the spec must be a mapping of keys, got {type(data).__name__}")
    try:
        return IndexSpec.model_validate(dict(data))
    except ValidationError as error:
        raise _explain(error) from error


def load_spec(path: str | Path) -> IndexSpec:
    """Return the spec in a YAML (or JSON) file.

    Raises:
        InvalidSpecError: the file cannot be read, is not YAML, or does not describe an index.

    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidSpecError(f"cannot read the spec {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidSpecError(f"the spec {path} is not UTF-8: {error}") from error
    except yaml.YAMLError as error:
        raise InvalidSpecError(f"{path} is not valid YAML: {error}") from error
    try:
        return parse_spec(data)
    except InvalidSpecError as error:
        raise InvalidSpecError(f"{path}: {error.message}", field=error.field) from error


def spec_yaml(spec: IndexSpec) -> str:
    """Return a spec as YAML that `load_spec` reads, without keys that have their defaults."""
    data = spec.model_dump(mode="json", exclude_defaults=True)
    if spec.lexical is None:
        data.pop("lexical", None)
    source = {"id": spec.source.id, **data.pop("source", {})}
    whole = {"index": spec.index, "source": source, **{k: v for k, v in data.items() if k != "index"}}
    text: str = yaml.safe_dump(whole, sort_keys=False, allow_unicode=True, width=100)
    return text


def spec_json_schema() -> dict[str, Any]:
    """Return the JSON Schema of SPEC.yaml, for editors and validators."""
    schema = IndexSpec.model_json_schema(mode="validation")
    source = schema["$defs"]["SourceSpec"]["properties"]
    generated = source.pop("generated_id")["anyOf"][0]
    source["id"]["anyOf"] = [{"type": source["id"].pop("type")}, generated]
    types = schema["properties"]["attributes"]["additionalProperties"]
    schema_of_attribute = schema["properties"].pop("attribute_specs")["additionalProperties"]
    schema["properties"]["attributes"]["additionalProperties"] = {"anyOf": [types, schema_of_attribute]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Scannery index spec"} | {
        key: value for key, value in schema.items() if key != "title"
    }


_PATHS_IN_FILES = {("attribute_specs",): ("attributes",), ("source", "generated_id"): ("source", "id")}
"""Paths of keys in the models whose mappings are written under another key."""


def _explain(error: ValidationError) -> InvalidSpecError:
    # A misspelt key gives two errors, an unknown and a missing key: the first is more specific.
    first = min(error.errors(), key=lambda item: item["type"] != "extra_forbidden")
    path = tuple(str(part) for part in first["loc"])
    for model_path, file_path in _PATHS_IN_FILES.items():
        if path[: len(model_path)] == model_path:
            path = (*file_path, *path[len(model_path) :])
    field = ".".join(path) or None
    if first["type"] == "extra_forbidden":
        return InvalidSpecError(_unknown_key(path), field=field)
    what = first["msg"].removeprefix("Value error, ")
    is_told = "got" in what or first["type"] == "missing" or isinstance(first["input"], Mapping)
    got = "" if is_told else f", got {first['input']!r}"
    return InvalidSpecError(f"{field or 'spec'}: {what}{got}", field=field)


def _unknown_key(location: tuple[str, ...]) -> str:
    *parents, key = location
    valid = sorted(_keys_at(IndexSpec, parents))
    near = difflib.get_close_matches(key, valid, n=1, cutoff=0.5)
    hint = f"did you mean `{near[0]}`?" if near else f"valid keys: {', '.join(valid)}"
    return f"unknown key `{'.'.join([*parents, key])}`; {hint}"


def _keys_at(model: type[BaseModel], path: list[str]) -> Iterator[str]:
    if path == ["source", "id"]:
        model, path = GeneratedId, []
    models: dict[str, type[BaseModel]] = {"attributes": AttributeSpec, "named_vectors": NamedVectorSpec}
    if path and path[0] in models:  # below a name
        model, path = models[path[0]], path[2:]
    for part in path:
        annotation = model.model_fields[part].annotation
        candidates = (annotation, *get_args(annotation))
        model = next(c for c in candidates if isinstance(c, type) and issubclass(c, BaseModel))
    unwritten = {models[-1] for models in _PATHS_IN_FILES}
    yield from (field.alias or name for name, field in model.model_fields.items() if name not in unwritten)
