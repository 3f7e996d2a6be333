"""Fingerprints of encoders: an index stores one, and every encoder used with the index must match it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from scannery.embed.errors import FingerprintMismatchError, InvalidModelError

__all__ = ["Fingerprint", "hash_model_folder", "require_files", "require_match", "weight_files"]

TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "vocab.txt", "vocab.json", "merges.txt",
    "sentencepiece.bpe.model", "spiece.model", "tokenizer.model", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip

# Keys that libraries record for themselves: they change when a model is saved again, and do not affect vectors.
VOLATILE_KEYS = frozenset(
    {"_name_or_path", "name_or_path", "transformers_version", "torch_dtype", "dtype", "__version__"}
)


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    """Everything that determines the vectors of an encoder. Device and dtype are left out.

    Two encoders with equal digests give equal vectors up to rounding (cosine at least 0.999).
    """

    model: str = field(compare=False)
    """Name or folder of the model; a label, not part of the identity."""

    weights_sha256: str
    """SHA-256 of the weight file; of several, SHA-256 of their sorted `name hash` lines."""

    config_sha256: str
    """SHA-256 over the module list, the configuration of each module and the tokenizer."""

    modules: tuple[str, ...]
    """Module classes in order, such as `("Transformer", "Pooling", "Normalize")`."""

    dimensions: int
    """Components of a vector."""

    max_tokens: int
    """Tokens, special ones included, after which a text is cut off."""

    query_prompt: str = ""
    """Text in front of every query."""

    document_prompt: str = ""
    """Text in front of every document."""

    @property
    def digest(self) -> str:
        """SHA-256 of all fields but `model`, as 64 hexadecimal digits."""
        identity = {key: value for key, value in asdict(self).items() if key != "model"}
        return hashlib.sha256(_canonical(identity)).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-ready values, with the digest."""
        return {**asdict(self), "modules": list(self.modules), "digest": self.digest}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Fingerprint:
        """Return the fingerprint that `to_dict` wrote; keys that this version does not know are ignored.

        Raises:
            InvalidModelError: a field is missing.

        """
        names = {f.name for f in fields(cls)}
        values = {key: value for key, value in data.items() if key in names}
        if missing := sorted(names - {"query_prompt", "document_prompt"} - values.keys()):
            raise InvalidModelError(f"encoder fingerprint lacks {', '.join(missing)}", field=missing[0])
        return cls(**{**values, "modules": tuple(values["modules"])})

    def __str__(self) -> str:
        return f"{self.model} ({self.dimensions} dimensions, weights {self.weights_sha256[:12]})"


def require_match(expected: Fingerprint, actual: Fingerprint) -> None:
    """Return if both describe the same encoder.

    Raises:
        FingerprintMismatchError: they differ; the message names both and the fields that differ.

    """
    if expected.digest == actual.digest:
        return
    different = [
        f"{f.name} {_shown(getattr(expected, f.name))} vs {_shown(getattr(actual, f.name))}"
        for f in fields(Fingerprint)
        if f.compare and getattr(expected, f.name) != getattr(actual, f.name)
    ]
    raise FingerprintMismatchError(
        f"the index was embedded with {expected}, this encoder is {actual}; different: {'; '.join(different)}",
        field="encoder",
    )


def require_files(expected: Fingerprint, weights_sha256: str, config_sha256: str, label: str) -> None:
    """Return if a model's files have the hashes of a fingerprint; a check that loads none of them.

    Args:
        expected: the fingerprint.
        weights_sha256: of the files, as is `config_sha256`; see `hash_model_folder`.
        config_sha256: likewise.
        label: name of the model, for the message.

    Raises:
        FingerprintMismatchError: they differ; the message names the differing hashes.

    """
    hashes = {"weights_sha256": weights_sha256, "config_sha256": config_sha256}
    different = [
        f"{name} {_shown(getattr(expected, name))} vs {_shown(value)}"
        for name, value in hashes.items()
        if getattr(expected, name) != value
    ]
    if different:
        raise FingerprintMismatchError(
            f"the index was embedded with {expected}, this encoder is {label} (weights {weights_sha256[:12]}), which "
            f"is not loaded; different: {'; '.join(different)}",
            field="encoder",
        )


def hash_model_folder(folder: Path, module_folders: list[str]) -> tuple[str, str]:
    """Return `(weights_sha256, config_sha256)` of the model in `folder`.

    Args:
        folder: folder of the model.
        module_folders: the `path` of each module in modules.json; "" is the model folder itself.

    """
    paths = [folder / name for name in dict.fromkeys(["", *module_folders])]
    weights = [file for path in paths for file in weight_files(path)]
    configs = [file for path in paths for file in _config_files(path)]
    return _combine(folder, weights, _file_sha256), _combine(folder, configs, _config_sha256)


def weight_files(path: Path) -> list[Path]:
    """Return the weight files that loading `path` reads: safetensors, or the pickled files if there are none."""
    for pattern in ("*.safetensors", "pytorch_model*.bin"):
        # Checkpoints of other frameworks in the same folder are not read.
        if weights := sorted(p for p in path.glob(pattern) if not p.name.startswith("adapter")):
            return weights
    return []


def _config_files(path: Path) -> list[Path]:
    names = ("modules.json", "config.json", "sentence_bert_config.json", *TOKENIZER_FILES)
    return [path / name for name in names if (path / name).is_file()]


def _combine(folder: Path, files: list[Path], digest: Any) -> str:
    if len(files) == 1:
        return str(digest(files[0]))  # the plain hash of a single file equals the one that the hub shows
    lines = sorted(f"{file.relative_to(folder).as_posix()} {digest(file)}" for file in files)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _file_sha256(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            sha.update(block)
    return sha.hexdigest()


def _config_sha256(path: Path) -> str:
    if path.suffix != ".json" or path.name in ("tokenizer.json", "vocab.json"):
        return _file_sha256(path)
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidModelError(f"{path} is not valid JSON: {error}") from error
    return hashlib.sha256(_canonical(_without_volatile(data))).hexdigest()


def _without_volatile(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _without_volatile(value) for key, value in data.items() if key not in VOLATILE_KEYS}
    return [_without_volatile(item) for item in data] if isinstance(data, list) else data


def _canonical(data: Any) -> bytes:
    return json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def _shown(value: object) -> str:
    return f"{value[:12]}…" if isinstance(value, str) and len(value) > 40 else repr(value)
