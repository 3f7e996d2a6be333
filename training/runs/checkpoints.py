"""Checkpoints of a run: weights, the optimiser's moments and the number of the step, in one safetensors file each.

The name of a file has its SHA-256, so that one is either whole or passed over. A thread writes them from a copy, to the
nearest store first; the newest that verifies wins.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

from scannery.indexer.errors import IndexerError
from scannery.indexer.store.object_store import Store

if TYPE_CHECKING:
    import torch

__all__ = ["Checkpoint", "Checkpoints"]

_LOG = logging.getLogger(__name__)
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NAME = re.compile(r"(?P<step>[0-9]{10})-(?P<sha256>[0-9a-f]{64})\.safetensors")


class Checkpoint(NamedTuple):
    """The state after some steps."""

    step: int
    """Number of finished steps."""
    seconds: float
    """Seconds that these took, without those of steps that were lost."""
    tensors: dict[str, torch.Tensor]
    """Weights and moments by name."""


class Checkpoints:
    """The checkpoints of one run, in several stores."""

    def __init__(self, stores: Sequence[Store], prefix: str, *, keep: int) -> None:
        """Prepare.

        Args:
            stores: where they are written, nearest first.
            prefix: of their keys.
            keep: number that is kept in each store.

        """
        self._stores, self._prefix, self._keep = stores, prefix, keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scannery-checkpoint")
        self._writing: Future[None] | None = None
        self.saved_step = 0
        """Step of the newest one that this process wrote or read."""

    def newest(self) -> Checkpoint | None:
        """Return the newest one that is whole in some store; None: there is none."""
        import safetensors.torch

        listed = [(step, -number, key) for number, step, key in self._listed()]
        for _, number, key in sorted(listed, reverse=True):
            data = self._read(self._stores[-number], key)
            if data is not None:
                tensors = safetensors.torch.load(data)
                self.saved_step, seconds = int(tensors.pop("run.step")), float(tensors.pop("run.seconds"))
                return Checkpoint(self.saved_step, seconds, tensors)
        return None

    @property
    def is_writing(self) -> bool:
        """Whether one is being written."""
        return self._writing is not None and not self._writing.done()

    def save(self, step: int, seconds: float, tensors: Mapping[str, torch.Tensor]) -> None:
        """Copy a state, and write it in a thread; one that could not be written is reported by the log only."""
        import torch

        copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}
        copies |= {
            "run.step": torch.tensor(step, dtype=torch.int64),
            "run.seconds": torch.tensor(seconds, dtype=torch.float64),
        }
        self.wait()
        self._writing = self._thread.submit(self._write, step, copies)

    def wait(self) -> None:
        """Wait until the last one is written."""
        if self._writing is not None:
            self._writing.result()

    def close(self) -> None:
        """Write what is left, and end the thread."""
        self._thread.shutdown(wait=True)

    def remove(self) -> None:
        """Remove all of them: the run has its result."""
        self.wait()
        for number, _, key in [*self._listed()]:
            self._stores[number].delete(key)

    def _write(self, step: int, tensors: Mapping[str, torch.Tensor]) -> None:
        import safetensors.torch

        data = safetensors.torch.save(dict(tensors))
        key = f"{self._prefix}/{step:010}-{hashlib.sha256(data).hexdigest()}.safetensors"
        for store in self._stores:
            try:
                self._write_to(store, key, data)
                self.saved_step = step
                self._remove_former(store, self._keep)
            except (IndexerError, OSError) as error:
                _LOG.warning("checkpoint %s was not written to %s: %s", key, store.uri, error)

    def _write_to(self, store: Store, key: str, data: bytes) -> None:
        """Write one; where there is no space for it, in place of all but the newest."""
        try:
            store.write(key, data)
        except IndexerError as error:
            if getattr(error.__cause__, "errno", None) not in _FULL or not self._remove_former(store, 1):
                raise
            store.write(key, data)

    def _remove_former(self, store: Store, keep: int) -> int:
        """Remove all but the newest `keep`, and return how many were removed."""
        keys = sorted(item.key for item in store.list(self._prefix) if _NAME.fullmatch(_last(item.key)))
        for key in keys[:-keep]:
            store.delete(key)
        return len(keys[:-keep])

    def _listed(self) -> Iterator[tuple[int, int, str]]:
        """Yield the number of the store, the step and the key of each."""
        for number, store in enumerate(self._stores):
            for item in store.list(self._prefix):
                match = _NAME.fullmatch(_last(item.key))
                if match is not None:
                    yield number, int(match["step"]), item.key

    def _read(self, store: Store, key: str) -> bytes | None:
        """Return a file that is whole."""
        match = _NAME.fullmatch(_last(key))
        assert match is not None
        try:
            data = store.read(key)
        except (IndexerError, OSError) as error:
            _LOG.warning("checkpoint %s cannot be read: %s", key, error)
            return None
        if hashlib.sha256(data).hexdigest() != match["sha256"]:
            _LOG.warning("checkpoint %s is damaged, and passed over", key)
            return None
        return data


def _last(key: str) -> str:
    return key.rpartition("/")[2]
