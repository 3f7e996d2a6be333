"""Judged texts as a test collection in the layout of BEIR: `corpus.jsonl`, `queries.jsonl`, `qrels.tsv`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from scannery.evaluation.judgements import Passage
from scannery.evaluation.traffic.pairs import JudgedText

__all__ = ["CollectionReport", "write_collection"]

PassageT = TypeVar("PassageT", bound=Passage)

BATCH = 1000
"""Hits that are looked up at once."""


@dataclass(frozen=True, kw_only=True)
class CollectionReport:
    """What was written."""

    queries: int
    documents: int
    right: int
    """Pairs of a text and a document that is right for it."""
    reformulated: int
    """Those of them by clicks in answers to later texts alone."""
    wrong: int
    """Pairs of a text and a document that is wrong for it."""
    rejected: int
    """Those of them that a user rejected; the others were passed over only."""
    gone: int
    """Judged hits that the index does not have any more."""


def write_collection(
    judged: Sequence[JudgedText],
    folder: Path,
    lookup: Callable[[Sequence[str]], Sequence[PassageT | None]],
    *,
    passages: bool = False,
) -> CollectionReport:
    """Write judged texts and the documents of their hits into a folder, which is made.

    Args:
        judged: the texts.
        folder: of the three files; earlier ones are replaced.
        lookup: returns datapoints by id, at most 1,000 at once; None for one that is not there.
        passages: whether judgements are about datapoints; otherwise about documents, whose text is that of the judged
            passages.

    """
    points = _looked_up({hit_id for text in judged for hit_id in (*text.right, *text.wrong)}, lookup)
    key = {hit_id: hit_id if passages else point.document_id for hit_id, point in points.items()}
    corpus: dict[str, dict[str, Any]] = {}
    for hit_id, point in sorted(points.items()):
        document = corpus.setdefault(
            key[hit_id], {"_id": key[hit_id], "title": point.title or "", "text": ""}
        )
        document["text"] = f"{document['text']}\n\n{point.text or ''}".strip()
    lines: list[tuple[str, str, int]] = []
    reformulated = rejected = 0
    for text in judged:
        right = {key[hit_id] for hit_id in text.right if hit_id in key}
        wrong = {key[hit_id] for hit_id in text.wrong if hit_id in key} - right
        lines += [(text.query_id, document_id, 1) for document_id in sorted(right)]
        lines += [(text.query_id, document_id, 0) for document_id in sorted(wrong)]
        clicked = text.right.keys() - text.reformulated
        reformulated += len(right - {key[hit_id] for hit_id in clicked if hit_id in key})
        rejected += len(wrong & {key[hit_id] for hit_id in text.rejected if hit_id in key})
    judged_ids = {query_id for query_id, _, _ in lines}
    queries = [
        {"_id": text.query_id, "text": text.text, "askers": text.askers}
        for text in judged
        if text.query_id in judged_ids
    ]
    folder.mkdir(parents=True, exist_ok=True)
    _write_json_lines(folder / "corpus.jsonl", corpus.values())
    _write_json_lines(folder / "queries.jsonl", queries)
    rows = "".join(f"{query_id}\t{document_id}\t{level}\n" for query_id, document_id, level in lines)
    (folder / "qrels.tsv").write_text(f"query-id\tcorpus-id\tscore\n{rows}")
    hits = {hit_id for text in judged for hit_id in (*text.right, *text.wrong)}
    return CollectionReport(
        queries=len(queries),
        documents=len(corpus),
        right=sum(level for _, _, level in lines),
        reformulated=reformulated,
        wrong=sum(not level for _, _, level in lines),
        rejected=rejected,
        gone=len(hits - points.keys()),
    )


def _looked_up(
    hit_ids: set[str], lookup: Callable[[Sequence[str]], Sequence[PassageT | None]]
) -> dict[str, PassageT]:
    ordered = sorted(hit_ids)
    batches = [ordered[start : start + BATCH] for start in range(0, len(ordered), BATCH)]
    return {point.id: point for batch in batches for point in lookup(batch) if point is not None}


def _write_json_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
