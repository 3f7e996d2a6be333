"""First stage: a work unit becomes an embeddings file, dead letters and counts."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence

from scannery.embed import Encoder
from scannery.indexer.scratch import scratch_folder
from scannery.indexer.segment_writer import file_sha256
from scannery.indexer.store import Store
from scannery.pipelines.counts import Counts, UnitOutcome
from scannery.pipelines.deadletters import DeadLetter, count_categories, count_reasons, json_lines
from scannery.pipelines.documents import Document, to_document
from scannery.pipelines.embeddings import write_embeddings
from scannery.pipelines.job import Job, embeddings_key, sealed, stage_key
from scannery.pipelines.passages import EmbeddedDocument, Work, embed_documents
from scannery.pipelines.reuse import Catalogue
from scannery.pipelines.sources import Fields, read_part
from scannery.pipelines.sources.managed_records import with_category
from scannery.pipelines.stored import has_size, read_unit
from scannery.pipelines.units import WorkUnit

__all__ = ["embed_unit", "finished_unit"]

MAX_IGNORED_NAMES = 100


def finished_unit(unit: WorkUnit, job: Job, store: Store) -> UnitOutcome | None:
    """Return the outcome of a unit that an earlier run finished, or None."""
    outcome = read_unit(store, job.index, unit.key)
    if outcome is None or not has_size(
        store, embeddings_key(job.index, unit.key), outcome.counts.embeddings_bytes
    ):
        return None
    # The same content may stand at another place of the input now.
    return UnitOutcome(key=unit.key, ordinal=unit.ordinal, counts=outcome.counts.without_work(),
                       row_groups=outcome.row_groups, sha256=outcome.sha256)  # fmt: skip


def embed_unit(
    unit: WorkUnit, job: Job, store: Store, encoder: Encoder | None, catalogue: Catalogue | None
) -> UnitOutcome:
    """Read a unit, embed what is new in it, write its files, and return what was done.

    Raises:
        InputChangedError: a file is not what it was when the build was planned.

    """
    laps = [time.perf_counter()]
    documents, letters, ignored = _read(unit, job)
    laps.append(time.perf_counter())
    embedded, refused, work = embed_documents(documents, job.spec, encoder, catalogue)
    letters += refused
    laps.append(time.perf_counter())
    row_groups, size_bytes, digest = _write_embeddings(unit, embedded, job, store)
    _write_letters(unit, letters, job, store)
    laps.append(time.perf_counter())
    outcome = UnitOutcome(
        key=unit.key,
        ordinal=unit.ordinal,
        counts=Counts(
            documents=len(embedded),
            passages=sum(len(item.pieces) for item in embedded),
            embedded=work.embedded,
            tokens=work.tokens,
            padding_tokens=work.padding_tokens,
            input_bytes=sum(part.size_bytes for part in unit.parts),
            embeddings_bytes=size_bytes,
            dead_letters=count_reasons(letters),
            record_errors=count_categories(letters),
            ignored=_bounded(ignored),
            seconds=_seconds(laps, work),
        ),
        row_groups=row_groups,
        sha256=digest,
        device=encoder.device if encoder else None,
        dtype=encoder.dtype if encoder else None,
    )
    # Last, since it is what says that the unit is done.
    store.write(stage_key(job.index, "units", f"{unit.key}.json"), sealed(outcome.to_json()))
    return outcome


def _seconds(laps: Sequence[float], work: Work) -> dict[str, float]:
    read, embed, write = (later - earlier for earlier, later in itertools.pairwise(laps))
    seconds = {"read": read, "chunk": embed - work.seconds, "encode": work.seconds, "write": write}
    return {name: round(value, 6) for name, value in seconds.items()}


def _read(unit: WorkUnit, job: Job) -> tuple[list[Document], list[DeadLetter], Counter[str]]:
    """Return the documents, the dead letters, and how many records have what under names the spec leaves out."""
    fields = Fields.of(job.spec)
    documents: list[Document] = []
    letters: list[DeadLetter] = []
    ignored: Counter[str] = Counter()
    has_categories = job.spec.source.format == "managed"
    for item in itertools.chain.from_iterable(read_part(part, fields) for part in unit.parts):
        result = item if isinstance(item, DeadLetter) else to_document(item, job.spec, job.dimensions)
        if isinstance(result, DeadLetter):
            letters.append(with_category(result) if has_categories else result)
        else:
            documents.append(result)
            ignored.update(result.record.ignored)
    return documents, letters, ignored


def _bounded(counts: Counter[str]) -> dict[str, int]:
    # Names come from the input, and reports are kept for ever.
    kept = dict(counts.most_common(MAX_IGNORED_NAMES))
    rest = counts.total() - sum(kept.values())
    return kept | ({"…": rest} if rest else {})


def _write_embeddings(
    unit: WorkUnit, embedded: Sequence[EmbeddedDocument], job: Job, store: Store
) -> tuple[dict[int, int], int, str]:
    """Return the row group of each shard, and the size and SHA-256 of the file."""
    with scratch_folder("embed") as folder:
        path = folder / "embeddings.parquet"
        row_groups = write_embeddings(path, embedded, job.spec, dimensions=job.dimensions, shards=job.shards)
        store.write_file(embeddings_key(job.index, unit.key), path)
        return row_groups, path.stat().st_size, file_sha256(path)


def _write_letters(unit: WorkUnit, letters: Sequence[DeadLetter], job: Job, store: Store) -> None:
    if letters:
        store.write(stage_key(job.index, "units", f"{unit.key}.dead.jsonl"), json_lines(letters))
