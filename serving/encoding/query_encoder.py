"""Text queries to vectors: the encoder that an index names, and a cache of the latest queries.

Shapes: Q queries, D dimensions.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from scannery.indexer import ChunkSpec, Manifest
from scannery.runtime.bounded_cache import BoundedCache
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import EncoderUnavailableError, InvalidRequestError
from scannery.runtime.paths import current_folder, placed_model
from scannery.runtime.retry import RetryState
from scannery.serving.config import CACHED_QUERIES, RemoteConfig
from scannery.serving.encoding.reranker import RerankerPool
from scannery.serving.encoding.text_batcher import TextBatcher
from scannery.serving.scheduling.permits import waiting
from scannery.serving.security.principal import CURRENT
from scannery.serving.telemetry.metrics import ServerMetrics
from scannery.serving.telemetry.tracing import span

if TYPE_CHECKING:
    from scannery.embed import Chunker, Encoder
    from scannery.serving.encoding.remote_encoder import EncoderProcess

__all__ = ["EncoderPool", "Observer", "QueryEncoder", "TextEncoder", "load_encoder"]

CACHED_BYTES = 64 << 20
"""Texts and vectors of these: a text may have 32 KiB."""
DOCUMENTS_AT_ONCE = 128
"""In a batch: enough for the throughput of an accelerator, and few enough to check the deadline in between."""

_NO_DEADLINE = Deadline.after(None)

Encode = Callable[[Sequence[str], Deadline], Sequence[np.ndarray] | np.ndarray]


class TextEncoder(Protocol):
    """What encodes: a model in this process (`scannery.embed.Encoder`), or one in another."""

    @property
    def dimensions(self) -> int:
        """Components of a vector."""

    def encode_queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of queries, float32 (Q, D)."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of documents, float32 (Q, D)."""

    def chunker(self, max_tokens: int, overlap_tokens: int) -> Chunker:
        """Return a chunker that counts tokens as this encoder does."""


@dataclass
class Observer:
    """Is told what encoders do; reports nothing before `report_to`."""

    batch: Callable[[float], object] = lambda texts: None
    """Called with the number of texts of each batch."""
    cached: Callable[[bool, int], object] = lambda known, count: None
    """Called with the number of query texts whose vectors the cache had (True) or had not (False)."""

    def report_to(self, metrics: ServerMetrics) -> None:
        """Count in these metrics from now on."""
        self.batch = metrics.batch_texts.observe
        self.cached = lambda known, count: metrics.cached.inc(("hit" if known else "miss",), count)


class QueryEncoder:
    """Encodes queries, those of concurrent callers together, and remembers the last ones.

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
        """Encode nothing yet.

        Args:
            encoder: of the texts.
            cached: queries whose vectors are remembered.
            cached_bytes: bound of their texts and vectors.
            observer: is told of batches and of the cache.
            batched: False if the encoder itself joins the texts of concurrent callers.

        """
        self._encoder = encoder
        self._observer = observer or Observer()
        self._queries: Encode = lambda texts, deadline: encoder.encode_queries(texts)
        self._documents: Encode = lambda texts, deadline: encoder.encode_documents(texts)
        if batched:
            self._queries = TextBatcher(encoder.encode_queries, observe=self._encoding).encode
            self._documents = TextBatcher(
                encoder.encode_documents, max_texts=DOCUMENTS_AT_ONCE, observe=self._encoding
            ).encode
        # By who asked and the text: how long an answer takes must not tell what others asked.
        self._vectors: BoundedCache[tuple[str, str], np.ndarray] = BoundedCache(
            cached_bytes, max_entries=cached
        )
        self._chunkers: dict[tuple[int, int], Chunker] = {}

    @property
    def dimensions(self) -> int:
        """Components of a vector."""
        return self._encoder.dimensions

    @property
    def documents(self) -> TextEncoder:
        """The encoder itself, which also encodes documents."""
        return self._encoder

    def chunker(self, chunk: ChunkSpec) -> Chunker:
        """Return what cuts texts as the spec says; kept, since making one parses the whole vocabulary."""
        key = (chunk.max_tokens, chunk.overlap_tokens)
        if key not in self._chunkers:
            self._chunkers[key] = self._encoder.chunker(*key)
        return self._chunkers[key]

    def encode(
        self, texts: Sequence[str], *, path: str = "query", deadline: Deadline = _NO_DEADLINE
    ) -> np.ndarray:
        """Return the vectors of query texts, float32 (Q, D), those of concurrent callers encoded together.

        Raises:
            InvalidRequestError: a text cannot be encoded; `path` names the field.
            DeadlineError: it passed before the texts were encoded.

        """
        from scannery.embed import InvalidTextError

        asking = _asking()
        known = {text: vector for text in texts if (vector := self._vectors.find((asking, text))) is not None}
        missing = [text for text in dict.fromkeys(texts) if text not in known]
        self._count(len(texts) - len(missing), len(missing))
        if missing:
            try:
                with waiting(), span("scannery.encode_texts", **{"scannery.texts": len(missing)}):
                    vectors = self._queries(missing, deadline)
            except InvalidTextError as error:
                raise InvalidRequestError.at(path, f"cannot be encoded: {error}") from error
            known |= dict(zip(missing, vectors, strict=True))
            self._remember({text: known[text] for text in missing})
        return np.stack([known[text] for text in texts])

    def known(self, text: str) -> np.ndarray | None:
        """Return the vector of a query that was encoded lately, float32 (D,); None if it has to be."""
        vector = self._vectors.find((_asking(), text))
        if vector is not None:
            self._count(1, 0)
        return vector

    def encode_documents(self, texts: Sequence[str], deadline: Deadline, *, path: str) -> np.ndarray:
        """Return the vectors of documents, float32 (Q, D), those of concurrent callers encoded together.

        Raises:
            InvalidRequestError: a text cannot be encoded; `path` names the field.
            DeadlineError: checked between batches.

        """
        from scannery.embed import InvalidTextError

        unique = list(dict.fromkeys(texts))
        vectors: list[np.ndarray] = []
        for start in range(0, len(unique), DOCUMENTS_AT_ONCE):
            deadline.check()
            try:
                with waiting(), span("scannery.encode_texts", **{"scannery.texts": len(unique)}):
                    vectors.extend(self._documents(unique[start : start + DOCUMENTS_AT_ONCE], deadline))
            except InvalidTextError as error:
                place = texts.index(unique[start + error.index])
                raise InvalidRequestError.at(f"{path}[{place}]", f"cannot be encoded: {error}") from error
        known = dict(zip(unique, vectors, strict=True))
        return np.stack([known[text] for text in texts])

    def _encoding(self, texts: float) -> None:
        # Read at each call: the observer may be set after the encoder was loaded.
        self._observer.batch(texts)

    def _count(self, hits: int, misses: int) -> None:
        if hits:
            self._observer.cached(True, hits)
        if misses:
            self._observer.cached(False, misses)

    def _remember(self, vectors: dict[str, np.ndarray]) -> None:
        asking = _asking()
        for text, vector in vectors.items():
            # Copied: a row of a batch would keep the whole batch.
            self._vectors.keep((asking, text), np.array(vector), vector.nbytes + sys.getsizeof(text))


def _asking() -> str:
    principal = CURRENT.get()
    return principal.name if principal else ""


class EncoderPool:
    """The models of a process: indexes that name the same one share it. Safe to use from several threads."""

    def __init__(
        self,
        *,
        device: str = "auto",
        reranker: str | None = None,
        remote: RemoteConfig | None = None,
        cached: int = CACHED_QUERIES,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Load nothing yet.

        Args:
            device: where models run.
            reranker: the cross-encoder of all indexes, in place of those in their specs.
            remote: the process that encodes; None: models are loaded here.
            cached: queries that each encoder remembers.
            clock: seconds.

        """
        self._cached = cached
        self._clock = clock
        self._folder = current_folder()
        self._device = device
        self._remote = remote
        self._process: EncoderProcess | None = None
        self.rerankers = RerankerPool(model=reranker, device=device)
        self._encoders: dict[str, QueryEncoder] = {}
        self._failed: dict[str, RetryState] = {}
        self.observer = Observer()
        """Of all encoders."""
        self._lock = threading.Lock()

    def encoder_of(self, manifest: Manifest, *, field: str = "query") -> QueryEncoder:
        """Return the encoder for text queries of an index; it is loaded at the first call.

        Only what the manifest names is ever loaded, never what a request says. `field` is what errors name.

        Raises:
            EncoderUnavailableError: the index has none, or not one that can be loaded and made its vectors.

        """
        if manifest.spec.encoder is None:
            raise EncoderUnavailableError(
                f"index {manifest.index!r} has no encoder, so it cannot be asked with text; ask with a vector",
                field=field,
            )
        spec = manifest.spec.encoder.model_dump(exclude={"device", "dtype"})
        key = json.dumps([spec, manifest.encoder, manifest.dimensions], sort_keys=True)
        # One load at a time: loading a model takes all the memory bandwidth there is.
        with self._lock:
            if key not in self._encoders:
                self._encoders[key] = self._tried(key, manifest, field)
            return self._encoders[key]

    def close(self) -> None:
        """Let go of the connection to another process."""
        if self._process is not None:
            self._process.close()

    def _tried(self, key: str, manifest: Manifest, field: str) -> QueryEncoder:
        """Load it, unless that failed a moment ago: a try takes seconds, in which all texts wait."""
        retry = self._failed.setdefault(key, RetryState(clock=self._clock))
        if retry.error is not None and not retry.due:
            raise EncoderUnavailableError(str(retry.error), field=field)
        try:
            encoder = self._made(manifest)
        except EncoderUnavailableError as error:
            retry.failed(f"the encoder of index {manifest.index}", error)
            raise
        del self._failed[key]
        return encoder

    def _made(self, manifest: Manifest) -> QueryEncoder:
        if self._remote is None:
            encoder = load_encoder(manifest, self._device, self._folder)
            return QueryEncoder(encoder, cached=self._cached, observer=self.observer)
        from scannery.serving.encoding.remote_encoder import EncoderProcess, RemoteEncoder

        # No connection before it is needed: none survives a fork.
        self._process = self._process or EncoderProcess(self._remote)
        return QueryEncoder(
            RemoteEncoder(self._process, manifest),
            cached=self._cached,
            observer=self.observer,
            batched=False,
        )


def load_encoder(manifest: Manifest, device: str, folder: Path) -> Encoder:
    """Return the encoder that an index names, loaded here; EncoderUnavailableError if it cannot be, or is another.

    A model that is a local folder, by a relative path, is looked for in `folder`.
    """
    # Takes seconds (torch), and vector queries never need it.
    from scannery.embed import EmbedError, Encoder, Fingerprint

    spec = manifest.spec.encoder
    if spec is None:
        raise EncoderUnavailableError(f"index {manifest.index!r} has no encoder", field="query")
    try:
        encoder = Encoder.load(
            placed_model(spec.model, folder),
            device=device,
            dimensions=spec.dimensions,
            query_prompt=spec.query_prompt,
            document_prompt=spec.document_prompt,
            max_tokens=spec.max_tokens,
            # Before it is loaded: write access to the store, or to the hub, must not choose the code that runs.
            expected=None if manifest.encoder is None else Fingerprint.from_dict(manifest.encoder),
        )
    except (EmbedError, OSError) as error:
        raise EncoderUnavailableError(
            f"index {manifest.index!r} cannot be asked with text: {error}", field="query"
        ) from error
    if encoder.dimensions != manifest.dimensions:
        raise EncoderUnavailableError(
            f"index {manifest.index!r} cannot be asked with text: its vectors have {manifest.dimensions} dimensions, "
            f"those of {spec.model} have {encoder.dimensions}",
            field="query",
        )
    return encoder
