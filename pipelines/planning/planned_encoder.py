"""The encoder of a build in the launching process: known by its fingerprint, and loaded on first use.

All workers of a build embed in the same number type. `dtype: auto` is the fastest faithful type of a device, so
machines of different kinds would mix types in one build. The launcher cannot choose it, since its own device is
another. So the first worker that loads the encoder chooses, and records its choice in the store by a conditional write;
the others, and a build that is resumed, follow it. To follow is always correct, as vectors are equal within the
tolerance of `auto`, but it can be slow: that is logged, and the report counts units by the fastest type of the workers'
devices.

To how many tokens XLA pads texts is planned from a sample of the input, so that all workers compile equal shapes; other
devices take batches of any width.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from scannery.embed import Encoder, InvalidArgumentError
from scannery.embed.devices.precision import fastest_dtype
from scannery.embed.sided_encoder import SidedEncoder, TextEncoder
from scannery.indexer.errors import AlreadyExistsError, NotFoundError
from scannery.indexer.models.references import located_model
from scannery.indexer.spec.spec import EncoderSpec, IndexSpec
from scannery.indexer.store.object_store import Store
from scannery.pipelines.errors import PipelineError
from scannery.pipelines.records.source_columns import validate_records
from scannery.pipelines.sources import Fields, Part, Record, read_part
from scannery.pipelines.state.job import Job, sealed, stage_key, unsealed
from scannery.pipelines.state.work_units import key_of
from scannery.runtime.paths import current_folder

if TYPE_CHECKING:
    from scannery.embed import Encoder, Fingerprint

__all__ = [
    "PlannedEncoder",
    "agreed_dtype",
    "agreed_encoder",
    "both_sides",
    "encoder_sources",
    "load_encoder",
    "planned_encoders",
    "recipe_of",
    "sampled_passages",
    "with_widths",
]


def recipe_of(spec: EncoderSpec) -> str:
    """Return what the model of documents is loaded by: with equal recipes, several vectors share one loaded model.

    The recipe of a model for queries is that of `EncoderSpec.queries`.
    """
    return spec.documents.model_dump_json()


def both_sides(spec: EncoderSpec, load: Callable[[EncoderSpec], Encoder]) -> TextEncoder:
    """Return what encodes queries and documents, of the models that `load` returns for `EncoderSpec.sides`."""
    documents, *queries = map(load, spec.sides)
    return SidedEncoder(queries=queries[0], documents=documents) if queries else documents


def load_encoder(spec: EncoderSpec, store: str | None, widths: Sequence[int] = ()) -> Encoder:
    """Return the encoder that the spec names, loaded.

    Args:
        spec: model, options and device.
        store: URI of the store, for a model `store:NAME@N`; None: there is none.
        widths: planned widths in tokens, for XLA; empty: none.

    """
    from scannery.embed import Encoder

    with located_model(spec.model, current_folder(), store) as location:
        return Encoder.load(
            location,
            label=spec.model,
            device=spec.device,
            dtype=spec.dtype,
            **spec.options,
            widths=widths or None,
        )


class PlannedEncoder:
    """An encoder that is loaded on first use, since loading takes seconds and most builds embed little.

    Args:
        spec: model and options.
        store: URI of the store, for a model `store:NAME@N`; None: there is none.

    """

    def __init__(self, spec: EncoderSpec, store: str | None) -> None:
        self.spec = spec
        self._store = store
        self.loaded: Encoder | None = None
        """The encoder, if it has been loaded."""

    def load(self) -> Encoder:
        """Return the encoder, loaded once. Raises EmbedError if it cannot be loaded."""
        if self.loaded is None:
            self.loaded = load_encoder(self.spec, self._store)
        return self.loaded

    def load_on_cpu(self) -> Encoder:
        """Return the encoder on a CPU, for its tokenizer; not kept. Raises EmbedError if it cannot be loaded."""
        return load_encoder(self.spec.model_copy(update={"device": "cpu", "dtype": "float32"}), self._store)

    @contextlib.contextmanager
    def folder(self) -> Iterator[Path]:
        """Give the folder of the model, which stays within the context. Raises EmbedError if there is none."""
        from scannery.embed.models.model_files import find_model

        with located_model(self.spec.model, current_folder(), self._store) as location:
            yield find_model(location)

    @cached_property
    def fingerprint(self) -> Fingerprint:
        """The encoder's fingerprint, from the files of the model where these suffice, else from the loaded encoder."""
        from scannery.embed import Encoder

        spec = self.spec
        with self.folder() as folder:
            fingerprint = Encoder.known_fingerprint(folder, label=spec.model, **spec.options)
        if fingerprint is not None:
            return fingerprint
        # The launcher of a build on TPUs may have none.
        return (self.load_on_cpu() if spec.device == "xla" else self.load()).fingerprint

    @property
    def dimensions(self) -> int:
        """Number of components of a vector."""
        return self.fingerprint.dimensions


def planned_encoders(spec: IndexSpec, store: str | None) -> dict[str, PlannedEncoder]:
    """Return the encoders of a spec, also those of queries alone, by their recipes; `store` as of `PlannedEncoder`."""
    sides = (side for encoder in spec.encoders.values() for side in encoder.sides)
    return {recipe_of(side): PlannedEncoder(side, store) for side in sides}


def encoder_sources(spec: IndexSpec, store: str | None) -> dict[str, Callable[[], TextEncoder]]:
    """Return what loads the encoder of the vectors of each name, both sides of it; `store` as of `PlannedEncoder`."""
    planned = planned_encoders(spec, store)
    return {
        name: partial(both_sides, each, lambda side: planned[recipe_of(side)].load())
        for name, each in spec.encoders.items()
    }


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
    unnamed = job.spec.encoder
    is_unnamed = spec is None or (unnamed is not None and recipe_of(spec) == recipe_of(unnamed))
    suffix = "" if spec is None or is_unnamed else f".{key_of('dtype', recipe_of(spec))[:16]}"
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
        table = validate_records(some, spec, {"": dimensions}).table
        titles, texts = (table.column(name).to_pylist() for name in ("title", "text"))
        for title, text in zip(titles, texts, strict=True):
            yield from embedded_texts(title, cut(text, chunker, title), chunker)
