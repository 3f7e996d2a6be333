"""The encoder of a build in the launching process: known by its fingerprint, and loaded on first use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from scannery.indexer.manifest import NamedVectorsInfo
from scannery.indexer.spec.spec import EncoderSpec, IndexSpec
from scannery.indexer.versions.creation import given_vectors

if TYPE_CHECKING:
    from scannery.embed import Encoder, Fingerprint

__all__ = [
    "PlannedEncoder",
    "load_encoder",
    "named_vectors_info",
    "planned_encoders",
    "recipe_of",
]


def recipe_of(spec: EncoderSpec) -> str:
    """Return what an encoder is loaded by: with equal recipes, several vectors share one loaded model."""
    return spec.model_dump_json()


def load_encoder(spec: EncoderSpec, widths: Sequence[int] = ()) -> Encoder:
    """Return the encoder that the spec names, loaded.

    Args:
        spec: model, options and device.
        widths: planned widths in tokens, for XLA; empty: none.

    """
    from scannery.embed import Encoder

    return Encoder.load(
        spec.model,
        device=spec.device,
        dtype=spec.dtype,
        dimensions=spec.dimensions,
        query_prompt=spec.query_prompt,
        document_prompt=spec.document_prompt,
        max_tokens=spec.max_tokens,
        widths=widths or None,
    )


class PlannedEncoder:
    """An encoder that is loaded on first use, since loading takes seconds and most builds embed little.

    Args:
        spec: model and options.

    """

    def __init__(self, spec: EncoderSpec) -> None:
        self.spec = spec
        self.loaded: Encoder | None = None
        """The encoder, if it has been loaded."""

    def load(self) -> Encoder:
        """Return the encoder, loaded once. Raises EmbedError if it cannot be loaded."""
        if self.loaded is None:
            self.loaded = load_encoder(self.spec)
        return self.loaded

    def load_on_cpu(self) -> Encoder:
        """Return the encoder on a CPU, for its tokenizer; not kept. Raises EmbedError if it cannot be loaded."""
        return load_encoder(self.spec.model_copy(update={"device": "cpu", "dtype": "float32"}))

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The encoder's fingerprint, from the files of the model where these suffice, else from the loaded encoder."""
        from scannery.embed import Encoder

        spec = self.spec
        fingerprint = Encoder.known_fingerprint(
            spec.model,
            dimensions=spec.dimensions,
            query_prompt=spec.query_prompt,
            document_prompt=spec.document_prompt,
            max_tokens=spec.max_tokens,
        )
        if fingerprint is not None:
            return fingerprint
        # The launcher of a build on TPUs may have none.
        return (self.load_on_cpu() if spec.device == "xla" else self.load()).fingerprint

    @property
    def dimensions(self) -> int:
        """Number of components of a vector."""
        return self.fingerprint.dimensions


def planned_encoders(spec: IndexSpec) -> dict[str, PlannedEncoder]:
    """Return the encoders of a spec by their recipes."""
    return {recipe_of(encoder): PlannedEncoder(encoder) for encoder in spec.encoders.values()}


def named_vectors_info(
    spec: IndexSpec, encoders: Mapping[str, PlannedEncoder], existing: Mapping[str, NamedVectorsInfo]
) -> dict[str, NamedVectorsInfo]:
    """Return dimensions and encoder of each named vector of a spec.

    Args:
        spec: of the index.
        encoders: from `planned_encoders`.
        existing: of the version before; its record of an encoder stays if the digests are equal, whatever the name.

    """
    encoders_by_name = spec.named_encoders
    return {
        name: _info_of(encoders[recipe_of(encoders_by_name[name])], existing.get(name))
        if name in encoders_by_name
        else given_vectors(spec, name)
        for name in spec.named_vectors
    }


def _info_of(encoder: PlannedEncoder, existing: NamedVectorsInfo | None) -> NamedVectorsInfo:
    fingerprint = encoder.fingerprint
    if existing is not None and existing.encoder and existing.encoder.get("digest") == fingerprint.digest:
        return existing
    return NamedVectorsInfo(dimensions=encoder.dimensions, encoder=fingerprint.to_dict())
