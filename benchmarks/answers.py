"""What context and diversity do for a reader of hits, on judged collections.

    python -m benchmarks.answers [--folder FOLDER] [--questions 200] [xquad | podcasts | diversity ...]

*Context*: questions of XQuAD-R and of speakers in podcasts, whose answering sentence is known (`benchmarks.questions`).
The documents are paragraphs and whole episodes, cut by the build. A question counts where the whole sentence is in the
contexts of one answer within a budget of tokens: of hits alone, and of hits with the passages around them.

*Diversity*: nDCG@10 beside two measures of breadth, at several values of `diversity` and with a quota. Each relevant
passage has one subtopic. Cranfield and CISI, cut: the passages of judged documents, and their document as the subtopic.
XQuAD-R: titles of articles as queries, their passages, and the paragraph as the subtopic.

*Alpha-nDCG@10* (Clarke et al. 2008, alpha 0.5): each further hit of a subtopic is worth half of the one before.
*Subtopic recall@10*: subtopics among the first ten hits, as a share of those that ten hits can have.

Nothing is tuned on the judgements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import numpy as np

import scannery
from benchmarks.collections import Collection, cisi, cranfield, xquad_articles
from benchmarks.harness import MINILM, environment, folder_of, options, table
from benchmarks.quality import difference
from benchmarks.questions import Answered, Question, podcasts, xquad
from scannery.evaluation.measures import MAIN_MEASURE, measured_values, parse_measures
from scannery.pipelines import build

__all__ = ["main"]

Mode = Literal["dense", "hybrid"]
MODES: tuple[Mode, ...] = ("dense", "hybrid")
MAX_TOKENS = (128, 48)
"""Lengths of passages: some sentences, and one or two."""
BUDGETS = (500, 1500)
CONTEXTS = (0, 1, 2, 3)
BUDGETED_HITS = 50
"""Hits of a search with a budget: more than it has room for."""
K, ALPHA = 10, 0.5
DIVERSITIES = (0.0, 0.1, 0.2, 0.3, 0.5)


@dataclass(frozen=True)
class Topics:
    """Documents by id, and queries whose relevant passages have subtopics."""

    name: str
    documents: Mapping[str, str]
    max_tokens: int
    """Length of passages."""
    queries: Mapping[str, str]
    subtopics: Mapping[str, Sequence[str]]
    """Documents that are the subtopics of a query; all their passages are relevant."""


def main() -> None:
    cases = {"xquad": _xquad, "podcasts": _podcasts, "diversity": _diversity}
    given = options(__doc__, cases=cases, folder=Path, questions=200)
    print(environment("sentence-transformers", "torch", "scann"), flush=True)
    with folder_of(given.folder) as folder:
        for name in given.cases:
            print(f"## {name}\n", flush=True)
            cases[name](folder / name, given.questions)


# --- context


def _xquad(folder: Path, count: int) -> None:
    _report_context(folder, xquad(), count)


def _podcasts(folder: Path, count: int) -> None:
    for name, has_questions in (("as said", True), ("without the questions", False)):
        print(f"### {name}\n")
        _report_context(folder / name.replace(" ", "-"), podcasts(has_questions=has_questions), count)


def _report_context(folder: Path, answered: Answered, count: int) -> None:
    questions = answered.questions[:: max(1, len(answered.questions) // count)][:count]
    print(f"{len(questions)} questions, {len(answered.documents)} documents\n")
    rows = []
    for max_tokens in MAX_TOKENS:
        index = _indexed(folder / f"context-{max_tokens}", answered.documents, max_tokens)
        for mode in MODES:
            for budget in BUDGETS:
                shares = [_answered_share(index, questions, mode, context, budget) for context in CONTEXTS]
                rows.append([max_tokens, index.count(), mode, budget, *(f"{share:.3f}" for share in shares)])
    contexts = [f"context={each}" for each in CONTEXTS[1:]]
    print(table(["passages to", "passages", "mode", "budget", "hits alone", *contexts], rows), flush=True)


def _answered_share(
    index: scannery.Index, questions: Sequence[Question], mode: Mode, context: int, budget: int
) -> float:
    return mean(
        has_answer(
            index.search(question.text, BUDGETED_HITS, mode=mode, context=context, token_budget=budget),
            question,
        )
        for question in questions
    )


def has_answer(hits: Sequence[scannery.Hit], question: Question) -> bool:
    """Return whether the context of one hit has the whole sentence."""
    contexts = [hit.context for hit in hits if hit.document_id == question.document]
    return any(
        context is not None
        and context.start is not None
        and context.end is not None
        and context.start <= question.start
        and question.end <= context.end
        for context in contexts
    )


# --- diversity


def _diversity(folder: Path, _: int) -> None:
    searches: dict[str, dict[str, Any]] = {f"diversity {each:g}": {"diversity": each} for each in DIVERSITIES}
    searches["2 of a document"] = {"max_per_group": 2}
    rows = []
    for topics in (_judged(cranfield()), _judged(cisi()), _articles()):
        index = _indexed(folder / topics.name, topics.documents, topics.max_tokens)
        passages = _passages_of(index)
        for mode in MODES:
            values = {
                name: _measured(index, topics, passages, mode, search) for name, search in searches.items()
            }
            base = next(iter(values.values()))
            for name, (ndcg_Q, *breadth) in values.items():
                loss = "" if ndcg_Q is base[0] else difference(ndcg_Q, base[0])
                shown = [f"{each_Q.mean():.3f}" for each_Q in (ndcg_Q, *breadth)]
                rows.append([topics.name, mode, name, shown[0], loss, *shown[1:]])
    header = ["collection", "mode", "", "nDCG@10", "beside 0", "alpha-nDCG@10", "subtopic recall@10"]
    print(table(header, rows))


def _judged(collection: Collection) -> Topics:
    judged = {
        query: [name for name, level in levels.items() if level > 0]
        for query, levels in collection.judgements.items()
    }
    documents = {name: text for name, _, text in collection.documents}
    queries = {query: collection.queries[query] for query in judged}
    return Topics(collection.name, documents, 64, queries, judged)


def _articles() -> Topics:
    documents, queries, subtopics = dict[str, str](), dict[str, str](), dict[str, list[str]]()
    for title, paragraphs in xquad_articles("en"):
        queries[title] = title.replace("_", " ")
        subtopics[title] = [f"{title}-{number}" for number in range(len(paragraphs))]
        texts = (paragraph["context"] for paragraph in paragraphs)
        documents |= dict(zip(subtopics[title], texts, strict=True))
    return Topics("XQuAD-R articles", documents, 48, queries, subtopics)


def _measured(
    index: scannery.Index,
    topics: Topics,
    passages: Mapping[str, Sequence[str]],
    mode: Mode,
    search: Mapping[str, Any],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return nDCG, alpha-nDCG and subtopic recall of the first K hits of each query, float64 (Q,)."""
    answers = index.search_many(list(topics.queries.values()), K, mode=mode, fields=["document_id"], **search)
    sizes = [
        {name: len(passages[name]) for name in topics.subtopics[query] if name in passages}
        for query in topics.queries
    ]
    judged = {
        query: {passage: 1 for name in of_query for passage in passages[name]}
        for query, of_query in zip(topics.queries, sizes, strict=True)
    }
    rankings = [[hit.id for hit in hits] for hits in answers]
    documents = [[hit.document_id for hit in hits] for hits in answers]
    pairs = list(zip(documents, sizes, strict=True))
    return (
        measured_values(parse_measures([MAIN_MEASURE]), judged, rankings)[MAIN_MEASURE],
        np.array([alpha_ndcg(names, of_query) for names, of_query in pairs]),
        np.array([len({*names} & {*of_query}) / min(K, len(of_query)) for names, of_query in pairs]),
    )


def alpha_ndcg(ranking: Sequence[str], sizes: Mapping[str, int]) -> float:
    """Return the alpha-nDCG of K hits, 0 to 1.

    Args:
        ranking: subtopic of each hit, best first; one that `sizes` lacks is that of no relevant hit.
        sizes: number of relevant passages by subtopic, at least one.

    """
    seen: Counter[str] = Counter()
    gains = []
    for subtopic in ranking[:K]:
        gains.append((1 - ALPHA) ** seen[subtopic] if subtopic in sizes else 0.0)
        seen[subtopic] += 1
    # A passage has one subtopic, so the greatest gains first are an ideal order.
    ideal = sorted(((1 - ALPHA) ** rank for size in sizes.values() for rank in range(size)), reverse=True)
    return _discounted(gains) / _discounted(ideal[:K])


def _discounted(gains: Sequence[float]) -> float:
    return float(np.sum(np.array(gains) / np.log2(np.arange(len(gains)) + 2)))


# --- indexes


def _indexed(folder: Path, documents: Mapping[str, str], max_tokens: int) -> scannery.Index:
    """Return an index of documents that are cut, with MiniLM, which is kept for the next run."""
    store = folder / "store"
    if not store.exists():
        source = {"id": "id", "text": "text", "chunk": {"max_tokens": max_tokens, "overlap_tokens": 0}}
        spec = {"index": "answers", "source": source, "encoder": {"model": MINILM}, "lexical": True}
        folder.mkdir(parents=True, exist_ok=True)
        Collection("answers", tuple((name, "", text) for name, text in documents.items()), {}, {}).write(
            folder
        )
        build(spec, [str(folder / "corpus.jsonl")], str(store), mode="full")
    return scannery.connect(store, timeout_s=900).index("answers")


def _passages_of(index: scannery.Index) -> dict[str, list[str]]:
    """Return the ids of the passages of each document."""
    passages: dict[str, list[str]] = {}
    for row in index.scan(fields=["document_id"]):
        passages.setdefault(row.document_id, []).append(row.id)
    return passages


if __name__ == "__main__":
    main()
