"""Vectors in the spec: encoder and distance, and further vectors by name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import Field, model_validator

from scannery.indexer.spec.model import FieldSpecModel, Since, SpecModel, mapping_like
from scannery.indexer.spec.model_reference import ModelName

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "MAX_NAMED_VECTORS",
    "VECTOR_NAME",
    "Distance",
    "EncoderSpec",
    "NamedVectorSpec",
    "NamedVectorSpecs",
    "check_named_vectors",
    "text_field",
]


Distance = Literal["cosine", "dot", "squared_l2"]


class EncoderSpec(SpecModel):
    """The model that turns text into vectors."""

    model: ModelName
    """A sentence-transformers model: a name, a local folder, or `store:NAME@N` from the store of the index. Never runs
    remote code."""

    query_model: Annotated[ModelName | None, Since(3)] = None
    """A model for queries alone, with as many dimensions, trained to find the vectors of `model`, which encodes
    everything else. No stored vector depends on it, so it can be changed at any time. Default: the one that
    was promoted, else `model`."""

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
    """Longest input in tokens, the rest is cut off; default: the model's own limit, as of `query_model` if that is
    lower."""

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `scannery.embed.Encoder.load`, besides the model, that its vectors depend on."""
        return self.model_dump(include={"dimensions", "query_prompt", "document_prompt", "max_tokens"})

    @property
    def documents(self) -> EncoderSpec:
        """The encoder of documents, which alone determines what is stored; this one without a model for queries."""
        return self if self.query_model is None else self.model_copy(update={"query_model": None})

    @property
    def queries(self) -> EncoderSpec:
        """The encoder of queries; `documents` without a model for queries."""
        if self.query_model is None:
            return self
        return _QuerySideSpec(
            **{**self.model_dump(exclude={"document_prompt"}), "model": self.query_model, "query_model": None}
        )

    @property
    def sides(self) -> tuple[EncoderSpec, ...]:
        """The encoder of documents, and that of queries if it is another one."""
        return (self,) if self.query_model is None else (self.documents, self.queries)


class _QuerySideSpec(EncoderSpec):
    """A model for queries alone: `max_tokens` is for documents, so a lower limit of the model is no error."""

    @property
    def options(self) -> dict[str, Any]:
        options = super().options
        return {**options, "max_tokens": None, "cap_tokens": options["max_tokens"]}


VECTOR_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,62}")
MAX_NAMED_VECTORS = 16


class NamedVectorSpec(FieldSpecModel):
    """A further dense vector that datapoints may have, searched by its name. It needs `encoder` or `dimensions`."""

    encoder: Annotated[EncoderSpec | None, mapping_like(lambda text: f"{{model: {text}}}")] = None
    """The model that turns texts into these vectors, in builds, writes and queries."""

    path: Annotated[str | None, Field(alias="from", min_length=1, max_length=256)] = None
    """Which text the encoder gets: `title`, `text`, or a declared attribute of type string. Default: the one with the
    name of the vector, else `text`. With `source.chunk`, a title or an attribute is encoded for the first passage."""

    vector: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    """Field of the source with these vectors. Datapoints that have one are not encoded."""

    dimensions: Annotated[int | None, Field(ge=1, le=16384)] = None
    """Components of a vector. Required without an encoder, whose dimensions are taken otherwise."""

    distance: Distance = "cosine"
    """How these vectors are compared."""

    @model_validator(mode="after")
    def _keys_fit(self) -> NamedVectorSpec:
        if self.encoder is None and self.dimensions is None:
            raise ValueError("needs `encoder` or `dimensions`")
        if self.encoder is not None and self.dimensions is not None:
            raise ValueError(
                "`dimensions` is for vectors without `encoder`; an encoder has `encoder.dimensions`"
            )
        if self.encoder is None and self.path is not None:
            raise ValueError("`from` needs `encoder`; a field of the source with vectors is `vector`")
        return self


def _meant(value: object) -> str:
    """Return the mapping that was probably meant by a value that is none."""
    if isinstance(value, str):
        return f"{{encoder: {{model: {value}}}}}"
    return f"{{dimensions: {value if isinstance(value, int) and not isinstance(value, bool) else 512}}}"


NamedVectorSpecs: TypeAlias = Annotated[
    dict[str, Annotated[NamedVectorSpec, mapping_like(_meant, optional=False)]],
    mapping_like(lambda _: "{title: {encoder: {model: all-MiniLM-L6-v2}}}", optional=False),
]
"""`named_vectors`, by name."""


def check_named_vectors(
    named: Mapping[str, NamedVectorSpec], attributes: Mapping[str, str], text: str | list[str] | None
) -> None:
    """Raise ValueError for a name that a vector cannot have, and for a text that datapoints do not have.

    Args:
        named: by name.
        attributes: declared attributes with their types.
        text: `source.text`.

    """
    if len(named) > MAX_NAMED_VECTORS:
        raise ValueError(f"`named_vectors` must have at most {MAX_NAMED_VECTORS} names, got {len(named)}")
    for name, spec in named.items():
        if not VECTOR_NAME.fullmatch(name):
            raise ValueError(f"`named_vectors`: a name must match {VECTOR_NAME.pattern}, got {name!r}")
        _check_text(name, spec, attributes, text)


def _check_text(name: str, spec: NamedVectorSpec, attributes: Mapping[str, str], text: object) -> None:
    if spec.encoder is None:
        return
    path = text_field(name, spec, attributes)
    if path == "text" and text is None:
        raise ValueError(f"`named_vectors.{name}` encodes `text`, for which `source.text` is needed")
    if path not in ("title", "text") and attributes.get(path) != "string":
        raise ValueError(
            f"`named_vectors.{name}.from` must be title, text or a declared attribute of type string, got {path!r}"
        )


def text_field(name: str, spec: NamedVectorSpec, attributes: Mapping[str, str]) -> str:
    """Return which field of a datapoint the encoder of a named vector gets: `title`, `text` or an attribute."""
    if spec.path is not None:
        return spec.path
    return name if name == "title" or attributes.get(name) == "string" else "text"
