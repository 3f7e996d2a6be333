"""Encodes texts of concurrent callers in batches, with one encoder, and caches recent queries.

Shapes: Q queries, D dimensions.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scannery.embed.sided_encoder import TextEncoder
from scannery.indexer import ChunkSpec
from scannery.runtime.bounded_cache import BoundedCache
from scannery.runtime.errors import EncoderUnavailableError, InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving.config import CACHED_QUERIES
from scannery.serving.encoding.reranker import SentenceVectors
from scannery.serving.scheduling.affinity import on_all_cores
from scannery.serving.scheduling.coalescer import Coalescer
from scannery.serving.scheduling.permits import waiting
from scannery.serving.security.principal import CURRENT
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.telemetry.tracing import span

if TYPE_CHECKING:
    from scannery.embed import Chunker

__all__ = ["CACHED_BYTES", "Observer", "QueryEncoder", "TextBatcher"]


EncodeBatch = Callable[[Sequence[str]], np.ndarray]


class TextBatcher:
    """Encodes a few batches at a time. Safe to use from several threads."""

    def __init__(
        self, encode: EncodeBatch, *, max_texts: int, observe: Callable[[float], None], at_once: int = 1
    ) -> None:
        """Prepare.

        Args:
            encode: returns the vectors of texts.
            max_texts: limit of texts in a batch of several callers.
            observe: called with the number of texts of each batch.
            at_once: batches.

        """
        self._encode, self._observe = encode, observe
        self._coalescer: Coalescer[Sequence[str], list[np.ndarray]] = Coalescer(
            concurrency=at_once, max_weight=max_texts
        )

    def encode(self, texts: Sequence[str], deadline: Deadline) -> list[np.ndarray]:
        """Return the vector of each text; raises as `Coalescer.run`."""
        return self._coalescer.run(self, texts, deadline, self._encode_batch, weight=len(texts))

    def _encode_batch(self, batch: Sequence[Sequence[str]], deadline: Deadline) -> list[list[np.ndarray]]:
        deadline.check()
        # Concurrent callers often send equal texts.
        texts = list(dict.fromkeys(text for each in batch for text in each))
        self._observe(len(texts))
        with on_all_cores():
            vectors = dict(zip(texts, self._encode(texts), strict=True))
        return [[vectors[text] for text in each] for each in batch]


CACHED_BYTES = 64 << 20
"""Limit of the cache, texts and vectors together: a text may have 32 KiB."""


class BatchLimits(NamedTuple):
    """Most texts in a batch of several callers; the deadline is checked between batches."""

    queries: int
    documents: int


CPU_LIMITS = BatchLimits(queries=64, documents=128)
"""Enough for the throughput of a CPU, few enough for short waits."""
ACCELERATOR_LIMITS = BatchLimits(queries=1024, documents=256)
"""What fills the 32,768 tokens of a GPU's batch with short questions, and with passages of 128 tokens."""

NOW_S = 0.005
"""A text that takes no longer may be encoded on the event loop for a lone caller: requests that come meanwhile wait."""
NOW_CHARS = 256
"""Longest such text."""

_SMALLEST = ChunkSpec(max_tokens=8, overlap_tokens=0)
"""Size of a chunker that only counts."""
_NO_DEADLINE = Deadline.after(None)

Encode = Callable[[Sequence[str], Deadline], Sequence[np.ndarray] | np.ndarray]


@dataclass
class Observer:
    """Callbacks for metrics of encoders; they do nothing before `report_to`."""

    batch: Callable[[float], object] = lambda texts: None
    """Called with the number of texts of each batch."""
    cached: Callable[[bool, int], object] = lambda is_hit, count: None
    """Called with the number of query texts found (True) or not found (False) in the cache."""

    def report_to(self, metrics: ServerMetrics) -> None:
        """Record in these metrics."""
        self.batch = metrics.batch_texts.observe
        self.cached = lambda is_hit, count: metrics.cached.inc(("hit" if is_hit else "miss",), count)


class QueryEncoder:
    """Encodes queries of concurrent callers in batches, and caches recent ones.

    Safe to use from several threads.
    """

    def __init__(
        self,
        encoder: TextEncoder,
        *,
        cached: int = CACHED_QUERIES,
        cached_bytes: int = CACHED_BYTES,
        observer: Observer | None = None,
        batched: bool = True,
    ) -> None:
        """Prepare.

        Args:
            encoder: encodes the texts.
            cached: limit of cached queries.
            cached_bytes: limit of the cache, texts and vectors together.
            observer: gets batch sizes and cache hits.
            batched: False if the encoder batches the texts of concurrent callers itself.

        """
        self._encoder = encoder
        on_cpu = getattr(encoder, "device", "cpu") == "cpu"  # one in another process batches there
        self._limits = CPU_LIMITS if on_cpu else ACCELERATOR_LIMITS
        self.most_queries = self._limits.queries
        """Texts of several callers that are encoded together."""
        self.at_once = 0
        """Batches of queries that are encoded at the same time; 0: texts are sent to an encoder that makes batches."""
        self._observer = observer or Observer()
        self._queries: Encode = lambda texts, deadline: encoder.encode_queries(texts)
        self._documents: Encode = lambda texts, deadline: encoder.encode_documents(texts)
        if batched:
            self.at_once = len(os.sched_getaffinity(0)) if on_cpu else 1
            self._queries, self._documents = (
                TextBatcher(encode, max_texts=max_texts, observe=self._encoding, at_once=count).encode
                for encode, max_texts, count in (
                    (encoder.encode_queries, self._limits.queries, self.at_once),
                    (encoder.encode_documents, self._limits.documents, 1),
                )
            )
        # By caller and text: response times must not reveal the queries of other callers.
        self._vectors: BoundedCache[tuple[str, str], np.ndarray] = BoundedCache(
            cached_bytes, max_entries=cached
        )
        self._chunkers: dict[tuple[int, int, bool], Chunker] = {}
        self.sentences = SentenceVectors(self.encode_documents)
        """Vectors of the sentences of hits."""

    @property
    def dimensions(self) -> int:
        """Components of a vector."""
        return self._encoder.dimensions

    @property
    def documents(self) -> TextEncoder:
        """The encoder, without batching and cache."""
        return self._encoder

    def chunker(self, chunk: ChunkSpec) -> Chunker:
        """Return the chunker of a spec, cached: creating one parses the whole vocabulary."""
        key = (chunk.max_tokens, chunk.overlap_tokens, bool(chunk.headings))
        if key not in self._chunkers:
            self._chunkers[key] = self._encoder.chunker(*key[:2], headings=key[2])
        return self._chunkers[key]

    def count_tokens(self, texts: Sequence[str]) -> int:
        """Return the tokens of texts, without special ones; 0 if the encoder has no tokenizer that can be asked."""
        from scannery.embed import InvalidArgumentError

        try:
            # Encoders of tests have no chunker.
            return self.chunker(_SMALLEST).count_tokens(texts) if hasattr(self._encoder, "chunker") else 0
        except InvalidArgumentError:  # its tokenizer gives no offsets
            return 0

    def encode(
        self, texts: Sequence[str], *, path: str = "query", deadline: Deadline = _NO_DEADLINE
    ) -> np.ndarray:
        """Return the vectors of query texts, float32 (Q, D), from the cache or encoded in a batch.

        Raises:
            InvalidRequestError: a text cannot be encoded; `path` names the field.
            EncoderUnavailableError: the device cannot run the model.
            DeadlineError: the deadline passed before the texts were encoded.

        """
        pairs = [(_caller(), text) for text in texts]
        return np.stack(self.encode_each(pairs, path=path, deadline=deadline))

    def encode_each(
        self, pairs: Sequence[tuple[str, str]], *, path: str = "query", deadline: Deadline = _NO_DEADLINE
    ) -> list[np.ndarray]:
        """Return the vector, float32 (D,), of each pair of a caller's name and a text; raises as `encode`."""
        from scannery.embed import DeviceError, InvalidTextError

        cached = {pair: vector for pair in pairs if (vector := self._vectors.find(pair)) is not None}
        missing = [pair for pair in dict.fromkeys(pairs) if pair not in cached]
        self._count_cached(len(pairs) - len(missing), len(missing))
        if missing:
            texts = list(dict.fromkeys(text for _, text in missing))
            try:
                with waiting(), span("scannery.encode_texts", **{"scannery.texts": len(texts)}):
                    vectors = dict(zip(texts, self._queries(texts, deadline), strict=True))
            except InvalidTextError as error:
                raise InvalidRequestError.at(path, f"cannot be encoded: {error}") from error
            except DeviceError as error:
                raise EncoderUnavailableError(f"texts cannot be encoded: {error}", field=path) from error
            for pair in missing:
                # Copied: a row would keep the memory of its whole batch.
                vector = cached[pair] = np.array(vectors[pair[1]])
                self._vectors.keep(pair, vector, vector.nbytes + sys.getsizeof(pair[1]))
        return [cached[pair] for pair in pairs]

    def encode_now(self, caller: str, text: str) -> np.ndarray | None:
        """Return the vector, float32 (D,), of a text that is not cached, encoded in this thread without a batch.

        None: it is to be encoded by `encode_each`, which also finds what is wrong with it. That is so if it would
        take longer than NOW_S at the last query's time for a token, so the event loop may call this.

        Args:
            caller: its name.
            text: the text.

        """
        encode = getattr(self._encoder, "encode_now", None)
        if encode is None or len(text) > NOW_CHARS:
            return None
        vector_D: np.ndarray | None = encode(text, NOW_S)
        if vector_D is not None:
            self._encoding(1)
            self._count_cached(0, 1)
            self._vectors.keep((caller, text), vector_D, vector_D.nbytes + sys.getsizeof(text))
        return vector_D

    def cached_vector(self, text: str) -> np.ndarray | None:
        """Return the cached vector of a query, float32 (D,); None: not cached."""
        vector = self._vectors.find((_caller(), text))
        if vector is not None:
            self._count_cached(1, 0)
        return vector

    def encode_documents(self, texts: Sequence[str], deadline: Deadline, *, path: str) -> np.ndarray:
        """Return the vectors of documents, float32 (Q, D), encoded in batches with those of concurrent callers.

        Raises:
            InvalidRequestError: a text cannot be encoded; `path` names the field.
            EncoderUnavailableError: the device cannot run the model.
            DeadlineError: the deadline passed; checked between batches.

        """
        from scannery.embed import DeviceError, InvalidTextError

        unique = list(dict.fromkeys(texts))
        vectors: list[np.ndarray] = []
        for start in range(0, len(unique), self._limits.documents):
            deadline.check()
            try:
                with waiting(), span("scannery.encode_texts", **{"scannery.texts": len(unique)}):
                    vectors.extend(self._documents(unique[start : start + self._limits.documents], deadline))
            except InvalidTextError as error:
                number = texts.index(unique[start + error.index])
                raise InvalidRequestError.at(f"{path}[{number}]", f"cannot be encoded: {error}") from error
            except DeviceError as error:
                raise EncoderUnavailableError(f"texts cannot be encoded: {error}", field=path) from error
        vector_of = dict(zip(unique, vectors, strict=True))
        return np.stack([vector_of[text] for text in texts])

    def _encoding(self, texts: float) -> None:
        # Looked up at each call: `report_to` may come after the encoder was loaded.
        self._observer.batch(texts)

    def _count_cached(self, hits: int, misses: int) -> None:
        if hits:
            self._observer.cached(True, hits)
        if misses:
            self._observer.cached(False, misses)


def _caller() -> str:
    principal = CURRENT.get()
    return principal.name if principal else ""
