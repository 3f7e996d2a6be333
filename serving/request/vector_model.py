"""Which model the vectors of callers are of: that of the index, or another one from which a map leads to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from scannery.indexer import Manifest
from scannery.indexer.manifest import VectorMap
from scannery.indexer.versions.declared_models import MAX_MODEL_NAME, declared_problem, is_declared, models_of
from scannery.runtime.errors import InvalidRequestError
from scannery.serving.request.query import ChosenVectors, QueryMap, VectorChoice
from scannery.v1 import search_pb2 as pb

__all__ = ["check_vector_model", "of_vector_model"]


def of_vector_model(
    vectors: ChosenVectors, message: pb.SearchOptions, manifest: Manifest, maps: Mapping[str, np.ndarray]
) -> ChosenVectors:
    """Return the vectors of a search with the maps by which queries of the model that it names become theirs.

    Args:
        vectors: that are searched.
        message: of the request.
        manifest: of the index.
        maps: matrices of the maps of the index, by key.

    Raises:
        InvalidRequestError: the vectors are of another model, and no map leads from it, or the request wants none.

    """
    if message.map_vectors and not message.vector_model:
        raise InvalidRequestError.at(
            "map_vectors", "needs `vector_model`, the model of the vectors of queries"
        )
    choices = []
    for choice in vectors:
        entry = _map_of(message.vector_model, choice, manifest)
        if entry is not None and message.map_vectors:
            choice = replace(choice, map=QueryMap(entry, maps[entry.key]))  # noqa: PLW2901
        else:
            _check_own(message, choice, entry)
        choices.append(choice)
    return replace(vectors, choices=tuple(choices))


def _map_of(declared: str, choice: VectorChoice, manifest: Manifest) -> VectorMap | None:
    """Return the map from a model that a caller names to the vectors of a choice; None: they are of it, or none is."""
    info = choice.manifest.vectors[""]
    if not declared or is_declared(declared, models_of(choice.manifest.spec, info, of_queries=True)):
        return None
    return next(
        (
            entry
            for entry in manifest.vector_maps
            if entry.is_onto(choice.name, info) and is_declared(declared, entry.source.models)
        ),
        None,
    )


def _check_own(message: pb.SearchOptions, choice: VectorChoice, entry: VectorMap | None) -> None:
    try:
        check_vector_model(message.vector_model, choice.manifest, choice.name, of_queries=True)
    except InvalidRequestError as error:
        if entry is not None:
            way = (
                "`map_vectors` maps the vector to these, at a loss: of the ten nearest of a vector it keeps "
                f"{entry.overlap:.0%}"
            )
        else:
            way = "no map leads from that model to them: one is measured while an index is migrated between the two"
        raise InvalidRequestError(f"{error.message}; {way}", field="vector_model") from error


def check_vector_model(declared: str, manifest: Manifest, name: str, *, of_queries: bool = False) -> None:
    """Check that vectors are of the model that an index has vectors of, as far as both are known.

    Args:
        declared: model that the caller names; empty: it is not known.
        manifest: of the index of these vectors alone.
        name: of the vectors; empty: the unnamed ones.
        of_queries: as of `declared_problem`.

    Raises:
        InvalidRequestError: the vectors of the index are of another model; the message names both.

    """
    if not declared:
        return
    if len(declared) > MAX_MODEL_NAME:
        raise InvalidRequestError.at(
            "vector_model", f"must have at most {MAX_MODEL_NAME} characters, got {len(declared)}"
        )
    problem = declared_problem(declared, manifest.spec, manifest.vectors[""], of_queries=of_queries)
    if problem is not None:
        which = f"the vectors {name!r}" if name else "the vectors"
        raise InvalidRequestError.at(
            "vector_model", f"is {declared!r}, but {which} of index {manifest.index!r} are of {problem}"
        )
