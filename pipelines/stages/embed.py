"""First stage: a work unit becomes an embeddings file, dead letters and counts.

What may be wrong with records that a build accepted: figures for its report, from the counts of its stages.

Which units of a build earlier runs finished: looked up by one listing, not one by one.
"""

from __future__ import annotations

import dataclasses
import difflib
import itertools
import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from scannery.embed import Encoder
from scannery.embed.devices.precision import fastest_dtype
from scannery.embed.models.recommended_models import languages_of_model
from scannery.indexer.errors import AlreadyExistsError
from scannery.indexer.local.files import scratch_folder
from scannery.indexer.models.references import located_model
from scannery.indexer.spec.spec import shards_of_ids
from scannery.indexer.store.object_store import Store
from scannery.pipelines.dead_letters import DeadLetter, count_categories, count_reasons, json_lines
from scannery.pipelines.errors import PipelineError
from scannery.pipelines.records.embeddings_files import WrittenEmbeddings, write_embeddings
from scannery.pipelines.records.id_blocks import IdBlock
from scannery.pipelines.records.passages import Work
from scannery.pipelines.records.source_columns import foreign_texts
from scannery.pipelines.records.unit_rows import UnitRows, embedded_rows, own_rows, with_named
from scannery.pipelines.sources import Fields, read_batches
from scannery.pipelines.sources.dialects import DELIMITERS, Dialect
from scannery.pipelines.state.embedding_cache import (
    CUT_TOKENS_COLUMN,
    Catalogue,
    NamedCatalogue,
    document_list,
    named_list,
)
from scannery.pipelines.state.job import (
    Counts,
    Job,
    UnitOutcome,
    embeddings_key,
    has_size,
    read_unit,
    sealed,
    stage_key,
    write_beside,
)
from scannery.pipelines.state.work_units import WorkUnit
from scannery.runtime.paths import current_folder

__all__ = [
    "embed_unit",
    "find_finished",
    "finished_unit",
    "finished_units",
    "observations",
    "read_outcomes",
]


MAX_IGNORED_NAMES = 100
MAX_OTHER_FIELDS = 100
SAMPLED_TEXTS = 40
"""Texts of a unit whose language is looked at: about 2 ms."""


def finished_unit(unit: WorkUnit, job: Job, store: Store) -> UnitOutcome | None:
    """Return the outcome of a unit that an earlier run finished, or None."""
    outcome = _recorded(unit, job, store)
    if outcome is None:
        return None
    # The same content may be at another position of the input now.
    return dataclasses.replace(
        outcome,
        ordinal=unit.ordinal,
        counts=outcome.counts.without_work(),
        device=None,
        dtype=None,
        hardware_dtype=None,
    )


def embed_unit(
    unit: WorkUnit,
    job: Job,
    store: Store,
    encoders: Mapping[str, Encoder],
    catalogue: Catalogue | None = None,
    named_catalogue: NamedCatalogue | None = None,
) -> UnitOutcome:
    """Read a unit, embed its new documents, write its files, and return its outcome.

    Args:
        unit: the parts of the input.
        job: the build.
        store: of the index.
        encoders: of `IndexSpec.document_encoders`, by the name of their vectors.
        catalogue: of documents embedded before.
        named_catalogue: of texts embedded to named vectors before.

    Raises:
        InputChangedError: a file changed after the build was planned.

    """
    started = time.perf_counter()
    worked = next(iter(encoders.values()), None)
    rows = _rows(unit, job, encoders.get(""), catalogue)
    rows = with_named(rows, job.spec, encoders, named_catalogue)
    made = time.perf_counter()
    shard_N = shards_of_ids(rows.table.column("document_id"), job.shards)
    output = _write_embeddings(unit, rows.table, shard_N, job, store)
    _write_letters(unit, rows.letters, job, store)
    _write_lists(unit, rows, shard_N, job, store)
    outcome = UnitOutcome(
        key=unit.key,
        ordinal=unit.ordinal,
        counts=Counts(
            documents=rows.documents,
            passages=len(rows.table),
            embedded=rows.work.embedded,
            named_embedded=dict(rows.named.embedded) if rows.named else {},
            tokens=sum(work.tokens for work in _works(rows)),
            padding_tokens=sum(work.padding_tokens for work in _works(rows)),
            input_bytes=sum(part.size_bytes for part in unit.parts),
            embeddings_bytes=output.size_bytes,
            dead_letters=count_reasons(rows.letters),
            record_errors=count_categories(rows.letters),
            ignored=_bounded(rows.ignored),
            **_observed(unit, rows, job, encoders.get("")),
            seconds=_seconds(rows, made - started, time.perf_counter() - made),
        ),
        row_groups={shard: number for number, shard in enumerate(output.pieces)},
        pieces=output.pieces,
        sha256=output.sha256,
        device=worked.device if worked else None,
        dtype=worked.dtype if worked else None,
        hardware_dtype=fastest_dtype(worked.device) if worked else None,
    )
    return _record(unit, outcome, job, store)


def _works(rows: UnitRows) -> list[Work]:
    return [rows.work, *([rows.named.work] if rows.named else [])]


def _record(unit: WorkUnit, outcome: UnitOutcome, job: Job, store: Store) -> UnitOutcome:
    """Record the outcome, which marks the unit as done, and return the one by which its rows are read.

    Two workers can make one unit at the same time, and to different bytes. The first record stays, since the other
    worker's shards may read the file that it names.
    """
    marker = stage_key(job.index, "units", f"{unit.key}.json")
    try:
        store.create(marker, sealed(outcome.to_json()))
    except AlreadyExistsError:
        if (earlier := _recorded(unit, job, store)) is not None:
            counts = dataclasses.replace(outcome.counts, embeddings_bytes=earlier.counts.embeddings_bytes)
            return dataclasses.replace(earlier, ordinal=unit.ordinal, counts=counts)
        store.write(marker, sealed(outcome.to_json()))  # the old record is damaged, or its file is missing
    return outcome


def _recorded(unit: WorkUnit, job: Job, store: Store) -> UnitOutcome | None:
    """Return the recorded outcome of a unit whose embeddings file exists with the recorded size, or None."""
    outcome = read_unit(store, job.index, unit.key)
    if outcome is None:
        return None
    key = embeddings_key(job.index, unit.key, outcome.file)
    return outcome if has_size(store, key, outcome.counts.embeddings_bytes) else None


def _observed(unit: WorkUnit, rows: UnitRows, job: Job, encoder: Encoder | None) -> dict[str, Any]:
    """Return the counts that tell of what may be wrong with records that were accepted."""
    cut_N = rows.table.column(CUT_TOKENS_COLUMN).fill_null(0).to_numpy()
    named = job.spec.source.format == "auto"  # the other layouts have fixed names, most of them optional
    observed: dict[str, Any] = {
        "cut_texts": int(np.count_nonzero(cut_N)),
        "cut_tokens": int(cut_N.sum()),
        "fields": dict(rows.field_counts) if named else {},
        "other_fields": dict(rows.unused_fields.most_common(MAX_OTHER_FIELDS)) if named else {},
        "converted": _bounded(rows.converted + _guesses(unit)),
    }
    if encoder is None or not len(rows.table):
        return observed
    texts = rows.table.column("text").take(_spread(len(rows.table)))
    return observed | foreign_texts(texts.to_pylist(), _languages(encoder.fingerprint.model, job.store_uri))


@lru_cache(maxsize=64)
def _languages(model: str, store: str) -> frozenset[str] | None:
    """Return the languages that a model is made for; None: many, or not known."""
    with located_model(model, current_folder(), store) as location:
        return languages_of_model(location)


def _spread(rows: int) -> np.ndarray:
    """Return the numbers of at most `SAMPLED_TEXTS` rows, spread over all of them."""
    return np.unique(np.linspace(0, rows - 1, min(rows, SAMPLED_TEXTS), dtype=np.int64))


def _guesses(unit: WorkUnit) -> Counter[str]:
    """Return how many records were read in an encoding that was guessed."""
    guesses: Counter[str] = Counter()
    for part in unit.parts:
        if part.format in DELIMITERS and (dialect := Dialect.of(part.dialect, part.format)).is_guessed:
            guesses[f"CSV: text that is not UTF-8 as {dialect.encoding}"] += part.records
    return guesses


def _seconds(rows: UnitRows, made_s: float, write_s: float) -> dict[str, float]:
    """Return seconds by stage. Those of `chunk` and `tokenise` are of threads, most of them beside `encode`.

    `wait` is the time in which the device had no texts; `rows` is that of tables, hashes and look-ups.
    """
    times, named = rows.work.times, rows.named and rows.named.work.times
    named_s = named.compute_s + named.wait_s if named else 0.0
    rows_s = made_s - rows.read_s - times.compute_s - times.wait_s - named_s
    stages = {
        "read": rows.read_s,
        "chunk": times.cut_s,
        "tokenise": times.tokenise_s,
        "wait": times.wait_s,
        "encode": times.compute_s,
        **({"encode_named": named_s} if named else {}),
        "rows": max(0.0, rows_s),
        "write": write_s,
    }
    return {name: round(value, 6) for name, value in stages.items()}


def _rows(unit: WorkUnit, job: Job, encoder: Encoder | None, catalogue: Catalogue | None) -> UnitRows:
    fields = Fields.of(job.spec)
    items = itertools.chain.from_iterable(read_batches(part, fields) for part in unit.parts)
    if encoder is None:
        return own_rows(items, job.spec, job.dimensions_by_name)
    return embedded_rows(items, job.spec, job.dimensions_by_name, encoder, catalogue)


def _bounded(counts: Counter[str]) -> dict[str, int]:
    # The names come from the input, and reports are never removed.
    kept = dict(counts.most_common(MAX_IGNORED_NAMES))
    others_count = counts.total() - sum(kept.values())
    return kept | ({"…": others_count} if others_count else {})


def _write_embeddings(
    unit: WorkUnit, table: pa.Table, shard_N: np.ndarray, job: Job, store: Store
) -> WrittenEmbeddings:
    with scratch_folder("embed") as folder:
        path = folder / "embeddings"
        output = write_embeddings(path, table, shard_N=shard_N)
        store.write_file(embeddings_key(job.index, unit.key, output.sha256[:32]), path)
        return output


def _write_lists(unit: WorkUnit, rows: UnitRows, shard_N: np.ndarray, job: Job, store: Store) -> None:
    """Write what later stages and builds look up, so that they need not read the embeddings file."""
    table = rows.table
    if job.shards > 1:
        ids = IdBlock.of_unit(table, shard_N).to_bytes()
        write_beside(store, job.index, unit.key, "ids", ids)
    if job.embeds:
        documents = document_list(table, shard_N, job.dimensions)
        write_beside(store, job.index, unit.key, "documents", documents)
    if rows.named:
        write_beside(store, job.index, unit.key, "named", named_list(rows.named.texts, shard_N))


def _write_letters(unit: WorkUnit, letters: Sequence[DeadLetter], job: Job, store: Store) -> None:
    if letters:
        store.write(stage_key(job.index, "units", f"{unit.key}.dead.jsonl"), json_lines(letters))


MOST_NAMES = 20
LEAST_FOREIGN = 0.05
"""Share of the sampled texts from which on a language is told."""


def observations(counts: Counts, *, uncounted: bool) -> dict[str, Any]:
    """Return the statistics of a version about accepted records.

    Args:
        counts: sums over all units and shards.
        uncounted: whether a unit of an earlier release, which did not count fields, has documents.

    """
    missing = {} if uncounted else _missing_fields(counts)
    return {
        "cut_texts": counts.cut_texts,
        "cut_tokens": counts.cut_tokens,
        "missing_fields": missing,
        "unused_fields": _unused(counts) if missing else [],
        "converted": {name: count for name, count in sorted(counts.converted.items()) if count},
        "sampled_texts": counts.sampled_texts,
        "foreign_texts": {
            language: count
            for language, count in sorted(counts.foreign_texts.items(), key=lambda item: -item[1])
            if count >= LEAST_FOREIGN * counts.sampled_texts
        },
    }


def _missing_fields(counts: Counts) -> dict[str, list[str]]:
    """Return the fields of the spec that no record had, each with similar names that records have."""
    missing = [name for name, count in counts.fields.items() if not count]
    return {name: _near(name, counts.other_fields) for name in missing}


def _near(name: str, names: Mapping[str, int]) -> list[str]:
    lower = {candidate.lower(): candidate for candidate in names}
    return [lower[near] for near in difflib.get_close_matches(name.lower(), lower, n=2, cutoff=0.6)]


def _unused(counts: Counts) -> list[str]:
    return sorted(counts.other_fields, key=lambda name: (-counts.other_fields[name], name))[:MOST_NAMES]


FoundT = TypeVar("FoundT")

FEW_UNITS = 32
"""Up to this number each is looked up: the index may have many other units, and a listing has all of them."""

READERS = 16
"""Requests at once to a bucket; threads that read small local files only wait for each other."""


def finished_units(units: Sequence[WorkUnit], job: Job, store: Store) -> list[UnitOutcome] | None:
    """Return the outcomes of all units, in their order; None if one is not finished."""
    if len(units) > FEW_UNITS and not _listed(job, store).issuperset(unit.key for unit in units):
        return None
    outcomes: list[UnitOutcome] = []
    for start in range(0, len(units), FEW_UNITS * READERS):
        some = units[start : start + FEW_UNITS * READERS]
        results = _looked_up(some, store, lambda unit: finished_unit(unit, job, store))
        outcomes += (outcome for outcome in results if outcome is not None)
        if len(outcomes) < start + len(some):
            return None
    return outcomes


def find_finished(units: Sequence[WorkUnit], job: Job, store: Store) -> list[UnitOutcome]:
    """Return the outcomes of those units that are finished."""
    if len(units) > FEW_UNITS:
        listed = _listed(job, store)
        units = [unit for unit in units if unit.key in listed]
    results = _looked_up(units, store, lambda unit: finished_unit(unit, job, store))
    return [outcome for outcome in results if outcome is not None]


def read_outcomes(
    units: Sequence[WorkUnit], job: Job, store: Store, *, before: Container[str]
) -> list[UnitOutcome]:
    """Return the outcomes of all units of a run; those `before`, which it found finished, without their work.

    Raises:
        PipelineError: the record of a unit is missing.

    """

    def outcome(unit: WorkUnit) -> UnitOutcome:
        outcome = (
            finished_unit(unit, job, store) if unit.key in before else read_unit(store, job.index, unit.key)
        )
        if outcome is None:
            raise PipelineError(f"the record of work unit {unit.key} is missing; run the build again")
        return dataclasses.replace(outcome, ordinal=unit.ordinal)

    return _looked_up(units, store, outcome)


def _looked_up(
    units: Sequence[WorkUnit], store: Store, look_up: Callable[[WorkUnit], FoundT]
) -> list[FoundT]:
    with ThreadPoolExecutor(READERS if store.local_root is None else 1) as pool:
        return list(pool.map(look_up, units))


def _listed(job: Job, store: Store) -> set[str]:
    """Return the keys of the units that have a record."""
    paths = (PurePosixPath(item.key) for item in store.list(f"{job.index}/stage/units"))
    return {path.stem for path in paths if path.suffix == ".json"}
