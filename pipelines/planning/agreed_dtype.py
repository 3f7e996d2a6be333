"""The number type in which a build embeds, where its spec leaves it open: all workers use the same.

`dtype: auto` is the fastest faithful type of a device, so machines of different kinds would mix types in one build. The
launcher cannot choose it, since its own device is another. So the first worker that loads the encoder chooses, and
records its choice in the store by a conditional write; the others, and a build that is resumed, follow it. To follow
is always correct, as vectors are equal within the tolerance of `auto`, but it can be slow: that is logged, and the
report counts units by the fastest type of the workers' devices.

Plan to how many tokens XLA pads texts, from a sample of the input, so that all workers compile equal shapes.

Only for encoders on XLA: other devices take batches of any width.
"""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from scannery.embed import Encoder, InvalidArgumentError
from scannery.embed.devices.precision import fastest_dtype
from scannery.indexer.errors import AlreadyExistsError, NotFoundError
from scannery.indexer.spec.spec import EncoderSpec, IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.pipelines.errors import PipelineError
from scannery.pipelines.planning.planned_encoder import PlannedEncoder, recipe_of
from scannery.pipelines.records.source_columns import validate_records
from scannery.pipelines.sources import Fields, Part, Record, read_part
from scannery.pipelines.state.job import Job, sealed, stage_key, unsealed
from scannery.pipelines.state.work_units import key_of

__all__ = ["agreed_dtype", "agreed_encoder", "sampled_passages", "with_widths"]


_LOG = logging.getLogger(__name__)


def agreed_encoder(
    job: Job,
    store: Store,
    spec: EncoderSpec,
    load: Callable[[EncoderSpec], Encoder],
    acquire: Callable[[Callable[[], Encoder]], Encoder],
) -> Encoder:
    """Return the encoder of a worker, in the number type of the build.

    Args:
        job: the build.
        store: its store.
        spec: model and options.
        load: loads an encoder.
        acquire: returns the encoder that this process has, or calls its argument for one.

    Raises:
        PipelineError: this worker's device cannot compute in the number type of the build.

    """
    if spec.dtype != "auto":
        return acquire(lambda: load(spec))
    agreed = agreed_dtype(job, store, spec)
    encoder = acquire(lambda: _loaded(spec, agreed, load))
    agreed = agreed or _agree(job, store, spec, encoder)
    if encoder.dtype != agreed:  # this process had loaded it before, or another worker was first
        encoder = _loaded(spec, agreed, load)
    fastest = fastest_dtype(encoder.device)
    if fastest != agreed:
        _LOG.warning(
            "%s computes fastest in %s, and this build embeds in %s, as its first worker chose; set encoder.dtype in "
            "the spec, or use machines of one kind",
            encoder.device,
            fastest,
            agreed,
        )
    return encoder


def agreed_dtype(job: Job, store: Store, spec: EncoderSpec | None = None) -> str | None:
    """Return the number type of a build for an encoder (None: that of unnamed vectors), or None if none is chosen."""
    try:
        text = unsealed(store.read(_key(job, spec)))
    except NotFoundError:
        return None
    return None if text is None else str(json.loads(text)["dtype"])


def _agree(job: Job, store: Store, spec: EncoderSpec, encoder: Encoder) -> str:
    record = sealed(json.dumps({"dtype": encoder.dtype, "device": encoder.device}))
    try:
        store.create(_key(job, spec), record)
    except AlreadyExistsError:
        if (earlier := agreed_dtype(job, store, spec)) is not None:
            return earlier
        store.write(_key(job, spec), record)  # it is damaged
    return encoder.dtype


def _loaded(spec: EncoderSpec, dtype: str | None, load: Callable[[EncoderSpec], Encoder]) -> Encoder:
    if dtype is None:
        return load(spec)
    try:
        return load(spec.model_copy(update={"dtype": dtype}))
    except InvalidArgumentError as error:
        if error.field != "dtype":
            raise
        raise PipelineError(
            f"encoder.dtype: the first worker of this build chose {dtype}, which this one cannot compute in ({error}); "
            "set encoder.dtype in the spec, or use machines of one kind"
        ) from error


def _key(job: Job, spec: EncoderSpec | None) -> str:
    suffix = "" if spec in (None, job.spec.encoder) else f".{key_of('dtype', recipe_of(spec))[:16]}"
    # Among the records of units: these are kept as long as the embeddings of a build without a version.
    return stage_key(job.index, "units", f"{job.build_id}{suffix}.dtype.json")


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
