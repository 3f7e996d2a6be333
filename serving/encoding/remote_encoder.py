"""The client of an encoder process.

Each request makes a call of its own with its own deadline, which is cancelled when its caller hangs up; the encoder
process batches the texts of all workers. The fingerprint is compared at the first call and after each failure, and is
sent with each request, so that a replaced encoder is refused at once.

Shapes: N texts, D dimensions.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import numpy as np
from google.protobuf.message import Message

from scannery.indexer import Manifest
from scannery.runtime.errors import (
    DeadlineError,
    EncoderUnavailableError,
    EncoderUnreachableError,
    InvalidRequestError,
    ServingError,
)
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.config import RemoteConfig
from scannery.serving.contract import EMBED, LIST_ENCODERS
from scannery.serving.scheduling.permits import CallerGoneError, current_permit
from scannery.serving.status import error_from_status, received_detail
from scannery.serving.telemetry.tracing import call_headers
from scannery.v1 import embedding_pb2 as pb

if TYPE_CHECKING:
    from scannery.embed import Chunker

__all__ = ["EncoderProcess", "RemoteEncoder"]

TIMEOUT_S = 30.0
"""Timeout where no request sets a deadline: at the start of a server, and in tools."""
SLICE_TEXTS, SLICE_BYTES = 256, 4 << 20
"""Limits of one call; the deadline is checked between calls."""
RETRY_AFTER_S = 0.2
"""Retry delay for callers when the encoder process is unreachable: a restart takes seconds."""

# As in the SDK, which serving must not import.
_OPTIONS = [
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.use_local_subchannel_pool", 1),
    # A restart takes seconds; the default backoff is up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.enable_retries", 0),
]

ResponseT = TypeVar("ResponseT", bound=Message)


class EncoderProcess:
    """The connection to an encoder process. Safe to use from several threads."""

    def __init__(self, config: RemoteConfig) -> None:
        """Prepare; the first call connects. `config` has address and credentials."""
        self.address = config.address
        self._config = config
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._calls: dict[str, Any] = {}
        self._metadata: tuple[tuple[str, str], ...] | None = None
        # So that servers that share an encoder process get fair shares of it.
        self._identity = (("scannery-client", secrets.token_hex(8)),)

    def call(self, path: str, request: Message, kind: type[ResponseT]) -> ResponseT:
        """Call a method within the deadline of the current request, and return its response.

        Raises:
            EncoderUnreachableError: there is no response, or the credentials are refused.
            EncoderUnavailableError: the process has no such encoder.
            InvalidRequestError, OverloadedError, DeadlineError: as the process answers.
            CallerGoneError: the caller of the current request hung up.

        """
        try:
            return self._call_once(path, request, kind)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED or not self._config.key_file:
                raise self._error_of(error) from error
        # The key may have been rotated: read the file again.
        self._metadata = None
        try:
            return self._call_once(path, request, kind)
        except grpc.RpcError as error:
            raise self._error_of(error) from error

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            channel, self._channel = self._channel, None
            self._calls.clear()
        if channel is not None:
            channel.close()

    def _call_once(self, path: str, request: Message, kind: type[ResponseT]) -> ResponseT:
        permit = current_permit()
        deadline = Deadline.after(TIMEOUT_S) if permit is None else permit.deadline
        deadline.check()
        rpc = self._calls.get(path) or self._stub(path, kind)
        metadata = self._identity + self._credentials() + call_headers()
        call = rpc.future(request, timeout=deadline.remaining_s, metadata=metadata)
        if permit is not None and permit.on_end is not None and not permit.on_end(call.cancel):
            call.cancel()
        try:
            response: ResponseT = call.result()
        except grpc.FutureCancelledError as error:
            raise CallerGoneError from error
        return response

    def _stub(self, path: str, kind: type[Message]) -> Any:
        with self._lock:
            if self._channel is None:
                self._channel = self._connect()
            rpc: Any = self._channel.unary_unary(
                path, request_serializer=_serialized, response_deserializer=kind.FromString
            )
            self._calls[path] = rpc
            return rpc

    def _connect(self) -> grpc.Channel:
        if not self._config.tls:
            return grpc.insecure_channel(self.address, options=_OPTIONS)
        roots = Path(self._config.ca).read_bytes() if self._config.ca else None
        return grpc.secure_channel(
            self.address, grpc.ssl_channel_credentials(root_certificates=roots), options=_OPTIONS
        )

    def _credentials(self) -> tuple[tuple[str, str], ...]:
        if self._metadata is None:
            path = self._config.key_file
            self._metadata = (("authorization", f"Bearer {Path(path).read_text().strip()}"),) if path else ()
        return self._metadata

    def _error_of(self, failed: Any) -> ServingError:
        """Return the error for a failed call; `failed` is both RpcError and Call, which the stubs do not express."""
        code: grpc.StatusCode = failed.code()
        detail = received_detail(failed.trailing_metadata())
        message = detail.message or failed.details() or code.name.lower()
        at = f"encoder {self.address}"
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineError("the deadline passed before the text was encoded")
        overloaded = code is grpc.StatusCode.RESOURCE_EXHAUSTED and detail.retry_after_ms
        if overloaded or code is grpc.StatusCode.INVALID_ARGUMENT:
            translated = error_from_status(code, f"{at}: {message}" if overloaded else message, detail)
            assert translated is not None
            return translated
        if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.NOT_FOUND):
            return EncoderUnavailableError(f"{at}: {message}", field="query")
        return EncoderUnreachableError(
            f"texts cannot be encoded: {at}: {code.name}: {message}",
            field="query",
            retry_after_s=RETRY_AFTER_S,
        )


class RemoteEncoder:
    """The encoder of one index, in an encoder process. Safe to use from several threads."""

    def __init__(self, process: EncoderProcess, manifest: Manifest) -> None:
        """Prepare; nothing is sent yet.

        Args:
            process: the encoder process.
            manifest: of the index; names the encoder.

        """
        assert manifest.spec.encoder is not None
        self._process = process
        self._index = manifest.index
        self._model = manifest.spec.encoder.model
        self._expected = manifest.encoder
        self._dimensions = manifest.dimensions
        self._fingerprint = ""
        """Fingerprint of the matching encoder; empty: not known yet."""

    @property
    def dimensions(self) -> int:
        """Components of a vector."""
        return self._dimensions

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of queries, float32 (N, D).

        Raises:
            InvalidTextError: a text cannot be encoded.
            EncoderUnavailableError: the process has another encoder.
            ServingError: as `EncoderProcess.call`.

        """
        return self._encoded(texts, pb.TEXT_KIND_QUERY)

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of documents, float32 (N, D); raises as `encode_queries`."""
        return self._encoded(texts, pb.TEXT_KIND_DOCUMENT)

    def chunker(self, max_tokens: int, overlap_tokens: int, *, headings: bool = False) -> Chunker:
        """Return a chunker with the tokenizer of the encoder; raises as `EncoderProcess.call`."""
        # Needs the tokenizer only, not torch.
        from scannery.embed.text.chunking import chunker_for

        match = self._matching(with_tokenizer=True)
        tokenizer = match.tokenizer_json if match.HasField("tokenizer_json") else None
        fingerprint = json.loads(match.fingerprint_json) if match.fingerprint_json else {}
        prompt = fingerprint.get("document_prompt") or ""
        return chunker_for(
            self._model,
            tokenizer,
            match.passage_tokens,
            max_tokens,
            overlap_tokens,
            prompt=prompt,
            headings=headings,
        )

    def _encoded(self, texts: Sequence[str], kind: pb.TextKind.ValueType) -> np.ndarray:
        vectors_ND = np.empty((len(texts), self._dimensions), np.float32)
        for start, end in _slices(texts):
            vectors_ND[start:end] = self._encode_part(texts[start:end], kind, start)
        return vectors_ND

    def _encode_part(self, texts: Sequence[str], kind: pb.TextKind.ValueType, first: int) -> np.ndarray:
        fingerprint = self._fingerprint or self._matching().fingerprint
        request = pb.EmbedRequest(fingerprint=fingerprint, kind=kind, texts=texts)
        try:
            answer = self._process.call(EMBED, request, pb.EmbedResponse)
        except InvalidRequestError as error:
            raise _text_error(error, first) from error
        except (EncoderUnavailableError, EncoderUnreachableError) as error:
            # The process may have been restarted with another encoder.
            self._fingerprint = ""
            if isinstance(error, EncoderUnavailableError):
                self._matching()
            raise
        vectors_N = np.frombuffer(answer.vectors.packed, "<f4")
        if len(vectors_N) != len(texts) * self._dimensions or answer.fingerprint != fingerprint:
            raise EncoderUnreachableError(
                f"texts cannot be encoded: encoder {self._process.address} returned vectors of another encoder",
                field="query",
            )
        return vectors_N.reshape(len(texts), self._dimensions)

    def _matching(self, *, with_tokenizer: bool = False) -> pb.LoadedEncoder:
        """Return the description of the encoder that made the vectors of the index.

        Raises:
            EncoderUnavailableError: the process has another one; the message names both.

        """
        digest = self._expected.get("digest", "") if self._expected else ""
        request = pb.ListEncodersRequest(
            with_tokenizers=with_tokenizer, fingerprint=digest if with_tokenizer else ""
        )
        encoders = self._process.call(LIST_ENCODERS, request, pb.ListEncodersResponse).encoders
        for encoder in encoders:
            fits = encoder.fingerprint == digest if digest else encoder.model == self._model
            if fits and encoder.dimensions == self._dimensions:
                self._fingerprint = encoder.fingerprint
                return encoder
        raise EncoderUnavailableError(self._mismatch(encoders), field="query")

    def _mismatch(self, encoders: Sequence[pb.LoadedEncoder]) -> str:
        from scannery.embed import EmbedError, Fingerprint, require_match

        start = f"texts for index {self._index!r} cannot be encoded: encoder {self._process.address}"
        fingerprints = [
            json.loads(encoder.fingerprint_json) for encoder in encoders if encoder.fingerprint_json
        ]
        try:
            if self._expected and len(fingerprints) == 1:
                require_match(Fingerprint.from_dict(self._expected), Fingerprint.from_dict(fingerprints[0]))
            expected = str(Fingerprint.from_dict(self._expected)) if self._expected else self._model
            there = ", ".join(str(Fingerprint.from_dict(each)) for each in fingerprints) or "none"
        except EmbedError as error:
            return f"{start}: {error}"
        return f"{start}: the index was embedded with {expected}; there is {there}"


def _slices(texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Return start and end of the texts of each call."""
    assert SLICE_TEXTS <= limits.MAX_EMBED_TEXTS
    start, size = 0, 0
    for end, text in enumerate(texts):
        # At most four bytes a character; an exact count would encode each text twice.
        if end > start and (end - start >= SLICE_TEXTS or size + 4 * len(text) > SLICE_BYTES):
            yield start, end
            start, size = end, 0
        size += 4 * len(text)
    if texts:
        yield start, len(texts)


def _text_error(error: InvalidRequestError, first: int) -> Exception:
    from scannery.embed import InvalidTextError

    match = re.match(r"texts\[(\d+)\]", error.field or "")
    return InvalidTextError(error.message, index=first + int(match[1]) if match else first)


def _serialized(request: Message) -> bytes:
    try:
        return request.SerializeToString()
    except ValueError as error:  # a text that is not Unicode
        raise InvalidRequestError(str(error)) from error
