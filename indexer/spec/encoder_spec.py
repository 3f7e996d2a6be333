"""How vectors are made and compared: the encoder in the spec, and the distance."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from scannery.indexer.spec.model import SpecModel

__all__ = ["Distance", "EncoderSpec"]

Distance = Literal["cosine", "dot", "squared_l2"]


class EncoderSpec(SpecModel):
    """The model that turns text into vectors."""

    model: Annotated[str, Field(min_length=1, max_length=1024)]
    """A sentence-transformers model: a name, or a local folder. Never runs remote code."""

    device: Literal["auto", "cpu", "cuda", "xla"] = "auto"
    """Device of builds; servers choose their own."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Precision of the weights; `auto` takes bfloat16 if the device is fast at it and the vectors stay the same."""

    dimensions: Annotated[int, Field(ge=1, le=16384)] | None = None
    """Number of leading dimensions to keep (Matryoshka models); default: all."""

    query_prompt: str | None = None
    """Text in front of every query; default: the model's query prompt."""

    document_prompt: str | None = None
    """Text in front of every passage; default: the model's document prompt."""

    max_tokens: Annotated[int, Field(ge=8, le=131072)] | None = None
    """Longest input in tokens, the rest is cut off; default: the model's own limit."""
