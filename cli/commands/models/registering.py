"""Register a model of somebody else as an encoder: what `scannery model add` does."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from scannery.embed import Encoder, InvalidModelError
from scannery.embed.fingerprint import hash_model_folder
from scannery.embed.models.model_files import find_model, module_folders
from scannery.indexer import Store
from scannery.indexer.models.files import write_model_files
from scannery.indexer.models.manifest import EncoderVersion
from scannery.indexer.models.registry import ModelRegistry, check_name

__all__ = ["registered_encoder"]


def registered_encoder(store: Store, name: str, model: str) -> EncoderVersion:
    """Load a model, write its files to the store, and return the version that was registered.

    Args:
        store: of the registry.
        name: of the model in the registry.
        model: a folder or a name, as for `Encoder.load`.

    Raises:
        InvalidSpecError: the name has another form, or the folder has files that a model cannot have.
        EmbedError: the model cannot be loaded, or changed meanwhile.
        StoreError: the store cannot be written.

    """
    check_name(name)
    folder = find_model(model)
    loaded = Encoder.load(folder, label=model, device="cpu").fingerprint
    files = write_model_files(store, name, folder)
    if hash_model_folder(folder, module_folders(folder)) != (loaded.weights_sha256, loaded.config_sha256):
        raise InvalidModelError(f"{model} changed while it was registered; try again", field="model")

    def version(number: int) -> EncoderVersion:
        encoder = EncoderVersion(
            name=name,
            version=number,
            kind="encoder",
            created_at=datetime.now(timezone.utc),
            base=None if Path(model).expanduser().is_dir() else model,
            files=files,
        )
        fingerprint = replace(loaded, model=encoder.spec_reference)
        return encoder.model_copy(update={"fingerprint": fingerprint.to_dict()})

    return ModelRegistry(store).register(name, version)
