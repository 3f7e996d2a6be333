"""Output of `scannery index show`: facts, segments, recall against cost, and the build of a version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime, timezone
from itertools import chain
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scannery.cli.options import given_log_root
from scannery.cli.output import map_text, size_text
from scannery.client.response.notebook import vectors_text
from scannery.indexer import CurvePoint, IndexSpec, LexicalSpec, Manifest, SegmentEntry, Store, StoreError
from scannery.indexer.manifest import ConfigTrial, Relevance
from scannery.indexer.tuning.settings_choice import named_recalls, pick_point
from scannery.live.log.location import LogRoot

__all__ = ["documents_of", "print_version", "time_text", "unsealed_batches"]


def print_version(console: Console, store: Store, manifest: Manifest, *, current: bool) -> None:
    """Print a version, and for the current one the number of unsealed mutations in the log."""
    _print_rows(console, chain(_facts(manifest), _named_recalls(manifest)))
    if current:
        _print_live(console, store, manifest)
    console.print(_segments(manifest))
    _print_rows(console, _memory_facts(manifest))
    _print_curve(console, manifest)
    _print_rows(console, _build_facts(manifest.statistics))


def documents_of(manifest: Manifest) -> tuple[int, bool] | None:
    """Return the number of documents of a version, and whether it is exact; None if segments have no counts.

    A document is in one shard. If a shard has several segments, passages of one document may be in two of them, so the
    sum may be too large.
    """
    counts = [entry.documents for entry in manifest.segments]
    exact = [count for count in counts if count is not None]
    if len(exact) < len(counts):
        return None
    segments = Counter(entry.shard for entry in manifest.segments)
    whole = all(entry.documents == entry.live_rows for entry in manifest.segments)
    return sum(exact), whole or all(count == 1 for count in segments.values())


def unsealed_batches(store: Store, manifest: Manifest, log_root: LogRoot | None = None) -> int | None:
    """Return the number of batches in the log that are not in the version; None if the log is not here."""
    # Importing this takes as long as importing a server.
    from scannery.live.log.mutation_log import WrongLogError
    from scannery.live.maintenance.lag import log_status

    try:
        status = log_status(store, manifest, log_root=log_root)
    except (StoreError, WrongLogError):
        return None
    return None if status is None else status.mutations


def time_text(time: datetime) -> str:
    """Return a time as text, in UTC."""
    return time.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")


def _attributes(spec: IndexSpec) -> str:
    names = [f"{name}: {kind}" for name, kind in spec.attributes.items()]
    return ", ".join(names + (["others (dynamic)"] if spec.dynamic else [])) or "none"


def _facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    encoder = manifest.spec.encoder
    yield "index", f"{manifest.index}, version {manifest.version}, made {time_text(manifest.created_at)}"
    if manifest.index_id:
        yield "id", manifest.index_id
    yield "documents", _documents_text(manifest)
    yield "datapoints", f"{manifest.rows:,} in {manifest.shards} shard(s), {size_text(manifest.size_bytes)}"
    yield "vectors", _vectors_text(manifest)
    without = "none: the source has vectors" if manifest.dimensions else "none"
    yield "encoder", f"{escape(encoder.model)}{_digest_text(manifest.encoder)}" if encoder else without
    if encoder and encoder.query_model:
        yield "queries", f"{escape(encoder.query_model)}{_digest_text(manifest.query_encoder)}"
    if manifest.spec.vector_model:
        yield "vector model", escape(manifest.spec.vector_model)
    for name in manifest.named_vectors:
        yield f"vectors {name}", escape(_named_text(manifest, name))
    for each in manifest.vector_maps:
        loss = map_text(each.source.name, each.target.name, each.overlap, each.ndcg, each.source_ndcg)
        yield "map", escape(loss)
    yield "attributes", _attributes(manifest.spec)
    if manifest.spec.lexical:
        yield "words", _words_text(manifest.spec.lexical)
        yield "search", _search_text(manifest)
    if (ranker := manifest.ranker) is not None:
        yield "order", f"{ranker.model}, fitted to {ranker.queries:,} judged queries"
    if manifest.relevance is not None:
        yield "relevance", _relevance_text(manifest.relevance)
    recall = manifest.recall
    if recall is None or not manifest.dimensions:
        return
    note = "" if recall.reached else " [yellow](searched exactly where no setting reaches it)[/yellow]"
    yield "recall", f"recall@{recall.k} {recall.measured:.3f}, target {recall.target}{note}"
    if recall.whole is not None and recall.whole_queries:
        text = f"recall@{recall.k} {recall.whole:.3f} over all segments, with {recall.whole_queries} queries"
        yield "measured", text
    if recall.given_queries:
        yield "tuned for", f"given queries, {recall.given_queries}"


def _digest_text(fingerprint: Mapping[str, Any] | None) -> str:
    digest = (fingerprint or {}).get("digest")
    return f", digest {digest[:12]}" if digest else ""


def _named_recalls(manifest: Manifest) -> Iterator[tuple[str, str]]:
    for name, recall in named_recalls(manifest).items():
        note = "" if recall.reached else " [yellow](searched exactly where no setting reaches it)[/yellow]"
        yield f"recall {name}", f"recall@{recall.k} {recall.measured:.3f}, target {recall.target}{note}"


def _named_text(manifest: Manifest, name: str) -> str:
    spec, vectors = manifest.spec.named_vectors[name], manifest.of_vectors(name)
    rows = sum(entry.rows for entry in vectors.segments)
    model, field = spec.encoder.model if spec.encoder else None, manifest.spec.text_field(name)
    text = vectors_text(vectors.dimensions, spec.distance, rows, model=model, field=field)
    query_model = spec.encoder.query_model if spec.encoder else None
    return f"{text}; queries by {query_model}" if query_model else text


def _vectors_text(manifest: Manifest) -> str:
    if not manifest.dimensions:
        return "none"
    without = sum(entry.live_rows for entry in manifest.segments if not entry.vectors)
    note = f"; {without:,} datapoints without one" if without else ""
    return f"{manifest.dimensions} dimensions, {manifest.spec.distance}{note}"


def _words_text(lexical: LexicalSpec) -> str:
    """Return what a datapoint is scored by, and how words are analysed."""
    whose = "of passages and of their whole documents" if lexical.counts_documents else "of each datapoint"
    return f"{whose}; language {lexical.language}, analyser {lexical.version}"


def _search_text(manifest: Manifest) -> str:
    """Return the default mode of searches by text, and where the weight of dense search comes from."""
    search, weight = manifest.spec.search, manifest.fusion
    mode = search.mode or ("hybrid" if manifest.spec.encoder else "lexical")
    if mode != "hybrid":
        return mode
    if search.alpha is not None:
        return f"hybrid by {search.fusion}, alpha {search.alpha:g} (from the spec)"
    if weight is None or search.fusion != "weighted_score":
        return f"hybrid by {search.fusion}, alpha 0.5"
    return (
        f"hybrid by weighted_score, alpha {weight.alpha:g}, measured with {weight.questions} questions made from "
        f"passages: nDCG@10 {weight.hybrid:.3f}, dense {weight.dense:.3f}, lexical {weight.lexical:.3f}"
    )


def _relevance_text(relevance: Relevance) -> str:
    """Return the score of each curve that has a probability of one half, and how far the curves are from the truth."""
    if not relevance.foreign_questions:
        return "none: too few passages are long enough to make questions of"
    curves = [
        f"{key} 50 % at {'a share' if key == 'lexical' else 'a score'} of {-curve.intercept / curve.slope:.3g} "
        f"(error {curve.error:.3f}, separation {curve.separation:.3f}{_other_questions(relevance, key)})"
        for key, curve in relevance.all_curves.items()
    ]
    kind = "judged questions" if relevance.source == "judgements" else "questions made from passages"
    questions = f"{relevance.questions} {kind} and {relevance.foreign_questions} foreign ones"
    return f"{'; '.join(curves) or 'none: no score tells answers from other hits'}; measured with {questions}"


def _other_questions(relevance: Relevance, key: str) -> str:
    """Return how many questions a curve was fitted to, if these are others than those of the modes."""
    each = relevance.models.get(key)
    counts = (relevance.questions, relevance.foreign_questions)
    if each is None or (each.questions, each.foreign_questions) == counts:
        return ""
    return f", {each.questions} and {each.foreign_questions} questions"


def _documents_text(manifest: Manifest) -> str:
    documents = documents_of(manifest)
    if documents is None:
        return "not counted"
    count, exact = documents
    return f"{count:,}" if exact else f"at most {count:,}: some may be in several segments"


def _print_live(console: Console, store: Store, manifest: Manifest) -> None:
    # Importing this takes as long as importing a server.
    from scannery.live.log.mutation_log import WrongLogError
    from scannery.live.maintenance.lag import log_status

    try:
        status = log_status(store, manifest, log_root=given_log_root(""))
    except (WrongLogError, StoreError) as error:  # the log is elsewhere; the version can still be shown
        console.print(f"live updates: [red]{escape(error.message)}[/red]")
        return
    if status is not None:
        software = f", written by {status.written_by}" if status.written_by else ""
        console.print(
            f"live updates: {status.mutations:,} mutations, up to {status.sequence:,}, in the log are not sealed "
            f"({size_text(status.size_bytes)}{software}); {status.merges} merge(s) due",
            soft_wrap=True,
        )


def _segments(manifest: Manifest) -> Table:
    table = Table("shard", "segment", "kind", "documents", "datapoints", "deleted", "size")
    for entry in manifest.segments:
        documents = "" if entry.documents is None else f"{entry.documents:,}"
        deleted = f"{entry.deleted.rows:,}" if entry.deleted else ""
        counts = (documents, f"{entry.live_rows:,}", deleted)
        table.add_row(str(entry.shard), entry.sha256[:12], entry.kind, *counts, size_text(entry.size_bytes))
    return table


def _memory_facts(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield bytes a row by component; nothing if the local cache lacks a segment: only its files tell."""
    from scannery.indexer import cached_memory  # imports ScaNN's modules

    memory = cached_memory(manifest)
    if not memory or not manifest.rows:
        return
    for label, sizes in (
        ("needed memory", {name: size.needed for name, size in memory.items()}),
        ("mapped files", {name: size.mapped for name, size in memory.items()}),
    ):
        parts = [f"{name} {size / manifest.rows:,.1f}" for name, size in sizes.items() if size]
        total = sum(sizes.values())
        yield label, f"{size_text(total)}; bytes a row: {', '.join(parts) or 'none'}"


def _print_curve(console: Console, manifest: Manifest) -> None:
    """Print the curve of the largest segment, since others differ little; --json and --plot show all."""
    curves = [entry for entry in manifest.segments if entry.curve]
    if not curves:
        return
    largest = max(curves, key=lambda entry: entry.rows)
    target = manifest.spec.target_recall
    console.print(_curve(largest, target))
    if largest.trial:
        console.print(_trial(largest.trial))
    if largest.depth_curves and pick_point(largest.curve, target)[1]:
        console.print(_other_hits(largest, target))


def _curve(entry: SegmentEntry, target: float) -> Table:
    default, reached = pick_point(entry.curve, target)
    note = "" if reached else f"; none reaches {target}: searched exactly"
    title = f"segment {entry.sha256[:12]}: recall@10 against cost{note}"
    kinds = list(entry.curve[0].recalls)
    heads = ("leaves", "candidates", "recall", "µs a query", *kinds)
    table = Table(*heads, "", title=title, title_justify="left")
    for point in entry.curve:
        mark = "default" if reached and point is default else ""
        recalls = (f"{point.recalls[kind]:.4f}" if kind in point.recalls else "" for kind in kinds)
        table.add_row(*_point(point), *recalls, mark)
    return table


def _trial(trial: ConfigTrial) -> Table:
    """Return the ScaNN configurations that were tried on a sample."""
    query_counts = ", ".join(f"{count:,} {name}" for name, count in trial.queries.items())
    title = f"ScaNN's parameters, tried on {trial.rows:,} rows for recall {trial.target:g} with queries: {query_counts}"
    heads = (
        "leaves",
        "soar",
        "dimensions per block",
        "threshold",
        "leaves searched",
        "candidates",
        "µs a query",
    )
    table = Table(*heads, "", title=title, title_justify="left")
    for result in trial.tried:
        threshold = "" if result.anisotropic_threshold is None else f"{result.anisotropic_threshold:g}"
        took = f"recall {result.recall:.3f}" if result.query_us is None else f"{result.query_us:,.0f}"
        what = (
            f"{result.leaves:,}",
            "yes" if result.soar else "no",
            str(result.dimensions_per_block),
            threshold,
        )
        table.add_row(
            *what, f"{result.searched:,}", f"{result.rescore:,}", took, "chosen" if result.chosen else ""
        )
    return table


def _other_hits(entry: SegmentEntry, target: float) -> Table:
    """Return the default settings for other numbers of hits."""
    title = "the same for other numbers of hits"
    table = Table("hits", "leaves", "candidates", "recall", "µs a query", title=title, title_justify="left")
    for depth in entry.depth_curves:
        point, reached = pick_point(depth.curve, target)
        cells = _point(point) if reached else ("all", "all", "1: searched exactly", "")
        table.add_row(f"{depth.k:,}", *cells)
    return table


def _point(point: CurvePoint) -> tuple[str, str, str, str]:
    recall = f"{point.recall:.4f} ± {point.error:.4f}"
    return f"{point.leaves:,}", f"{point.rescore:,}", recall, f"{point.query_us:,.0f}"


def _build_facts(statistics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield facts about the build from the manifest; `statistics` is free form, so any key may be missing."""
    if origin := statistics.get("branch"):
        yield "branch of", f"{origin['index']}, version {origin['version']}"
    if "mode" in statistics:
        yield "made by", _made_by(statistics)
    if statistics.get("embedded"):
        rate = statistics.get("passages_per_s")
        speed = f" at {rate:,.0f}/s" if rate else ""
        yield "embedded", f"{statistics['embedded']:,}{speed} on {statistics.get('device')}"
    if statistics.get("dead_letters"):
        reasons = statistics["dead_letters"].items()
        yield "refused", ", ".join(f"{count:,} {reason}" for reason, count in reasons)
    if seconds := statistics.get("seconds"):
        stages = [f"{name} {value:.1f} s" for name, value in seconds.items() if value >= 0.05]
        yield "time", ", ".join(stages) or "none"
    for segment in statistics.get("segments", ()):
        if scann := segment.get("scann"):
            parameters = ", ".join(f"{name} {value}" for name, value in scann.items() if value is not None)
            yield f"shard {segment.get('shard')}", f"ScaNN with {parameters}"


_MADE_BY = {
    "create": "create_index, without datapoints",
    "alter": "alter, of the version before",
    "calibrate": "calibrate, of the version before",
    "map": "maps between vectors of two models, over the version before",
    "rank": "a model that orders hits, over the version before",
    "compact": "compaction",
    "replace": "contents that replaced all datapoints (isCompleteOverwrite)",
}


def _made_by(statistics: Mapping[str, Any]) -> str:
    if statistics["mode"] == "live":
        return f"live updates: {statistics.get('mutations', 0):,} mutations sealed"
    if statistics["mode"] == "merge":
        return f"live updates: {statistics.get('merged', 0):,} segments merged"
    if statistics["mode"] == "rollback":
        return f"a rollback to version {statistics.get('content_of')}"
    if label := _MADE_BY.get(statistics["mode"]):
        return label
    changes = ("added", "replaced", "removed", "unchanged")
    done = [f"{statistics[name]:,} {name}" for name in changes if statistics.get(name)]
    documents = f"{statistics.get('documents', 0):,} documents read"
    return f"a build, {statistics['mode']}: " + ", ".join([documents, *done])


def _print_rows(console: Console, rows: Iterator[tuple[str, str]]) -> None:
    grid = Table.grid(padding=(0, 2))
    for label, text in rows:
        grid.add_row(f"[bold]{label}[/bold]", text)
    console.print(grid)
