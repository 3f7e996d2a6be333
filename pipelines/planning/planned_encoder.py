"""The encoder of a build in the launching process: known by its fingerprint, and loaded on first use."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

from scannery.indexer.spec.spec import EncoderSpec

if TYPE_CHECKING:
    from scannery.embed import Encoder, Fingerprint

__all__ = ["PlannedEncoder", "load_encoder"]


def load_encoder(spec: EncoderSpec) -> Encoder:
    """Return the encoder that the spec names, loaded."""
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

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The encoder's fingerprint, from the files of the model where these suffice, else from the loaded encoder."""
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
        """Number of components of a vector."""
        return self.fingerprint.dimensions
