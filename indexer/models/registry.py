"""The models of a store: `_models/NAME/versions/00000003.json`, created only if absent, so a version never changes.

No name of an index begins so. There is no "production" version: the index names the model that it uses.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.errors import AlreadyExistsError, InvalidSpecError, NotFoundError
from scannery.indexer.models.manifest import ModelVersion
from scannery.indexer.spec.spec import INDEX_NAME
from scannery.indexer.store.object_store import Store
from scannery.indexer.versions.versions import list_indexes, list_versions, read_manifest

__all__ = ["MODELS", "ModelRegistry", "parse_reference"]

MODELS = "_models"
MAX_ATTEMPTS = 50
"""Attempts to register a version while other processes register some of the same name."""
_VERSION = re.compile(r"_models/([^/]+)/versions/([0-9]{8})\.json")
_REFERENCE = re.compile(r"([^@]+)(?:@([1-9][0-9]{0,7}))?")


def parse_reference(text: str) -> tuple[str, int | None]:
    """Return the name and the version of `NAME@N`, or `NAME`: its newest version.

    Raises:
        InvalidSpecError: it has another form.

    """
    match = _REFERENCE.fullmatch(text)
    if match is None or not INDEX_NAME.fullmatch(match[1]):
        raise InvalidSpecError(
            f"model: must be NAME or NAME@N, with a name as of an index, got {text!r:.80}", field="model"
        )
    return match[1], int(match[2]) if match[2] else None


class ModelRegistry:
    """The models of one store. Safe to use from several threads and processes."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def names(self) -> list[str]:
        """Return the names of all models, sorted."""
        keys = (item.key for item in self._store.list(MODELS))
        return sorted({match[1] for key in keys if (match := _VERSION.fullmatch(key))})

    def versions(self, name: str) -> list[int]:
        """Return the versions of a model, ascending; none if there is no such model."""
        keys = (item.key for item in self._store.list(f"{MODELS}/{name}/versions"))
        return sorted(int(match[2]) for key in keys if (match := _VERSION.fullmatch(key)))

    def read(self, reference: str) -> ModelVersion:
        """Return a version.

        Args:
            reference: `NAME@N`, or `NAME`: the newest version.

        Raises:
            InvalidSpecError: the reference has another form.
            NotFoundError: there is no such version.
            CorruptError, FormatError: it cannot be read.

        """
        name, version = parse_reference(reference)
        if version is None:
            versions = self.versions(name)
            if not versions:
                names = ", ".join(self.names()) or "none"
                raise NotFoundError(f"there is no model {name!r} in the store; its models: {names}")
            version = versions[-1]
        key = _key(name, version)
        try:
            return ModelVersion.from_json(key, self._store.read(key))
        except NotFoundError as error:
            versions = self.versions(name)
            listed = (
                f"its versions: {', '.join(map(str, versions))}" if versions else "no version of it is there"
            )
            raise NotFoundError(f"there is no model {name}@{version} in the store; {listed}") from error

    def register(self, name: str, made: Callable[[int], ModelVersion]) -> ModelVersion:
        """Create the next version of a model, and return it.

        Args:
            name: of the model.
            made: returns the version with a number; called again if another process took the number.

        Raises:
            AlreadyExistsError: other processes were quicker in each of MAX_ATTEMPTS attempts.

        """
        for _ in range(MAX_ATTEMPTS):
            model = made(max(self.versions(name), default=0) + 1)
            with contextlib.suppress(AlreadyExistsError):
                self._store.create(_key(name, model.version), model.to_json())
                return model
        raise AlreadyExistsError(
            f"model {name!r}: other processes registered versions all the time; try again"
        )

    def write_values(self, name: str, digest: str, columns: dict[str, Sequence[str] | np.ndarray]) -> str:
        """Write the values of the queries of an evaluation, and return the key.

        Args:
            name: of the model.
            digest: SHA-256, in hexadecimal digits, of what was evaluated.
            columns: by name, a value for each query.

        """
        key = f"{MODELS}/{name}/evaluations/{digest}.parquet"
        data = io.BytesIO()
        pq.write_table(pa.table(columns), data)
        with contextlib.suppress(AlreadyExistsError):
            self._store.create(key, data.getvalue())
        return key

    def remove_unused(self, keep: int) -> list[str]:
        """Remove versions that no kept version of an index names, and return their references.

        The values of their evaluations go with them.

        Args:
            keep: newest versions of each model that stay, at least 1.

        Raises:
            CorruptError, FormatError: a model or a version of an index cannot be read, so nothing is removed.

        """
        models = {
            name: [self.read(f"{name}@{number}") for number in self.versions(name)] for name in self.names()
        }
        named = self._named()
        unused = [
            each for versions in models.values() for each in versions[:-keep] if each.reference not in named
        ]
        kept = {
            each.evaluation.values for versions in models.values() for each in versions if each not in unused
        }
        for model in unused:
            self._store.delete(_key(model.name, model.version))
        for values in {model.evaluation.values for model in unused} - kept:
            self._store.delete(values)
        return [model.reference for model in unused]

    def _named(self) -> set[str]:
        """Return the models that kept versions of indexes are ordered by, or can be rolled back to."""
        rankers = [
            read_manifest(self._store, index, version).ranker
            for index in list_indexes(self._store)
            for version in list_versions(self._store, index)
        ]
        return {name for each in rankers if each is not None for name in (each.model, *each.former)}


def _key(name: str, version: int) -> str:
    return f"{MODELS}/{name}/versions/{version:08}.json"
