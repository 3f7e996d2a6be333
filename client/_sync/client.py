# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""The client: its methods name the calls that `scannery.client.request.calls` defines."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, TypeVar

import numpy as np
from google.protobuf.message import Message
from typing_extensions import Self

from scannery.client._sync.index import Index
from scannery.client.request import calls
from scannery.client.request.calls import Call, TextKind
from scannery.client.response.results import Deleted, Distance, EncoderInfo, Indexes, Written
from scannery.client.transport.base import Transport

__all__ = ["Client"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ResultT = TypeVar("ResultT")
DoneT = TypeVar("DoneT", Written, Deleted)


class Client:
    """A connection to a server, or to a store in this process. Made by `connect`.

    The synchronous one is safe to use from several threads, the asynchronous one belongs to the event loop of its first
    call. A context manager: leaving it closes the client.

    Args:
        transport: carries the calls.
        timeout_s: of a call that does not say another.

    """

    def __init__(self, transport: Transport, *, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._sequences: dict[str, int] = {}

    def index(self, name: str) -> Index:
        """Return a handle on an index. Nothing is asked yet: an index that is not there shows at the first call."""
        return Index(self, name)

    def indexes(self) -> Indexes:
        """Return the indexes there are, by name, without their segments and specs."""
        found, token = self._run(calls.list_indexes(""))
        while token:
            page, token = self._run(calls.list_indexes(token))
            found += page
        return Indexes(found)

    def create_index(
        self,
        spec: str | Mapping[str, Any],
        *,
        dimensions: int | None = None,
        encoder: str | Mapping[str, Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
        lexical: bool | Mapping[str, Any] | None = None,
        distance: Distance | None = None,
        vectors: Literal["required", "optional"] | None = None,
        timeout_s: float | None = None,
    ) -> Index:
        """Create an empty index, which takes writes at once, and return a handle on it.

        A server takes the encoders of its indexes and those that its operator names (`scannery serve --model`), and
        needs the scope `admin`.

        Args:
            spec: the name of the index; or a mapping with the keys of SPEC.yaml, which the other arguments complete.
            dimensions: components of a vector; required without an encoder, unless the index has no vectors.
            encoder: the model that turns texts into vectors: its name, or a mapping as in SPEC.yaml.
            attributes: name → type, as in SPEC.yaml.
            lexical: also index the words of title and text.
            distance: how vectors are compared; default: `cosine`.
            vectors: `optional`: datapoints need no vector; with neither encoder nor dimensions, none can have one.
                Default: `required`.
            timeout_s: of the call; it may load the encoder.

        Raises:
            AlreadyExistsError: there is an index of this name.
            InvalidArgumentError: the spec is wrong; `field` names the key.
            FailedPreconditionError: the server may not load the model.

        """
        info = self._run(
            calls.create_index(
                spec,
                dimensions=dimensions,
                encoder=encoder,
                attributes=attributes,
                lexical=lexical,
                distance=distance,
                vectors=vectors,
                request_id=uuid.uuid4().hex,
                timeout_s=timeout_s,
            )
        )
        return Index(self, info.name)

    def encoders(self) -> list[EncoderInfo]:
        """Return the encoders that the server has: of its indexes, or its own, if it is an encoder process."""
        return self._run(calls.list_encoders())

    def embed(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "query",
        model: str = "",
        timeout_s: float | None = None,
    ) -> np.ndarray:
        """Return the vectors of texts, float32 (texts, dimensions), in their order; at most 1,000 texts.

        Args:
            texts: what to encode.
            kind: `query` or `document`; models may encode the two differently.
            model: which encoder, by its name; not needed where there is only one (`encoders` lists them).
            timeout_s: of the call.

        """
        return self._run(calls.embed(texts, kind, model=model, timeout_s=timeout_s))

    def close(self) -> None:
        """Release connections and memory; later calls fail."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _written(self, index: str, call: Call[RequestT, ResponseT, DoneT]) -> DoneT:
        done = self._run(call)
        # Later calls see it, whichever worker answers them.
        self._sequences[index] = max(self._sequences.get(index, 0), done.sequence)
        return done

    def _run(self, call: Call[RequestT, ResponseT, ResultT]) -> ResultT:
        timeout_s = call.timeout_or(self._timeout_s)
        return call.parse(self._transport.call(call.method, call.request, timeout_s))
