"""The encoder of a build, as its launcher knows it: by its fingerprint, and loaded only if something is encoded."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from scannery.indexer.spec.spec import EncoderSpec

if TYPE_CHECKING:
    from scannery.embed import Encoder, Fingerprint

__all__ = ["PlannedEncoder", "load_encoder"]


def load_encoder(spec: EncoderSpec) -> Encoder:
    """Return the encoder that the spec asks for."""
    from scannery.embed import Encoder

    return Encoder.load(
        spec.model,
        device=spec.device,
        dtype=spec.dtype,
        dimensions=spec.dimensions,
        query_prompt=spec.query_prompt,
        document_prompt=spec.document_prompt,
        max_tokens=spec.max_tokens,
    )


class PlannedEncoder:
    """An encoder that is loaded when it is first needed; loading takes seconds, and most builds embed little."""

    def __init__(self, spec: EncoderSpec) -> None:
        self.spec = spec
        self.loaded: Encoder | None = None
        """The encoder, if it has been loaded."""

    def load(self) -> Encoder:
        """Return the encoder, loaded once. EmbedError if it cannot be."""
        if self.loaded is None:
            self.loaded = load_encoder(self.spec)
        return self.loaded

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """What it is, from the files of the model if that is enough."""
        from scannery.embed import Encoder

        spec = self.spec
        known = Encoder.known_fingerprint(
            spec.model,
            dimensions=spec.dimensions,
            query_prompt=spec.query_prompt,
            document_prompt=spec.document_prompt,
            max_tokens=spec.max_tokens,
        )
        return known or self.load().fingerprint

    @property
    def dimensions(self) -> int:
        """Components of a vector."""
        return self.fingerprint.dimensions
