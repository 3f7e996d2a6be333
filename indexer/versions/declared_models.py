"""Which model a caller says that vectors are of, and whether an index has vectors of that model."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from scannery.indexer.manifest import NamedModel, VectorsInfo
from scannery.indexer.spec.spec import IndexSpec

__all__ = ["MAX_MODEL_NAME", "declared_problem", "is_declared", "models_of", "spec_problem"]

MAX_MODEL_NAME = 1000
"""Characters of the name of a model."""
_DIGEST = re.compile(r"[0-9a-f]{8,64}")
"""A digest of a fingerprint, or its first digits."""


def declared_problem(
    declared: str, spec: IndexSpec, info: VectorsInfo, *, of_queries: bool = False
) -> str | None:
    """Return whose vectors the index has, if it is not the model that is declared; None if it is, or is not known.

    A model is declared by its name, where the organisation before it may be left out, by its digest, or by at least the
    first 8 digits of that.

    Args:
        declared: the model.
        spec: of the index of these vectors alone, as `IndexSpec.of_vectors`.
        info: what is known of the vectors.
        of_queries: the vectors are of queries: they may be of either side of an encoder, whose vectors fit each other.

    """
    models = models_of(spec, info, of_queries=of_queries)
    if not models or is_declared(declared, models):
        return None
    return " and ".join(map(_described, models))


def models_of(spec: IndexSpec, info: VectorsInfo, *, of_queries: bool) -> tuple[NamedModel, ...]:
    """Return the models whose vectors an index has; arguments as of `declared_problem`. Empty: they are not known."""
    models: list[tuple[str | None, Mapping[str, Any] | None]] = []
    if spec.vector_model is not None:
        models.append((spec.vector_model, None))
    if spec.encoder is not None:
        models.append((spec.encoder.model, info.encoder))
        if of_queries:
            models.append((spec.encoder.query_model, info.query_encoder))
    named = [(name, fingerprint or {}) for name, fingerprint in models if name is not None]
    return tuple(
        NamedModel(name=name, model=each.get("model", ""), digest=each.get("digest", ""))
        for name, each in named
    )


def is_declared(declared: str, models: Iterable[NamedModel]) -> bool:
    """Return whether a caller names one of some models."""
    return any(_is_same(declared, model) for model in models)


def spec_problem(spec: IndexSpec, info: VectorsInfo) -> str | None:
    """Return why `vector_model` of a spec cannot be that of the vectors which its encoder makes; None if it can."""
    if spec.vector_model is None:
        return None
    undeclared = spec.model_copy(update={"vector_model": None})
    problem = declared_problem(spec.vector_model, undeclared, info)
    return None if problem is None else f"is {spec.vector_model!r}, but the encoder is {problem}"


def _is_same(declared: str, model: NamedModel) -> bool:
    if _DIGEST.fullmatch(declared) and model.digest.startswith(declared):
        return True
    # `vector_model` may be a digest as well.
    if _DIGEST.fullmatch(declared) and _DIGEST.fullmatch(model.name):
        return declared.startswith(model.name) or model.name.startswith(declared)
    return any(_are_alike(declared, each) for each in (model.name, model.model))


def _are_alike(first: str, second: str) -> bool:
    """Return whether two names are equal, where one may lack the organisation before it."""
    if "/" in first and "/" in second:
        return first == second
    return first.rpartition("/")[2] == second.rpartition("/")[2]


def _described(model: NamedModel) -> str:
    return f"{model.name!r} (digest {model.digest[:12]})" if model.digest else repr(model.name)
