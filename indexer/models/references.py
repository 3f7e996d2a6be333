"""Models as specs and options name them, where this process can load them from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from scannery.indexer.errors import InvalidSpecError
from scannery.indexer.models.files import cached_model
from scannery.indexer.models.manifest import EncoderVersion
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.spec.model_reference import stored_reference
from scannery.indexer.store.object_store import Store
from scannery.runtime.paths import placed_model

__all__ = ["located_model", "stored_model"]


@contextlib.contextmanager
def located_model(model: str, folder: Path, store: str | None) -> Iterator[str]:
    """Give what a model can be loaded from within the context: a folder, or a name.

    The model keeps its name, which is the label of the encoder that is made of it.

    Args:
        model: a name, a folder, or `store:NAME@N`.
        folder: that a relative path starts from.
        store: URI of the store of the index; None: there is none.

    Raises:
        InvalidSpecError: the model is in a store, and there is none, or the reference has another form.
        NotFoundError: the store has no such model.
        CorruptError, FormatError, StoreError: the model cannot be read.
        OSError: the cache of this machine cannot be written.

    """
    version = stored_model(model, store)
    if version is None:
        yield placed_model(model, folder)
        return
    assert store is not None
    with cached_model(Store.open(store), version) as path:
        yield str(path)


def stored_model(model: str, store: str | None) -> EncoderVersion | None:
    """Return the version that `store:NAME@N` names, None for other models; raises as `located_model`."""
    try:
        reference = stored_reference(model)
    except ValueError as error:
        raise InvalidSpecError(f"model: {error}", field="model") from error
    if reference is None:
        return None
    if store is None:
        raise InvalidSpecError(
            f"model: {model} is in the store of an index, and none is named", field="model"
        )
    return ModelRegistry(Store.open(store)).read_encoder(reference)
