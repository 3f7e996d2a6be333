"""The number type in which a build embeds, where its spec leaves it open: all workers use the same.

`dtype: auto` is the fastest faithful type of a device, so machines of different kinds would mix types in one build. The
launcher cannot choose it, since its own device is another. So the first worker that loads the encoder chooses, and
records its choice in the store by a conditional write; the others, and a build that is resumed, follow it. To follow
is always correct, as vectors are equal within the tolerance of `auto`, but it can be slow: that is logged, and the
report counts units by the fastest type of the workers' devices.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable

from scannery.embed import Encoder, InvalidArgumentError
from scannery.embed.devices.precision import fastest_dtype
from scannery.indexer.errors import AlreadyExistsError, NotFoundError
from scannery.indexer.spec.spec import EncoderSpec
from scannery.indexer.store.object_store import Store
from scannery.pipelines.errors import PipelineError
from scannery.pipelines.planning.planned_encoder import recipe_of
from scannery.pipelines.state.job import Job, sealed, stage_key, unsealed
from scannery.pipelines.state.work_units import key_of

__all__ = ["agreed_dtype", "agreed_encoder"]

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
    own = fastest_dtype(encoder.device)
    if own != agreed:
        _LOG.warning(
            "%s computes fastest in %s, and this build embeds in %s, as its first worker chose; set encoder.dtype in "
            "the spec, or use machines of one kind",
            encoder.device,
            own,
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
    own = "" if spec in (None, job.spec.encoder) else f".{key_of('dtype', recipe_of(spec))[:16]}"
    # Among the records of units: these are kept as long as the embeddings of a build without a version.
    return stage_key(job.index, "units", f"{job.build_id}{own}.dtype.json")
