"""Where checkpoints and results of a training lie: `_models/NAME/runs/RUN/`, in the machine's cache and in the store.

A run is named by all that decides its numbers, so the same command finds what it has done, on any machine.
"""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from scannery.embed.cache_folders import cache_folder
from scannery.indexer.errors import IndexerError
from scannery.indexer.models.manifest import MODELS
from scannery.indexer.store.object_store import Store
from scannery.training.runs.checkpoints import Checkpoints
from scannery.training.spec import CheckpointSpec

__all__ = ["RunFolder"]

_LOG = logging.getLogger(__name__)
_DIGEST_BYTES = 32


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The files of a run."""

    stores: Sequence[Store]
    """Stores that they are written to, nearest first."""
    prefix: str
    """Prefix of their keys."""
    spec: CheckpointSpec
    """When checkpoints are made."""

    @classmethod
    def of(cls, store: Store, name: str, run: str, spec: CheckpointSpec) -> RunFolder:
        """Return the folder of a run.

        Args:
            store: of the model.
            name: of the model.
            run: digest of all that decides its numbers.
            spec: when checkpoints are made.

        """
        stores = [store]
        if store.local_root is None:
            stores.insert(0, Store.open(cache_folder() / "runs", create=True))
        return cls(stores, f"{MODELS}/{name}/runs/{run}", spec)

    @property
    def every_s(self) -> float:
        """Seconds between two checkpoints."""
        return self.spec.every_s

    def checkpoints(self, name: str) -> Checkpoints:
        """Return the checkpoints of one of its models."""
        return Checkpoints(self.stores, f"{self.prefix}/{name}", keep=self.spec.keep)

    def result(self, name: str, made: Callable[[], np.ndarray]) -> np.ndarray:
        """Return an array that was made before, or now, and is kept where it can be written."""
        key = f"{self.prefix}/{name}.npy"
        for store in self.stores:
            try:
                data = store.read(key)
            except (IndexerError, OSError):  # it is not there, or another store has it
                continue
            if (array := _whole_array(data)) is not None:
                return array
        result = made()
        for store in self.stores:
            try:
                store.write(key, _with_digest(result))
            except (IndexerError, OSError) as error:
                _LOG.warning("%s was not written to %s: %s", key, store.uri, error)
        return result

    def remove(self) -> None:
        """Remove all files of the run, which has its result; what stays, `ModelRegistry.remove_unused` removes."""
        for store in self.stores:
            try:
                for item in store.list(self.prefix):
                    store.delete(item.key)
            except (IndexerError, OSError) as error:
                _LOG.warning("%s was not removed from %s: %s", self.prefix, store.uri, error)


def _with_digest(array: np.ndarray) -> bytes:
    """Return a file of numpy, followed by its SHA-256."""
    data = io.BytesIO()
    np.save(data, array)
    return data.getvalue() + hashlib.sha256(data.getvalue()).digest()


def _whole_array(data: bytes) -> np.ndarray | None:
    """Return the array that `_with_digest` wrote; None if it is damaged."""
    content, digest = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        return None
    array: np.ndarray = np.load(io.BytesIO(content), allow_pickle=False)
    return array
