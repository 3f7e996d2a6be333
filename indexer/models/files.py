"""The files of a model: from a folder into the store, and from there into the cache of this machine.

A file lies in the store by its SHA-256. It is written before the version that lists it, so a killed registration leaves
files that no version lists, which `ModelRegistry.remove_unused` removes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from scannery.indexer.errors import CorruptError, InvalidSpecError, NotFoundError
from scannery.indexer.local.files import file_sha256
from scannery.indexer.models.manifest import (
    MAX_BYTES,
    MAX_FILES,
    WEIGHTS,
    EncoderVersion,
    ModelFile,
    file_key,
)
from scannery.indexer.models.registry import ModelRegistry
from scannery.indexer.segment.cache import SegmentCache
from scannery.indexer.store.object_store import Store

__all__ = ["cached_model", "copy_model", "write_model_files"]

SUFFIXES = (WEIGHTS, ".json", ".txt", ".model", ".md")
"""Suffixes of files that are stored: weights, configuration, tokenizer, and the card, which names the languages.
Others, such as pickled or exported weights, are never read, and left out."""
_FOLDER = "model"


def write_model_files(store: Store, name: str, folder: Path) -> dict[str, ModelFile]:
    """Write the files of a model to the store, and return them by their paths in the folder.

    That the model can be loaded, and without running its code, the caller has seen: only `scannery.embed` knows.

    Args:
        store: of the registry.
        name: of the model.
        folder: a sentence-transformers model; hidden files and folders are left out.

    Raises:
        InvalidSpecError: the folder has no weights, too many files or bytes, or a link that leads out of it; or a file
            changed while it was read.
        StoreError: a file cannot be written.

    """
    paths = _model_files(folder)
    return {path: _written_file(store, name, folder / path) for path in paths}


def _model_files(folder: Path) -> list[str]:
    """Return the paths of the files to store, sorted."""
    root = folder.resolve()
    # Snapshots of the hub's cache have links to the files beside them.
    allowed = root.parent.parent if root.parent.name == "snapshots" else root
    paths = []
    for parent, folders, names in os.walk(root):
        folders[:] = [each for each in folders if not each.startswith(".")]
        for path in (Path(parent, each) for each in names if each.endswith(SUFFIXES) and each[0] != "."):
            if not (path.resolve().is_relative_to(allowed) and path.is_file()):
                raise _refused(f"{path} is no file, or a link that leads out of the folder of the model")
            paths.append(path.relative_to(root).as_posix())
    if not any(path.endswith(WEIGHTS) for path in paths):
        raise _refused(f"{folder} has no weights (*{WEIGHTS})")
    size_bytes = sum((root / path).stat().st_size for path in paths)
    if len(paths) > MAX_FILES or size_bytes > MAX_BYTES:
        raise _refused(
            f"{folder} has {len(paths)} files with {size_bytes} bytes; a model has at most {MAX_FILES} files and "
            f"{MAX_BYTES} bytes"
        )
    return sorted(paths)


def _written_file(store: Store, name: str, path: Path) -> ModelFile:
    before = path.stat()
    file = ModelFile(sha256=file_sha256(path), size_bytes=before.st_size)
    # Also where it is in the store: it may be damaged, or so old that it is removed before a version lists it.
    store.write_file(file_key(name, file.sha256), path)
    after = path.stat()
    if (before.st_mtime_ns, before.st_size) != (after.st_mtime_ns, after.st_size):
        raise _refused(f"{path} changed while it was read")
    return file


def _refused(message: str) -> InvalidSpecError:
    return InvalidSpecError(f"model: {message}", field="model")


def copy_model(source: Store, target: Store, reference: str) -> EncoderVersion:
    """Copy a version with its files to another store, unless it is there, and return it.

    Args:
        source: has the version.
        target: gets it, under the same number.
        reference: `NAME@N` of an encoder.

    Raises:
        NotFoundError: the source has no such version.
        AlreadyExistsError: the target has another model of this name and number.
        CorruptError, FormatError, StoreError: a store cannot be read or written, or a file is damaged.

    """
    version, registry = ModelRegistry(source).read_encoder(reference), ModelRegistry(target)
    if not registry.has(version):
        for path, file in version.files.items():
            key = version.file_key(path)
            with source.open_checked(key, sha256=file.sha256, size_bytes=file.size_bytes) as stored:
                target.write_file(key, stored)
        _copy_values(source, target, version)
        registry.add(version)
    return version


def _copy_values(source: Store, target: Store, version: EncoderVersion) -> None:
    """Copy what the version was worth for each query: without it, another model could not be compared with it."""
    if version.evaluation is not None:
        with contextlib.suppress(NotFoundError):
            target.write(version.evaluation.values, source.read(version.evaluation.values))


@contextlib.contextmanager
def cached_model(store: Store, version: EncoderVersion, cache: SegmentCache | None = None) -> Iterator[Path]:
    """Give the folder of a model in the cache of this machine, which no process removes within the context.

    Its files are compared with their SHA-256 before, and fetched from the store again if one is damaged or missing.
    Models lie among the segments of the cache, by the SHA-256 of their files, so that one limit of bytes is for both.

    Args:
        store: of the registry.
        version: the model.
        cache: None: that of the environment.

    Raises:
        CorruptError: a file is damaged or missing in the store; the message names its key.
        StoreError: the store cannot be read, or the cache belongs to another user.
        OSError: the cache cannot be written.

    """
    unpack = partial(_fetch, store, version)
    with (cache or SegmentCache()).opened(
        version.content_sha256, unpack, size_bytes=version.size_bytes
    ) as folder:
        yield folder / _FOLDER


def _fetch(store: Store, version: EncoderVersion, draft: Path) -> None:
    for path, file in version.files.items():
        key, target = version.file_key(path), draft / _FOLDER / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with store.open_checked(
                key, sha256=file.sha256, size_bytes=file.size_bytes, folder=draft
            ) as stored:
                shutil.copyfile(stored, target)
        except NotFoundError as error:
            raise CorruptError(f"{key}, {path} of model {version.reference}, is not in the store") from error
        # What was copied is what a model is loaded from: in a folder store another process may have replaced it since.
        if file_sha256(target) != file.sha256:
            raise CorruptError(f"{key}, {path} of model {version.reference}, changed while it was read")
