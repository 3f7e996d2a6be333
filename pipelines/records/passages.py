"""Documents → passages with vectors: what was embedded before is looked up, the rest goes through the encoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from scannery.embed import Chunker, Encoder, Passage
from scannery.embed.text.documents import cut_all, encode_passages, uncut
from scannery.embed.text.transcripts import spoken_text
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.records.documents import Document
from scannery.pipelines.state.embedding_cache import Catalogue
from scannery.pipelines.state.work_units import key_of

__all__ = ["EmbeddedDocument", "Work", "content_hash", "content_salt", "embed_documents",
           "with_own_vector"]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class EmbeddedDocument:
    """A document with its passages, P of them, and a vector for each."""

    document: Document
    content_hash: bytes | None
    passages: Sequence[Passage]
    vectors: np.ndarray
    """float32, `(P, dimensions)`."""


@dataclasses.dataclass
class Work:
    """How much the encoder had to do."""

    embedded: int = 0
    tokens: int = 0
    padding_tokens: int = 0
    seconds: float = 0.0


def embed_documents(
    documents: Sequence[Document], spec: IndexSpec, encoder: Encoder, catalogue: Catalogue | None
) -> tuple[list[EmbeddedDocument], list[DeadLetter], Work]:
    """Return the documents with vectors, in order, dead letters for those that the encoder refuses, and the work."""
    chunk = spec.source.chunk
    chunker = None if chunk is None else encoder.chunker(chunk.max_tokens, chunk.overlap_tokens)
    salt = content_salt(encoder.fingerprint.digest, spec)
    hashes = [
        content_hash(document, salt, _made_otherwise(document, chunker, spec)) for document in documents
    ]
    known = catalogue.find(hashes) if catalogue is not None else {}
    done = {
        i: EmbeddedDocument(
            documents[i], value, [Passage(*row) for row in known[value].rows], known[value].vectors
        )
        for i, value in enumerate(hashes)
        if value in known
    }
    new = [i for i in range(len(documents)) if i not in done]
    passages = cut_all([documents[i].text for i in new], chunker, [documents[i].title for i in new])
    vectors, problems, work = _encoded([documents[i] for i in new], passages, encoder, chunker)
    letters = []
    for i, own, vectors_PD, problem in zip(new, passages, vectors, problems, strict=True):
        if problem is None:
            done[i] = EmbeddedDocument(documents[i], hashes[i], own, vectors_PD)
        else:
            field = spec.source.text
            letters.append(documents[i].record.reject("text", problem, field=field, id=documents[i].id))
    return [done[i] for i in sorted(done)], letters, work


def content_salt(fingerprint: str, spec: IndexSpec) -> bytes:
    """Return what passages and vectors depend on besides the text, as the start of every content hash."""
    chunk = spec.source.chunk
    return key_of("content", fingerprint, None if chunk is None else chunk.model_dump()).encode()


def content_hash(document: Document, salt: bytes, otherwise: bytes = b"") -> bytes:
    """Return the 16 bytes that two documents share if they have the same passages and vectors."""
    digest = blake2b(salt + otherwise, digest_size=16)
    title = (document.title or "").encode()
    digest.update(len(title).to_bytes(8, "little") + title + (document.text or "").encode())
    return digest.digest()


def _made_otherwise(document: Document, chunker: Chunker | None, spec: IndexSpec) -> bytes:
    """Return what sets a document apart whose passages or vectors earlier releases made otherwise; else nothing.

    So transcripts, and documents whose titles need more room than passages leave, are embedded again, and no others.
    """
    marks = []
    if document.text is not None and spoken_text(document.text) is not None:
        marks.append("spoken")
    if chunker is not None and spec.source.chunk is not None:
        title, most = chunker.fit(document.title)
        if title != document.title or most != spec.source.chunk.max_tokens:
            marks.append(f"{len(title or '')} {most}")
    return " ".join(marks).encode()


def with_own_vector(document: Document) -> EmbeddedDocument:
    """Return a document with the vector that its record has, as its only passage."""
    if document.vector is None:
        raise ValueError(f"document {document.id!r} has no vector")
    passage = dataclasses.replace(uncut(document.text, document.span), spoken=document.spoken)
    return EmbeddedDocument(document, None, [passage], document.vector[None, :])


def _encoded(
    documents: Sequence[Document],
    passages: Sequence[Sequence[Passage]],
    encoder: Encoder,
    chunker: Chunker | None,
) -> tuple[list[np.ndarray], list[str | None], Work]:
    """Return for each document the vectors of its passages and the encoder's objection, if any; and the work."""
    before = encoder.statistics()
    titles = [document.title for document in documents]
    vectors, refused = encode_passages(titles, passages, encoder, chunker)
    after = encoder.statistics()
    work = Work(
        sum(map(len, passages)), after.tokens - before.tokens, after.padding_tokens - before.padding_tokens,
        after.seconds - before.seconds,
    )  # fmt: skip
    return vectors, refused, work
