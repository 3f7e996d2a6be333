"""The encoder of a build in the launching process: known by its fingerprint, and loaded on first use."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from scannery.indexer.spec.spec import EncoderSpec

if TYPE_CHECKING:
    from scannery.embed import Encoder, Fingerprint

__all__ = ["PlannedEncoder", "load_encoder"]


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
        known = Encoder.known_fingerprint(
            spec.model,
            dimensions=spec.dimensions,
            query_prompt=spec.query_prompt,
            document_prompt=spec.document_prompt,
            max_tokens=spec.max_tokens,
        )
        if known is not None:
            return known
        # The launcher of a build on TPUs may have none.
        return (self.load_on_cpu() if spec.device == "xla" else self.load()).fingerprint

    @property
    def dimensions(self) -> int:
        """Number of components of a vector."""
        return self.fingerprint.dimensions
