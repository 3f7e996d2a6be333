"""Which vectors a search reads: the unnamed vector, a named one, or several, each with a weight."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

from scannery.indexer import Manifest
from scannery.runtime.errors import InvalidRequestError, VectorsUnavailableError
from scannery.serving import limits
from scannery.v1 import search_pb2 as pb

__all__ = ["NO_CHOICE", "ChosenVectors", "VectorChoice", "check_has_vectors", "parse_vectors"]


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorChoice:
    """One of the vectors of a search."""

    name: str
    """Empty: the unnamed vector."""
    weight: float
    """Above 0; the weights of a search add up to 1."""
    manifest: Manifest = field(repr=False, compare=False)
    """Of an index that has these vectors alone: their dimensions, distance and encoder."""
    of_text: bool
    """Whether the encoder gets the text of a datapoint, and not its title or an attribute."""

    @property
    def has_encoder(self) -> bool:
        """Whether texts can be turned into these vectors."""
        return self.manifest.spec.encoder is not None


@dataclass(frozen=True)
class ChosenVectors:
    """The vectors of a search, in the order of the request; none: the index has no vectors."""

    choices: tuple[VectorChoice, ...]
    given: bool
    """Whether the request names them: each must then fit every query. Else those that fit a query are searched."""

    def __len__(self) -> int:
        return len(self.choices)

    def __iter__(self) -> Iterator[VectorChoice]:
        return iter(self.choices)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names for `Hit.vector_scores`; empty where the unnamed vector alone is searched."""
        names = tuple(choice.name for choice in self.choices)
        return () if names == ("",) else names

    @property
    def has_encoder(self) -> bool:
        """Whether some of them can be made from texts."""
        return any(choice.has_encoder for choice in self.choices)

    @property
    def of_sentences(self) -> VectorChoice | None:
        """The vectors whose encoder compares sentences with a text query: if possible those of texts; None: none."""
        encoded = [choice for choice in self.choices if choice.has_encoder]
        return max(encoded, key=lambda choice: choice.of_text, default=None)


NO_CHOICE = ChosenVectors((), given=False)


def parse_vectors(given: Sequence[pb.VectorChoice], manifest: Manifest) -> ChosenVectors:
    """Return the vectors that a request names; else the unnamed one, or all named ones of an index without it.

    Raises:
        InvalidRequestError: an unknown name, a name twice, a weight that is not above 0, or too many choices.

    """
    if not given:
        return _default(manifest)
    if len(given) > limits.MAX_VECTOR_CHOICES:
        raise InvalidRequestError.at(
            "vectors", f"must have at most {limits.MAX_VECTOR_CHOICES} items, got {len(given)}"
        )
    names = [choice.name for choice in given]
    weights = [_weight(choice, f"vectors[{i}].weight") for i, choice in enumerate(given)]
    for i, name in enumerate(names):
        if name in names[:i]:
            raise InvalidRequestError.at(f"vectors[{i}].name", f"{name!r} is given twice")
        _check_known(name, manifest, f"vectors[{i}].name")
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    return ChosenVectors(tuple(map(partial(_choice, manifest), names, shares)), given=True)


def check_has_vectors(manifest: Manifest, field: str) -> None:
    """Raise VectorsUnavailableError, for a field of the request, if the index has no vectors."""
    if not manifest.dimensions and not manifest.named_vectors:
        raise VectorsUnavailableError(
            f"{field}: index {manifest.index!r} has no vectors, which dense and hybrid search need; search by words or "
            "by a sparse vector",
            field=field,
        )


def _default(manifest: Manifest) -> ChosenVectors:
    names = [""] if manifest.dimensions else list(manifest.named_vectors)
    return ChosenVectors(tuple(_choice(manifest, name, 1 / len(names)) for name in names), given=False)


def _choice(manifest: Manifest, name: str, weight: float) -> VectorChoice:
    return VectorChoice(
        name=name,
        weight=weight,
        manifest=manifest.of_vectors(name) if name else manifest,
        of_text=not name or manifest.spec.text_field(name) == "text",
    )


def _weight(choice: pb.VectorChoice, path: str) -> float:
    weight = choice.weight if choice.HasField("weight") else 1.0
    if not (math.isfinite(weight) and weight > 0):
        raise InvalidRequestError.at(path, f"must be above 0 and finite, got {weight:g}")
    return weight


def _check_known(name: str, manifest: Manifest, path: str) -> None:
    if name in manifest.named_vectors or (not name and manifest.dimensions):
        return
    names = ", ".join(manifest.named_vectors) or "none"
    if name:
        problem = f"index {manifest.index!r} has no vectors {name!r:.80}; its named vectors are: {names}"
    else:
        problem = f"index {manifest.index!r} has no unnamed vector; its named vectors are: {names}"
    raise InvalidRequestError.at(path, problem)
