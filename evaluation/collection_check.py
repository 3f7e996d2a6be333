"""What is odd in a test collection: queries and judgements that do not fit each other or the index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from scannery.evaluation.judgements import Judgement, Judgements, Query, judgements_of

__all__ = ["CollectionCheck", "check_collection"]

EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class CollectionCheck:
    """Counts of a test collection."""

    judgements: int
    """Pairs of a query and a document that are judged."""
    relevant: int
    """Those with a level above 0."""
    repeated: int
    """Lines for a pair that has an earlier line; the last one counts."""
    contradicting: int
    """Repeated lines with another level than the line before."""
    queries_without_relevant: int
    """Queries that are left out of all measures."""
    unknown_queries: tuple[str, ...]
    """Ids of queries that are judged, and are not in the file of queries."""
    unknown_documents: tuple[str, ...]
    """Ids of documents that are judged, and are not in the index."""
    unknown_relevant: int
    """Relevant pairs whose document is not in the index: no search can find them."""
    same_texts: int
    """Queries with the text of an earlier one; each counts."""

    def warnings(self) -> Iterator[str]:
        """Yield a sentence for each oddity."""
        if self.unknown_documents:
            yield (
                f"{len(self.unknown_documents):,} judged documents are not in the index "
                f"({_examples(self.unknown_documents)}); {self.unknown_relevant:,} of {self.relevant:,} relevant "
                "pairs can therefore not be found"
            )
        if self.unknown_queries:
            ids = _examples(self.unknown_queries)
            yield f"{len(self.unknown_queries):,} judged queries are not in the file of queries ({ids})"
        if self.repeated:
            yield (
                f"{self.repeated:,} judgements repeat a pair of query and document, {self.contradicting:,} with "
                "another level; the last one counts"
            )
        if self.same_texts:
            yield f"{self.same_texts:,} queries have the text of an earlier one; each counts"


def check_collection(
    queries: Mapping[str, Query],
    lines: Sequence[Judgement],
    existing: Callable[[Sequence[str]], Collection[str]],
) -> CollectionCheck:
    """Return what is odd in a test collection.

    Args:
        queries: by id.
        lines: of the file of judgements, in its order.
        existing: returns those of the given document ids that the index has.

    """
    judgements = judgements_of(lines)
    documents = list(dict.fromkeys(line.document_id for line in lines if line.query_id in queries))
    present = set(existing(documents))
    unknown = [name for name in documents if name not in present]
    judged_queries = {name: levels for name, levels in judgements.items() if name in queries}
    relevant = [name for levels in judged_queries.values() for name, level in levels.items() if level > 0]
    texts = [query.text for query in queries.values() if query.text is not None]
    return CollectionCheck(
        judgements=sum(map(len, judgements.values())),
        relevant=len(relevant),
        repeated=len(lines) - sum(map(len, judgements.values())),
        contradicting=_contradicting(lines),
        queries_without_relevant=sum(not _has_relevant(judgements, name) for name in queries),
        unknown_queries=tuple(name for name in judgements if name not in queries),
        unknown_documents=tuple(unknown),
        unknown_relevant=sum(name not in present for name in relevant),
        same_texts=len(texts) - len(set(texts)),
    )


def _has_relevant(judgements: Judgements, query_id: str) -> bool:
    return any(level > 0 for level in judgements.get(query_id, {}).values())


def _contradicting(lines: Sequence[Judgement]) -> int:
    levels: dict[tuple[str, str], int] = {}
    count = 0
    for query_id, document_id, level in lines:
        count += levels.get((query_id, document_id), level) != level
        levels[query_id, document_id] = level
    return count


def _examples(ids: Sequence[str]) -> str:
    more = ", …" if len(ids) > EXAMPLES else ""
    return ", ".join(f"{name:.40}" for name in ids[:EXAMPLES]) + more
