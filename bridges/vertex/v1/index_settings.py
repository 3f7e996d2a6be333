"""The configuration of an index as clients write it (`Index.metadata`), checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.json_format import MessageToDict, SerializeToJsonError
from google.protobuf.struct_pb2 import Value

from scannery.bridges.vertex.v1.queries import DEFAULT_MEASURE, Measure
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.bridging import limits

__all__ = ["Contents", "IndexSettings", "parse_metadata", "parse_settings"]

_PATH = "index.metadata"
_CONFIG = f"{_PATH}.config"
_TUNED = ("approximateNeighborsCount", "shardSize")
"""Kept and returned; what they set is tuned here from `target_recall`."""
MAX_METADATA_BYTES = 1 << 14
"""It is kept in an object with all resources of the server."""
_TREE = ("leafNodeEmbeddingCount", "leafNodesToSearchPercent", "fractionLeafNodesToSearch")


@dataclass(frozen=True, slots=True)
class Contents:
    """Contents to write."""

    uri: str
    """Their folder."""
    overwrite: bool
    """Whether they replace all datapoints."""


@dataclass(frozen=True, slots=True)
class IndexSettings:
    """What determines an index."""

    dimensions: int
    measure: Measure
    exact: bool
    """Whether queries are compared with every datapoint."""


def parse_metadata(value: Value) -> tuple[dict[str, Any], Contents | None]:
    """Return the object `config` of the metadata, empty if it is absent, and the contents that it names, if any.

    Raises:
        InvalidRequestError: it has another form, or an unknown key.

    """
    if value.WhichOneof("kind") in (None, "null_value"):
        return {}, None
    if value.ByteSize() > MAX_METADATA_BYTES:
        raise InvalidRequestError.at(
            _PATH, f"must have at most {MAX_METADATA_BYTES} bytes, got {value.ByteSize()}"
        )
    try:
        metadata_value = MessageToDict(value)
    except (SerializeToJsonError, ValueError, RecursionError) as error:
        raise InvalidRequestError.at(_PATH, f"cannot be JSON: {error}") from error
    metadata = _object(metadata_value, _PATH, ("contentsDeltaUri", "isCompleteOverwrite", "config"))
    uri, overwrite = metadata.get("contentsDeltaUri"), metadata.get("isCompleteOverwrite")
    if uri is not None and not isinstance(uri, str):
        raise InvalidRequestError.at(f"{_PATH}.contentsDeltaUri", f"must be a string, got {uri!r:.80}")
    if overwrite is not None and not isinstance(overwrite, bool):
        raise InvalidRequestError.at(
            f"{_PATH}.isCompleteOverwrite", f"must be true or false, got {overwrite!r:.80}"
        )
    if overwrite and not uri:
        raise InvalidRequestError.at(f"{_PATH}.isCompleteOverwrite", "needs contentsDeltaUri")
    config = metadata.get("config")
    return ({} if config is None else _config(config)), Contents(uri, bool(overwrite)) if uri else None


def parse_settings(config: Mapping[str, Any]) -> IndexSettings:
    """Return what a checked `config` says; raises InvalidRequestError or UnsupportedError."""
    dimensions = config.get("dimensions")
    if dimensions is None:
        raise InvalidRequestError.at(f"{_CONFIG}.dimensions", "is required")
    measure = Measure(
        config.get("distanceMeasureType") or DEFAULT_MEASURE, config.get("featureNormType") or "NONE"
    )
    exact = (config.get("algorithmConfig") or {}).get("bruteForceConfig") is not None
    return IndexSettings(int(dimensions), measure, exact)


def _config(value: object) -> dict[str, Any]:
    config = _object(
        value,
        _CONFIG,
        ("dimensions", "distanceMeasureType", "featureNormType", "algorithmConfig", *_TUNED),
    )
    if config.get("dimensions") is not None:
        _check_whole(config["dimensions"], f"{_CONFIG}.dimensions", limits.MAX_DIMENSIONS)
    for name in ("distanceMeasureType", "featureNormType", "shardSize"):
        if not isinstance(config.get(name), (str, type(None))):
            raise InvalidRequestError.at(f"{_CONFIG}.{name}", f"must be a string, got {config[name]!r:.80}")
    if config.get("approximateNeighborsCount") is not None:
        _check_whole(config["approximateNeighborsCount"], f"{_CONFIG}.approximateNeighborsCount", 1 << 31)
    algorithm = config.get("algorithmConfig")
    if algorithm is not None:
        path = f"{_CONFIG}.algorithmConfig"
        parts = _object(algorithm, path, ("treeAhConfig", "bruteForceConfig"))
        if parts.get("treeAhConfig") is not None:
            _check_tree(_object(parts["treeAhConfig"], f"{path}.treeAhConfig", _TREE), f"{path}.treeAhConfig")
        if parts.get("bruteForceConfig") is not None:
            _object(parts["bruteForceConfig"], f"{path}.bruteForceConfig", ())
    return config


def _check_tree(tree: Mapping[str, Any], path: str) -> None:
    for name in _TREE:
        value = tree.get(name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0
        ):
            raise InvalidRequestError.at(f"{path}.{name}", f"must be a number above 0, got {value!r:.80}")


def _check_whole(value: object, path: str, maximum: int) -> None:
    is_whole = isinstance(value, (int, float)) and not isinstance(value, bool) and value == int(value)
    if not is_whole or not 1 <= value <= maximum:  # type: ignore[operator]  # it is a number
        raise InvalidRequestError.at(path, f"must be a whole number from 1 to {maximum}, got {value!r:.80}")


def _object(value: object, path: str, allowed: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequestError.at(path, f"must be an object, got {value!r:.80}")
    unknown = [name for name in value if name not in allowed]
    if unknown:
        names = ", ".join(allowed) or "none"
        raise InvalidRequestError.at(f"{path}.{unknown[0]:.80}", f"is not a known key; known are: {names}")
    return value
