"""The level of a store: which keys its indexes may use, so that former releases can still open and write them.

    store.json    {"format": 1, "store": {"level": 3}}

A key that a former release does not know makes it refuse the version, or is lost when that release writes the next one.
Each such key says the level since which it exists (`Since`, indexer/spec/model.py). Until an operator raises the level
of a store (`scannery store upgrade`), no index begins to use keys of a higher one; an index keeps those that it has.

A new store has the newest level: no release before this one has ever opened it. One that begins with a copy of an index
has the level of the store of that. A store from before levels has level 1.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping

from pydantic import BaseModel

from scannery.indexer.errors import FormatError, LevelError
from scannery.indexer.manifest import Manifest
from scannery.indexer.spec.model import later_keys
from scannery.indexer.spec.model_reference import stored_references
from scannery.indexer.spec.spec import IndexSpec
from scannery.indexer.store.object_store import JsonObject, Store

__all__ = [
    "LAST_RELEASES",
    "LEVEL",
    "LEVEL_KEY",
    "begin_level",
    "check_keys",
    "keys_in_use",
    "keys_of",
    "level_of",
    "raise_level",
]

LEVEL_KEY = "store.json"
LEVEL = 3
"""The newest level that this release writes; it refuses to write to stores of a later one."""
LAST_RELEASES: Mapping[int, str] = {1: "2026-11-27 (84a8c5fc)", 2: "2026-11-29 (e12f3b6e)"}
"""The last release of each former level: tests run its code on stores of this one."""
_STORED_MODELS = ("models `store:NAME@N`", 3)


def level_of(store: Store) -> int:
    """Return the level of a store that is to be written.

    Raises:
        FormatError: it is above LEVEL, so this release would lose what a later one has written.
        CorruptError, StoreError: it cannot be read.

    """
    return _level(store, _object(store).read())


def begin_level(store: Store, first: int = LEVEL) -> int:
    """Write the level of a store down where it is not, and return it; that of a new one is `first`.

    Raises as `level_of`.
    """
    _, content = _object(store).change(lambda content: {**content, "level": _level(store, content, first)})
    return int(content["level"])


def raise_level(store: Store, level: int) -> int:
    """Raise the level of a store to at least `level`, and return it; that of a new one is `level`.

    Raises as `level_of`.
    """
    _, content = _object(store).change(
        lambda content: {**content, "level": max(level, _level(store, content, level))}
    )
    return int(content["level"])


def check_keys(level: int, version: Manifest | IndexSpec, parent: Manifest | None) -> None:
    """Check that a version, or its spec, uses no key above the level of its store, but for those of its parent.

    Raises:
        LevelError: it uses one.

    """
    kept = set() if parent is None else keys_in_use(parent).keys()
    for key, needed in keys_in_use(version).items():
        if needed > level and key not in kept:
            raise LevelError(
                f"{key}: needs a store of level {needed}, and this one has level {level}, so that the release of "
                f"{LAST_RELEASES[level]} can still be run on it; `scannery store upgrade STORE` raises the level, and "
                "says what that release cannot open then",
                field=key if key[0] != "`" else None,
            )


def keys_in_use(version: Manifest | IndexSpec) -> dict[str, int]:
    """Return the later keys that a version or a spec uses, by their dotted paths, each with its level."""
    spec = version if isinstance(version, IndexSpec) else version.spec
    stored = any(stored_references(spec.model_dump(mode="json")))
    return dict(_keys_in_use(version, "")) | dict([_STORED_MODELS] if stored else [])


def keys_of(level: int) -> list[str]:
    """Return the keys that a level has added, in the order of the spec."""
    keys = dict.fromkeys(key for key, since in _declared(Manifest, "") if since == level)
    return [*keys, *([_STORED_MODELS[0]] if _STORED_MODELS[1] == level else [])]


def _object(store: Store) -> JsonObject:
    return JsonObject(store, LEVEL_KEY, "store", int)


def _level(store: Store, content: Mapping[str, int], first: int = LEVEL) -> int:
    level = content.get("level")
    if level is None:
        has_indexes = any(store.list(f"{folder}/versions") for folder in store.folders())
        return 1 if has_indexes else first  # indexes may be of any release
    if level > LEVEL:
        raise FormatError(
            f"the store has level {level}, and this release writes up to level {LEVEL}: it would lose what a later "
            "Scannery has written; upgrade it"
        )
    return level


def _path(prefix: str, name: str) -> str:
    # Keys of the spec are called as in SPEC.yaml.
    return "" if not prefix and name == "spec" else f"{prefix}{name}."


def _keys_in_use(model: BaseModel, prefix: str) -> Iterator[tuple[str, int]]:
    later = later_keys(type(model))
    for name, field in type(model).model_fields.items():
        value, path = getattr(model, name), _path(prefix, name)
        if name in later and value != field.default:
            yield later[name].feature or path[:-1], later[name].level
        for key, part in (value if isinstance(value, dict) else {"": value}).items():
            if isinstance(part, BaseModel):
                yield from _keys_in_use(part, f"{path}{key}." if key else path)


def _declared(model: type[BaseModel], prefix: str, *outer: type[BaseModel]) -> Iterator[tuple[str, int]]:
    later = later_keys(model)
    for name, field in model.model_fields.items():
        path = _path(prefix, name)
        if name in later:
            yield later[name].feature or path[:-1], later[name].level
        for part in _models_in(field.annotation):
            if part not in (model, *outer):  # files of named vectors are segments in segments
                nested = f"{path}NAME." if typing.get_origin(field.annotation) is dict else path
                yield from _declared(part, nested, model, *outer)


def _models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in typing.get_args(annotation):
        yield from _models_in(part)
