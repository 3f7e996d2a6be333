"""Plan to how many tokens XLA pads texts, from a sample of the input, so that all workers compile equal shapes.

Only for encoders on XLA: other devices take batches of any width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np

from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.planning.planned_encoder import PlannedEncoder
from scannery.pipelines.records.source_columns import validate_records
from scannery.pipelines.sources import Fields, Part, Record, read_part
from scannery.pipelines.state.job import Job

if TYPE_CHECKING:
    from scannery.embed import Encoder

__all__ = ["sampled_passages", "with_widths"]

SAMPLED_PARTS = 32
SAMPLED_PASSAGES = 4096
"""Passages whose tokens are counted, about: a second or two of one core."""
RECORDS_AT_ONCE = 8


def with_widths(job: Job, parts: Sequence[Part], encoder: PlannedEncoder | None) -> Job:
    """Return the job with the widths that its workers compile; without them where the encoder is not on XLA.

    Args:
        job: the build.
        parts: of its input.
        encoder: of the spec. If it is not loaded yet, the tokenizer is loaded with a CPU as device, since the planning
            machine may have no other.

    Raises:
        EmbedError: the encoder cannot be loaded.

    """
    if encoder is None or encoder.spec.device != "xla" or not job.embeds:
        return job
    tokenizing = encoder.loaded or encoder.load_on_cpu()
    texts = sampled_passages(parts, job.spec, job.dimensions, tokenizing)
    return dataclasses.replace(job, widths=tokenizing.plan_widths(texts)) if texts else job


def sampled_passages(parts: Sequence[Part], spec: IndexSpec, dimensions: int, encoder: Encoder) -> list[str]:
    """Return the texts of about SAMPLED_PASSAGES passages as they are embedded, from parts spread over the input."""
    numbers = np.unique(np.linspace(0, len(parts) - 1, min(len(parts), SAMPLED_PARTS), dtype=np.int64))
    share = -(-SAMPLED_PASSAGES // max(1, len(numbers)))
    return [
        text
        for number in numbers.tolist()
        for text in islice(_passages(parts[number], spec, dimensions, encoder), share)
    ]


def _passages(part: Part, spec: IndexSpec, dimensions: int, encoder: Encoder) -> Iterator[str]:
    """Yield the texts of the passages of a part; records that cannot be indexed have none."""
    from scannery.embed.text.documents import cut, embedded_texts

    chunk = spec.source.chunk
    chunker = (
        None
        if chunk is None
        else encoder.chunker(chunk.max_tokens, chunk.overlap_tokens, headings=bool(chunk.headings))
    )
    records = (item for item in read_part(part, Fields.of(spec)) if isinstance(item, Record))
    while some := list(islice(records, RECORDS_AT_ONCE)):
        table = validate_records(some, spec, dimensions).table
        titles, texts = (table.column(name).to_pylist() for name in ("title", "text"))
        for title, text in zip(titles, texts, strict=True):
            yield from embedded_texts(title, cut(text, chunker, title), chunker)
