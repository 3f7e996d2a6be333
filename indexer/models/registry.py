"""The models of a store: `_models/NAME/versions/00000003.json`, created only if absent, so a version never changes.

No name of an index begins so. There is no "production" version: the index names the models that it uses.
"""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.errors import (
    AlreadyExistsError,
    CorruptError,
    FormatError,
    InvalidSpecError,
    NotFoundError,
)
from scannery.indexer.models.manifest import (
    MODELS,
    EncoderVersion,
    ModelVersion,
    RankingVersion,
    read_version,
)
from scannery.indexer.spec.model import INDEX_NAME
from scannery.indexer.spec.model_reference import stored_references
from scannery.indexer.store.object_store import Store, StoredObject
from scannery.indexer.versions.versions import list_indexes, list_versions, read_manifest

__all__ = ["ModelRegistry", "RemovedModels", "check_name", "parse_reference"]

AnyVersion = TypeVar("AnyVersion", RankingVersion, EncoderVersion)
MAX_ATTEMPTS = 50
"""Attempts to register a version while other processes register some of the same name."""
_VERSION = re.compile(r"_models/([^/]+)/versions/([0-9]{8})\.json")
_FILE = re.compile(r"_models/[^/]+/files/[0-9a-f]{64}")
_RUN = re.compile(r"_models/[^/]+/runs/.+")
RUNS_KEPT = timedelta(days=7)
"""How long checkpoints of a training stay that is not gone on with."""
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


@dataclass(frozen=True, kw_only=True)
class RemovedModels:
    """What `ModelRegistry.remove_unused` removed."""

    versions: tuple[str, ...]
    """References of versions."""
    files: int
    """Number of files that no version lists."""
    freed_bytes: int
    """Their bytes."""


def check_name(name: str) -> None:
    """Raise InvalidSpecError if a model cannot have a name."""
    if not INDEX_NAME.fullmatch(name):
        raise InvalidSpecError(
            f"name: of a model must match {INDEX_NAME.pattern} (it becomes a folder name), got {name!r:.80}",
            field="name",
        )


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

    def read_all(self, name: str) -> Iterator[tuple[int, ModelVersion | Exception]]:
        """Yield the versions of a model by number, ascending; in place of one that cannot be read, its error."""
        for number in self.versions(name):
            try:
                yield number, self.read(f"{name}@{number}")
            except NotFoundError:
                continue  # it was removed meanwhile
            except (CorruptError, FormatError) as error:
                yield number, error

    def read_encoder(self, reference: str) -> EncoderVersion:
        """Return a version that encodes texts; InvalidSpecError if it is of another kind, others as `read`."""
        version = self.read(reference)
        if not isinstance(version, EncoderVersion):
            raise InvalidSpecError(
                f"model {version.reference} orders hits, and cannot encode texts", field="model"
            )
        return version

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
            return read_version(key, self._store.read(key))
        except NotFoundError as error:
            versions = self.versions(name)
            listed = (
                f"its versions: {', '.join(map(str, versions))}" if versions else "no version of it is there"
            )
            raise NotFoundError(f"there is no model {name}@{version} in the store; {listed}") from error

    def register(self, name: str, made: Callable[[int], AnyVersion]) -> AnyVersion:
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

    def has(self, version: EncoderVersion) -> bool:
        """Return whether a version of another store is in this one, with the same files.

        Raises:
            AlreadyExistsError: another model has its name and number here.
            CorruptError, FormatError: it cannot be read.

        """
        try:
            stored = self.read(version.reference)
        except NotFoundError:
            return False
        if not isinstance(stored, EncoderVersion) or stored.content_sha256 != version.content_sha256:
            raise AlreadyExistsError(f"the store has another model {version.reference}; use another store")
        return True

    def add(self, version: EncoderVersion) -> None:
        """Create a version of another store, with its number; raises as `has`."""
        try:
            self._store.create(_key(version.name, version.version), version.to_json())
        except AlreadyExistsError:
            self.has(version)

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

    def read_values(self, key: str) -> pa.Table:
        """Return the values of the queries of an evaluation, by their key.

        Raises:
            CorruptError: the file is damaged.
            NotFoundError, StoreError: it cannot be read.

        """
        data = self._store.read(key)
        try:
            return pq.read_table(io.BytesIO(data))
        except (pa.ArrowException, OSError) as error:
            raise CorruptError(f"{key} is damaged: {error}") from error

    def remove_unused(self, keep: int, *, min_age: timedelta = timedelta(days=1)) -> RemovedModels:
        """Remove versions that no kept version of an index names, and files that no version lists.

        The values of their evaluations go with them.

        Args:
            keep: newest versions of each model that stay, at least 1.
            min_age: files below this age stay: those of a version are written before it.

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
            each.evaluation.values
            for versions in models.values()
            for each in versions
            if each not in unused and each.evaluation
        }
        for model in unused:
            self._store.delete(_key(model.name, model.version))
        for values in {model.evaluation.values for model in unused if model.evaluation} - kept:
            self._store.delete(values)
        now = datetime.now(timezone.utc)
        self._remove_runs(now - RUNS_KEPT)
        files = self._remove_files(now - min_age)
        return RemovedModels(
            versions=tuple(model.reference for model in unused),
            files=len(files),
            freed_bytes=sum(item.size_bytes for item in files),
        )

    def _remove_runs(self, before: datetime) -> None:
        """Remove what trainings left that were not gone on with since a time."""
        for item in self._store.list(MODELS):
            if _RUN.fullmatch(item.key) and item.modified < before:
                self._store.delete(item.key)

    def _remove_files(self, before: datetime) -> list[StoredObject]:
        """Remove the files that no version lists, and that were written before a time; return them."""
        old = {item.key for item in self._files(before)}
        # Read after the files: a version that was registered since is among them.
        listed = {
            version.file_key(path)
            for name in self.names()
            for version in map(self.read, (f"{name}@{number}" for number in self.versions(name)))
            if isinstance(version, EncoderVersion)
            for path in version.files
        }
        # Listed again: what is registered meanwhile with an old file writes it once more.
        removed = [item for item in self._files(before) if item.key in old - listed]
        for item in removed:
            self._store.delete(item.key)
        self._store.remove_drafts(MODELS, before)
        return removed

    def _files(self, before: datetime) -> list[StoredObject]:
        files = (item for item in self._store.list(MODELS) if _FILE.fullmatch(item.key))
        return [item for item in files if item.modified < before]

    def _named(self) -> set[str]:
        """Return the models that kept versions of indexes use, or can be rolled back to."""
        manifests = [
            read_manifest(self._store, index, version)
            for index in list_indexes(self._store)
            for version in list_versions(self._store, index)
        ]
        states = [state for each in manifests for state in (each.search_state, *each.former)]
        specs = [manifest.spec.model_dump(mode="json") for manifest in manifests]
        models = {state.model for state in states if state.model is not None}
        return models | {*stored_references([specs, [state.query_model for state in states]])}


def _key(name: str, version: int) -> str:
    return f"{MODELS}/{name}/versions/{version:08}.json"
