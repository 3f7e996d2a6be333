"""Retrieval quality on judged collections.

    python -m benchmarks.quality [modes] [fusion] [lexical] [code] [transcripts] [named] [headings] [snippets]
        [phrases] [relevance]
        [--on cranfield,cisi,…] [--encoder '{"model": "FOLDER", …}'] [--reranker FOLDER] [--languages de,zh]
        [--dictionary FILE]
        [--shows 500] [--every 1]

`modes`: dense, lexical and hybrid search, in one shard and in eight, against a reference BM25 (bm25s: Lucene's variant
with the same constants, over the same terms). `fusion`: hybrid search by default against dense search, lexical search
and other fusions. `lexical`: versions of the analyser, questions typed without accents, and split compounds, on
XQuAD-R. `code`: what the additional terms of analyser 4 change. `transcripts`: collections as WebVTT, five words a cue,
against plain text. `named`: vectors of titles, bodies and both. `headings`: Markdown cut at its headings against
tokens alone; questions are the titles of shows and seven words from the middle of a line. `snippets`: how often the
sentence that is highlighted has the answer. `phrases`: the questions that have quotes, without these, with the phrase
required, and as they are searched. `relevance`: the probability that hits have, against judgements, and questions of
other collections, which no document answers; also by vectors of titles, where a collection has these, and reranked by
`--reranker`, if one is given (benchmarks/cross_encoder.py trains one, on StackFAQ). `--encoder` is that of the spec for
`fusion` and `relevance`, in place of MiniLM. `--on` names collections, where a case can be asked of several.

Nothing is tuned on the judgements.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import random
import re
import shutil
import time
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

import scannery
from benchmarks.collections import (
    COLLECTIONS,
    LANGUAGES,
    MORE_COLLECTIONS,
    Collection,
    podcast_speech,
    xquad_paragraphs,
    xquad_r,
)
from benchmarks.data import archived
from benchmarks.harness import MINILM, run_cases, shared_data, table
from scannery.embed.text.markdown import front_matter_end
from scannery.embed.text.sentences import sentences_of
from scannery.evaluation.calibration import calibrated, measured_searches, odds_samples
from scannery.evaluation.evaluate import Evaluation, evaluate
from scannery.evaluation.measures import (
    MAIN_MEASURE,
    interval_of,
    measured_values,
    paired_bootstrap,
    parse_measures,
)
from scannery.indexer import (
    Analyser,
    LexicalSpec,
    Postings,
    Store,
    corpus_statistics,
    read_manifest,
    score_rows,
)
from scannery.indexer.lexical import best_rows
from scannery.indexer.lexical.bm25 import invert, term_columns
from scannery.indexer.manifest import RERANK
from scannery.pipelines import build
from scannery.pipelines.planning.build_plan import learned_compounds
from scannery.pipelines.sources.documents.text_documents import front_matter
from scannery.pipelines.tuning.relevance_curves import calibration_error, separation

HITS = 100
MEASURES = parse_measures(["nDCG@10", "MRR@10", f"recall@{HITS}"])
Search = Callable[[Sequence[str]], Sequence[Sequence[str]]]
Terms = Callable[[str], list[str]]


def indexed(
    folder: Path, records: Iterable[Mapping[str, str]], spec: Mapping[str, Any], mode: str = "full"
) -> scannery.Index:
    """Build an index of records, with MiniLM unless the spec has an encoder, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "corpus.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    whole = {"index": "quality", "encoder": {"model": MINILM}, **spec}
    build(whole, [str(folder / "corpus.jsonl")], str(folder / "store"), mode=mode)
    return scannery.connect(folder / "store", timeout_s=900).index("quality")


def records_of(collection: Collection) -> Iterator[dict[str, str]]:
    return ({"id": name, "title": title, "text": text} for name, title, text in collection.documents)


WHOLE = {"id": "id", "title": "title", "text": "text"}
PASSAGES = {"title": "title", "text": "text", "chunk": {"max_tokens": 128, "overlap_tokens": 16}}


# --- relevance

FOREIGN = ("cranfield", "cisi", "stackfaq", "xquad-en")
FOREIGN_QUESTIONS = 100
"""Questions of each of these."""
RERANKED_QUESTIONS = 60
"""Questions of the collection, and foreign ones, whose hits are reranked."""
THRESHOLD = 0.3


def relevance(given: argparse.Namespace, folder: Path) -> None:
    rows = []
    for name, collection in chosen_of(given, MORE_COLLECTIONS):
        spec = {"encoder": {"model": MINILM}, **spec_of(given, name)}
        if any(title for _, title, _ in collection.documents):
            spec["named_vectors"] = {"title": {"encoder": spec["encoder"]}}
        if given.reranker:
            spec["reranker"] = {"model": given.reranker, "max_tokens": 256}
        index = indexed(folder / name, records_of(collection), spec)
        manifest = read_manifest(Store.open(folder / name / "store"), "quality")
        judged = list(collection.judgements)
        relevant = [
            {key for key, level in collection.judgements[query].items() if level > 0} for query in judged
        ]
        texts, foreign = [collection.queries[query] for query in judged], questions_of_others(name)
        assert manifest.relevance is not None
        for key, search in measured_searches(manifest).items():
            curve = manifest.relevance.all_curves[key]
            some = partial(evenly, count=RERANKED_QUESTIONS if key == RERANK else len(texts) + len(foreign))
            about, others = (relevances(index, some(each), search) for each in (texts, foreign))
            right = some(relevant)
            answers = [[name in names for name, _ in hits] for hits, names in zip(about, right, strict=True)]
            by_people, by_nobody = {key: odds_samples(about, right)}, {key: odds_samples(others)}
            fitted = calibrated(manifest.relevance, by_people, by_nobody).all_curves.get(key)
            rows.append([
                collection.name, key, f"{curve.error:.3f}", *calibration_of(about, answers, others),
                "none" if fitted is None else f"{fitted.error:.3f}",
            ])  # fmt: skip
            print(*rows[-1], sep=" · ", flush=True)
    header = [
        "", "scores", "error on the build's questions", "error", "of first hits", "separation",
        f"precision from {THRESHOLD:g}", "answered", "foreign ones answered",
        "error if fitted to judgements",
    ]  # fmt: skip
    print("\n" + table(header, rows))


def evenly(values: Sequence[Any], count: int) -> Sequence[Any]:
    """Return at most some of the values, from everywhere among them."""
    return values[:: max(1, len(values) // count)][:count]


def questions_of_others(name: str) -> list[str]:
    """Return questions of other collections in English, the same in each run."""
    generator, chosen = random.Random(5), []
    for other in FOREIGN:
        if other != name:
            collection = MORE_COLLECTIONS[other]()
            questions = [collection.queries[query] for query in collection.judgements]
            chosen += generator.sample(questions, min(FOREIGN_QUESTIONS, len(questions)))
    return chosen


def relevances(
    index: scannery.Index, texts: Sequence[str], search: Mapping[str, Any]
) -> list[list[tuple[str, float]]]:
    """Return id and relevance of the ten best hits of each question, by a search with some options."""
    parts = (list(texts[start : start + 500]) for start in range(0, len(texts), 500))
    return [
        [(hit.id, hit.relevance or 0.0) for hit in hits]
        for part in parts
        for hits in index.search_many(part, 10, fields=["title"], **search)
    ]


Judged = Sequence[Sequence[tuple[str, float]]]


def calibration_of(about: Judged, answers: Sequence[Sequence[bool]], foreign: Judged) -> list[str]:
    """Return the errors of all hits and of first ones, the separation, and what a threshold gives.

    Questions of the collection and foreign ones count the same.
    """

    def of_first(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        own, others = ([p for hits in some for _, p in hits[:count]] for some in (about, foreign))
        flags = [flag for each in answers for flag in each[:count]]
        weights = [1.0] * len(own) + [len(about) / len(foreign)] * len(others)
        return np.array(own + others), np.array(flags + [False] * len(others)), np.array(weights)

    probabilities_S, answers_S, weights_S = of_first(10)
    shown_S = weights_S * (probabilities_S >= THRESHOLD)
    best, foreign_best = (
        np.array([hits[0][1] if hits else 0.0 for hits in some]) for some in (about, foreign)
    )
    return [
        f"{calibration_error(probabilities_S, answers_S, weights_S):.3f}",
        f"{calibration_error(*of_first(1)):.3f}",
        f"{separation(odds_samples(about), odds_samples(foreign)):.3f}",
        f"{(shown_S * answers_S).sum() / shown_S.sum():.2f}" if shown_S.any() else "none",
        f"{(best >= THRESHOLD).mean():.2f}",
        f"{(foreign_best >= THRESHOLD).mean():.3f}",
    ]


def searching(index: scannery.Index, **chosen: Any) -> Search:
    """Return a search with these options."""

    def search(texts: Sequence[str]) -> list[list[str]]:
        parts = (list(texts[start : start + 500]) for start in range(0, len(texts), 500))
        field = "document_id" if "max_per_group" in chosen else "id"
        found = (
            hits for part in parts for hits in index.search_many(part, HITS, fields=["document_id"], **chosen)
        )
        return [[getattr(hit, field) for hit in hits] for hits in found]

    return search


def evaluated(collection: Collection, searches: Mapping[str, Search]) -> list[Evaluation]:
    return evaluate(dict(searches), collection.queries, collection.judgements, measures=MEASURES)


def with_intervals(results: Sequence[Evaluation]) -> str:
    """Return a table with a row for each search, and all measures."""
    rows = [
        [result.name, *(f"{i.mean:.4f} ({i.low:.3f}–{i.high:.3f})" for i in result.means.values())]
        for result in results
    ]
    return table(["", *results[0].values], rows)


def difference(values: np.ndarray, base: np.ndarray) -> str:
    """Return the mean difference with its 95 % interval of a paired bootstrap."""
    found = paired_bootstrap(values, base)
    return f"{found.mean:+.4f} ({found.low:+.4f} to {found.high:+.4f})"


def spec_of(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """Return the spec of an index of a collection."""
    encoder = {"encoder": json.loads(given.encoder)} if given.encoder else {}
    return {"source": WHOLE, "lexical": {"language": LANGUAGES.get(name, "english")}, **encoder}


def chosen_of(given: argparse.Namespace, default: Iterable[str]) -> Iterator[tuple[str, Collection]]:
    for name in given.on.split(",") if given.on else default:
        yield name, MORE_COLLECTIONS[name]()


# --- modes and fusion

REFERENCE: Literal[3] = 3
"""Version of the analyser: version 4 has additional terms, which the lengths of bm25s would count."""


def bm25s_search(
    documents: Sequence[tuple[str, str]], terms: Terms, query_terms: Terms | None = None
) -> Search:
    """Return the search of bm25s over (id, text), with the terms of texts and of queries."""
    import bm25s

    logging.getLogger("bm25s").setLevel(logging.WARNING)
    engine = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    engine.index([terms(text) for _, text in documents], show_progress=False)

    def search(texts: Sequence[str]) -> list[list[str]]:
        found = []
        for text in texts:
            rows, scores = engine.retrieve([(query_terms or terms)(text)], k=HITS, show_progress=False)
            pairs = zip(rows[0].tolist(), scores[0].tolist(), strict=True)
            found.append([documents[row][0] for row, score in pairs if score > 0])
        return found

    return search


def modes(given: argparse.Namespace, folder: Path) -> None:
    for name, collection in chosen_of(given, COLLECTIONS):
        terms = Analyser(LexicalSpec(analyser=REFERENCE)).terms
        documents = [(each, f"{title}\n{text}") for each, title, text in collection.documents]
        results = evaluated(collection, {"bm25s": bm25s_search(documents, terms)})
        for shards in (1, 8):
            lexical = {"lexical": {"analyser": REFERENCE}, "search": {"alpha": 0.5}}
            spec = {"source": WHOLE, **lexical, "shards": shards}
            index = indexed(folder / f"{name}-{shards}", records_of(collection), spec)
            cut = "one shard" if shards == 1 else f"{shards} shards"
            results += evaluated(collection, {
                f"dense, {cut}": searching(index, mode="dense"),
                f"lexical, {cut}": searching(index, mode="lexical"),
                f"hybrid by rank, {cut}": searching(index, mode="hybrid", fusion="reciprocal_rank"),
                f"hybrid by score, {cut}": searching(index, mode="hybrid", fusion="weighted_score"),
            })  # fmt: skip
        judged = len(results[0].query_ids)
        print(f"**{collection.name}**: {len(documents)} documents, {judged} queries with a relevant one\n")
        print(with_intervals(results), flush=True)


FUSIONS: dict[str, dict[str, Any]] = {
    "dense": {"mode": "dense"},
    "lexical": {"mode": "lexical"},
    "by rank, .5": {"mode": "hybrid", "fusion": "reciprocal_rank", "alpha": 0.5},
    "by score, .5": {"mode": "hybrid", "fusion": "weighted_score", "alpha": 0.5},
    "default": {},
}


def fusion(given: argparse.Namespace, folder: Path) -> None:
    rows = []
    for name, collection in chosen_of(given, MORE_COLLECTIONS):
        index = indexed(folder / name, records_of(collection), spec_of(given, name))
        manifest = read_manifest(Store.open(folder / name / "store"), "quality")
        results = evaluated(collection, {mode: searching(index, **each) for mode, each in FUSIONS.items()})
        values = {result.name: result.values[MAIN_MEASURE] for result in results}
        better = max(("dense", "lexical"), key=lambda side: values[side].mean())
        rows.append([
            collection.name, f"{len(collection.documents)} / {len(values['default'])}",
            *(f"{values[mode].mean():.4f}" for mode in FUSIONS), f"{manifest.fusion.alpha if manifest.fusion else 0:g}",
            difference(values["default"], values[better]), f"{manifest.statistics['seconds']['fusion']:.1f}",
        ])  # fmt: skip
        print(*rows[-1], sep=" · ", flush=True)
    header = ["nDCG@10", "documents / queries", *FUSIONS, "alpha", "default minus the better side", "s"]
    print("\n" + table(header, rows))


# --- lexical search

UNSPACED = frozenset({"th", "zh"})
ACCENTED = frozenset({"de", "el", "es", "tr", "vi"})


def without_accents(text: str) -> str:
    """Return a text as it is typed on a keyboard without accents."""
    letters = (char for char in unicodedata.normalize("NFD", text) if not unicodedata.combining(char))
    return unicodedata.normalize("NFC", "".join(letters)).replace("ı", "i").replace("đ", "d")


def ndcg(collection: Collection, terms: Terms, typed: Callable[[str], str] = str) -> np.ndarray:
    """Return nDCG@10 of each question, by bm25s with terms of ours."""
    documents = [(name, text) for name, _, text in collection.documents]
    search = bm25s_search(documents, terms, lambda text: terms(typed(text)))
    found = search([collection.queries[name] for name in collection.judgements])
    return measured_values(parse_measures([MAIN_MEASURE]), collection.judgements, found)[MAIN_MEASURE]


def lexical_spec(code: str, version: int) -> LexicalSpec:
    return LexicalSpec.model_validate(
        {"language": LANGUAGES.get(f"xquad-{code}", "english"), "analyser": version}
    )


def lexical(given: argparse.Namespace, folder: Path) -> None:
    codes, rows, split_rows = given.languages.split(","), [], []
    dictionary = given.dictionary.read_text(encoding="utf-8").splitlines() if given.dictionary else []
    for code in codes:
        collection = xquad_r(code)
        old, new = (Analyser(lexical_spec(code, version)).terms for version in (2, 3))
        cells = [ndcg(collection, old), ndcg(collection, new)]
        if code in ACCENTED:
            cells += [ndcg(collection, terms, without_accents) for terms in (old, new)]
        rows.append([code, *(f"{cell.mean():.4f}" for cell in cells), *[""] * (4 - len(cells))])
        if code not in UNSPACED:
            split_rows += list(_compounds(code, collection, cells[1], dictionary))
    print(table(["language", "analyser 2", "analyser 3", "2, no accents typed", "3, no accents typed"], rows))
    print(
        table(["language", "whole", "words from", "words", "split", "difference", "s to learn"], split_rows)
    )


def _compounds(
    code: str, collection: Collection, whole: np.ndarray, dictionary: Sequence[str]
) -> Iterator[list[str]]:
    """Yield what splitting compounds changes: words learned from the sentences, and those with a dictionary."""
    spec, texts = lexical_spec(code, 3), [text for _, _, text in collection.documents]
    for source, words in {"sentences": (), "dictionary": dictionary}.items():
        if source == "dictionary" and not words:
            continue
        started = time.process_time()
        lines = learned_compounds(texts, spec, words)
        learning_s = time.process_time() - started
        split = ndcg(collection, Analyser(spec.model_copy(update={"compounds": lines})).terms)
        cells = f"{whole.mean():.4f}", source, str(len(" ".join(lines).split())), f"{split.mean():.4f}"
        yield [code, *cells, difference(split, whole), f"{learning_s:.2f}"]


def code(given: argparse.Namespace, folder: Path) -> None:
    rows = []
    for name, collection in chosen_of(given, ("cranfield", "cisi", "xquad-en", "stackfaq")):
        specs = [lexical_spec(name.removeprefix("xquad-"), version) for version in (3, 4)]
        old, new = (_own_ndcg(collection, spec) for spec in specs)
        cells = f"{old.mean():.5f}", f"{new.mean():.5f}", difference(new, old), f"{np.mean(old != new):.1%}"
        rows.append([collection.name, *cells, *(f"{_speed(collection, spec):.1f}" for spec in specs)])
    header = [
        "collection", "analyser 3", "analyser 4", "difference", "queries that changed", "MB/s, 3", "MB/s, 4",
    ]  # fmt: skip
    print(table(header, rows))


def _own_ndcg(collection: Collection, spec: LexicalSpec) -> np.ndarray:
    """Return nDCG@10 of each query, with the postings and scores of the product."""
    analyser = Analyser(spec)
    names, titles, texts = zip(*collection.documents, strict=True)
    postings = Postings(invert(pa.table(term_columns(pa.table({"title": titles, "text": texts}), spec))))
    found = []
    for name in collection.judgements:
        terms = analyser.query_terms(collection.queries[name])
        corpus = corpus_statistics([postings], list(terms))
        known = {term: weight for term, weight in terms.items() if term in corpus.frequencies}
        weights = {term: corpus.idf(term) * weight for term, weight in known.items()}
        rows, scores = score_rows(postings, weights, corpus.average_length)
        found.append([names[rows[place]] for place in np.lexsort((rows, -scores))[:10]])
    return measured_values(parse_measures([MAIN_MEASURE]), collection.judgements, found)[MAIN_MEASURE]


def _speed(collection: Collection, spec: LexicalSpec) -> float:
    """Return the megabytes of text a second of processor time, once the analyser has met the words."""
    analyser, texts = Analyser(spec), [text for _, _, text in collection.documents]
    for _ in range(2):
        started = time.process_time()
        for text in texts:
            analyser.terms(text)
    return sum(map(len, texts)) / 1e6 / (time.process_time() - started)


# --- transcripts and named vectors


def as_webvtt(text: str) -> str:
    """Return a text as WebVTT with numbered cues of five words."""
    words = text.split()
    cues = [
        f"{n + 1}\n{_clock(2 * n)} --> {_clock(2 * n + 2)}\n{' '.join(words[at : at + 5])}\n"
        for n, at in enumerate(range(0, len(words), 5))
    ]
    return "\n".join(["WEBVTT\n", *cues])


def _clock(seconds: int) -> str:
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.000"


def transcripts(given: argparse.Namespace, folder: Path) -> None:
    for name, collection in chosen_of(given, COLLECTIONS):
        results = []
        forms: dict[str, Callable[[str], str]] = {"plain": str, "WebVTT": as_webvtt}
        for form, write in forms.items():
            records = ({**record, "text": write(record["text"])} for record in records_of(collection))
            index = indexed(folder / f"{name}-{form}", records, {"source": PASSAGES, "lexical": True})
            searches = {
                mode: searching(index, mode=mode, max_per_group=1) for mode in ("dense", "lexical", "hybrid")
            }
            results += evaluated(collection, {f"{mode}, {form}": search for mode, search in searches.items()})
        print(f"**{collection.name}**\n\n{with_intervals(results)}", flush=True)


BOTH = ["title", "body"]
VECTORS: dict[str, dict[str, Any]] = {
    "unnamed": {"mode": "dense"},
    "title": {"mode": "dense", "vectors": "title"},
    "body": {"mode": "dense", "vectors": "body"},
    "title + body": {"mode": "dense", "vectors": BOTH},
    "title + 3 × body": {"mode": "dense", "vectors": {"title": 1, "body": 3}},
    "title + body by rank": {"mode": "dense", "vectors": BOTH, "fusion": "reciprocal_rank"},
    "words": {"mode": "lexical"},
    "hybrid, unnamed": {"mode": "hybrid", "alpha": 0.5},
    "hybrid, body": {"mode": "hybrid", "alpha": 0.5, "vectors": "body"},
    "hybrid, title + body": {"mode": "hybrid", "alpha": 0.5, "vectors": BOTH},
    "hybrid, title + 3 × unnamed": {"mode": "hybrid", "alpha": 0.5, "vectors": {"": 3, "title": 1}},
}


def named(given: argparse.Namespace, folder: Path) -> None:
    rows, encoder = [], {"encoder": {"model": MINILM}}
    for name, collection in chosen_of(given, COLLECTIONS):
        own = {"title": encoder, "body": {**encoder, "from": "text"}}
        spec = {"source": WHOLE, "named_vectors": own, "lexical": True}
        index = indexed(folder / name, records_of(collection), spec)
        results = evaluated(collection, {name: searching(index, **each) for name, each in VECTORS.items()})
        values = {result.name: result.values[MAIN_MEASURE] for result in results}
        for search, each in values.items():
            base = "hybrid, unnamed" if search.startswith("hybrid") else "unnamed"
            shown = "" if search == base else difference(each, values[base])
            rows.append([collection.name, search, f"{interval_of(each).mean:.4f}", shown])
    print(table(["collection", "search", "nDCG@10", "difference from unnamed"], rows))


# --- the words of whole documents

SIDES: tuple[Any, ...] = ("dense", "lexical", "hybrid")
SCOPES = ("passage", "document")
TIMED = 150
"""Queries whose time is measured."""


def scope(given: argparse.Namespace, folder: Path) -> None:
    rows, times = [], []
    for name in (
        given.on.split(",") if given.on else ("speech", "xquad-en", "xquad-de", "xquad-es", "xquad-ru")
    ):
        collection = podcast_speech() if name == "speech" else MORE_COLLECTIONS[name]()
        per_document = {"max_per_group": 1} if name == "speech" else {}
        # Sentences of a paragraph are the passages of a document; one of them is relevant.
        passages = {"chunk": PASSAGES["chunk"]} if name == "speech" else {"document_id": "paragraph"}
        records = [{**each, "paragraph": each["id"].split("-")[0]} for each in records_of(collection)]
        values, indexes = dict[tuple[str, str], np.ndarray](), {}
        for each in SCOPES:
            if each == "document":  # nothing is embedded again
                shutil.copytree(folder / "passage", folder / each)
            lexical = {"language": LANGUAGES.get(name, "english"), "scope": each}
            indexes[each] = indexed(
                folder / each,
                records,
                {"source": {"text": "text", **passages}, "lexical": lexical},
                mode="upsert",
            )
            searches = {mode: searching(indexes[each], mode=mode, **per_document) for mode in SIDES}
            values |= {(one.name, each): one.values[MAIN_MEASURE] for one in evaluated(collection, searches)}
        if name == "speech":
            whole = {"source": {"text": "text"}, "lexical": {"language": "english"}}
            searches = {"hybrid": searching(indexed(folder / "whole", records, whole), mode="hybrid")}
            [values["hybrid", "whole"]] = [
                one.values[MAIN_MEASURE] for one in evaluated(collection, searches)
            ]
            print(f"hybrid, whole texts: {values['hybrid', 'whole'].mean():.4f}", flush=True)
        for mode in SIDES[1:]:
            passage, document = (values[mode, each] for each in SCOPES)
            means = [f"{each.mean():.4f}" for each in (values["dense", "passage"], passage, document)]
            rows.append([collection.name, mode, *means, difference(document, passage)])
            measured = _times_of(indexes, mode, [*collection.queries.values()])
            times += [[collection.name, mode, *each] for each in measured]
            print(*rows[-1], *measured, sep=" · ", flush=True)
        shutil.rmtree(folder / "passage")
        shutil.rmtree(folder / "document")
    print("\n" + table(["nDCG@10", "mode", "dense", *SCOPES, "difference"], rows))
    print("\n" + table(["p50 in µs", "mode", "scope", "all postings", "as it is", "times as fast"], times))


def _times_of(indexes: Mapping[str, scannery.Index], mode: Any, texts: Sequence[str]) -> list[list[str]]:
    """Return for each index the median times of a search that reads all postings and of one as it is, in turns."""
    costs = (math.inf, best_rows.LOOKUP_COST)
    seconds: dict[tuple[str, float], list[float]] = {(name, cost): [] for name in indexes for cost in costs}
    for repetition in range(3):
        for text in texts[:TIMED]:
            for (name, cost), taken in seconds.items():
                best_rows.LOOKUP_COST = cost  # type: ignore[assignment]  # a search without end: nothing is looked up
                started = time.perf_counter()
                indexes[name].search(text, 10, mode=mode)
                if repetition:  # vectors of texts are in the cache then
                    taken.append(time.perf_counter() - started)
    medians = {key: 1e6 * float(np.median(each)) for key, each in seconds.items()}
    return [
        [
            name,
            *(f"{medians[name, cost]:.0f}" for cost in costs),
            f"{medians[name, costs[0]] / medians[name, costs[1]]:.2f}",
        ]
        for name in indexes
    ]


# --- headings


class Question(NamedTuple):
    """A question, the document that answers it, and where in its text; None: anywhere."""

    text: str
    document: str
    place: tuple[int, int] | None


def headings(given: argparse.Namespace, folder: Path) -> None:
    shows = []
    for name, text in archived(shared_data("podcasts-syntax", "shows.tar.gz")):
        title = front_matter(text).get("title")
        if title and re.search(r"^#+ ", text, re.MULTILINE):
            shows.append({"id": name, "title": str(title), "text": text[front_matter_end(text) :].strip()})
    shows = random.Random(1).sample(shows, min(given.shows, len(shows)))
    titles = [Question(show["title"], show["id"], None) for show in shows]
    questions, ranks, passages = {"titles": titles, "words of a line": list(_spans(shows))}, {}, []
    for at_headings in (False, True):
        spec = {"source": {"text": "text", "chunk": {"headings": at_headings}}, "lexical": True}
        index = indexed(folder / str(at_headings), shows, spec)
        passages.append(index.stats().rows)
        for kind, asked in questions.items():
            for mode in ("dense", "lexical", "hybrid"):
                ranks[at_headings, kind, mode] = _reciprocal_ranks(index, asked, mode)
    print(f"{len(shows)} shows; {passages[0]} passages by tokens, {passages[1]} at headings\n")
    rows = []
    for (at_headings, kind, mode), values in ranks.items():
        if at_headings:
            before = ranks[False, kind, mode]
            cells = f"{before.mean():.3f}", f"{values.mean():.3f}", difference(values, before)
            rows.append([kind, len(values), mode, *cells])
    print(table(["questions", "number", "mode", "MRR@10 by tokens", "at headings", "difference"], rows))


def _spans(shows: Sequence[Mapping[str, str]]) -> Iterator[Question]:
    """Yield seven words from the middle of a line of each show."""
    chosen = random.Random(2)
    for show in shows:
        if lines := list(re.finditer(r"^[^#\n].{60,}$", show["text"], re.MULTILINE)):
            line = chosen.choice(lines)
            words = [*re.finditer(r"\w[\w'-]*", line[0])]
            if len(words) >= 9:
                first = chosen.randrange(1, len(words) - 7)
                middle = line.start() + words[first + 3].start()
                text = " ".join(word[0] for word in words[first : first + 7])
                yield Question(text, show["id"], (middle, middle + 1))


def _reciprocal_ranks(index: scannery.Index, asked: Sequence[Question], mode: Any) -> np.ndarray:
    """Return 1 / rank of the first right hit of each question, 0 beyond ten, float64 (questions,)."""
    group = 1 if asked[0].place is None else None
    lists = index.search_many([question.text for question in asked], 10, mode=mode, max_per_group=group)
    found = []
    for question, hits in zip(asked, lists, strict=True):
        right = (rank for rank, hit in enumerate(hits, 1) if hit.document_id == question.document
                 and (question.place is None or has(question, hit.text_start, hit.text_end)))  # fmt: skip
        found.append(1 / rank if (rank := next(right, 0)) else 0.0)
    return np.array(found)


def has(question: Question, start: int | None, end: int | None) -> bool:
    """Return whether a part of a text has the whole answer."""
    place = question.place
    return (
        place is not None and start is not None and end is not None and start <= place[0] and place[1] <= end
    )


# --- snippets

HIGHLIGHTS: dict[str, Any] = {"by words": "words", "by the encoder": "encoder", "by both": True}


def snippets(given: argparse.Namespace, folder: Path) -> None:
    """Look at the paragraph with the answer, if it is found; the random sentence is the mean of all."""
    rows = []
    for code in given.languages.split(","):
        texts, questions = dict[str, str](), list[Question]()
        for number, paragraph in enumerate(xquad_paragraphs(code)):
            texts[str(number)] = paragraph["context"]
            for each in paragraph["qas"]:
                answer = each["answers"][0]
                place = answer["answer_start"], answer["answer_start"] + len(answer["text"])
                questions.append(Question(each["question"], str(number), place))
        records = ({"id": name, "text": text} for name, text in texts.items())
        language = {"language": LANGUAGES.get(f"xquad-{code}", "english")}
        index = indexed(folder / code, records, {"source": {"id": "id", "text": "text"}, "lexical": language})
        sentences = {name: sentences_of(text) for name, text in texts.items()}
        shares: dict[str, list[float]] = {name: [] for name in ("first", "random", *HIGHLIGHTS)}
        asked = questions[:: given.every]
        for question in asked:
            for name, highlight in HIGHLIGHTS.items():
                hits = index.search(question.text, 10, mode="hybrid", highlight=highlight)
                right = [
                    hit.snippet for hit in hits if hit.id == question.document and hit.snippet is not None
                ]
                shares[name] += [has(question, snippet.start, snippet.end) for snippet in right]
            if right:
                having = [has(question, start, end) for start, end, _ in sentences[question.document]]
                shares["first"].append(having[0])
                shares["random"].append(mean(having))
        found, per_paragraph = len(shares["by words"]), mean(map(len, sentences.values()))
        means = [f"{mean(each):.3f}" for each in shares.values()]
        rows.append([code, f"{found} of {len(asked)}", f"{per_paragraph:.1f}", *means])
    print(table(["language", "answer among 10 hits", "sentences", "first", "random", *HIGHLIGHTS], rows))


# --- phrases

QUOTED = ("cisi", "stackfaq", *(f"xquad-{code}" for code in ("ar", "de", "en", "es", "ru", "tr", "vi", "zh")))
_QUOTES = re.compile('["“”„]')


def phrases(given: argparse.Namespace, folder: Path) -> None:
    lines = []
    for name, collection in chosen_of(given, QUOTED):
        code = name.removeprefix("xquad-") if name.startswith("xquad-") else "en"
        spec = lexical_spec(code, 4).model_dump(exclude_none=True)
        index = indexed(folder / name, records_of(collection), {"source": WHOLE, "lexical": spec})
        asked = {
            each: text
            for each, text in collection.queries.items()
            if each in collection.judgements and quoted(text)
        }
        with_rows = sum(index.count(required(text)) > 0 for text in asked.values())
        for mode in ("lexical", "hybrid") if code == "en" else ("lexical",):
            searches: dict[str, Search] = {
                "signs": partial(_as_signs, index, mode),
                "required": partial(_with_required, index, mode),
                "as searched": searching(index, mode=mode),
            }
            results = evaluate(searches, asked, collection.judgements, measures=MEASURES)
            values = [f"{np.mean(result.values[MAIN_MEASURE]):.3f}" for result in results]
            lines.append([name, mode, len(asked), with_rows, *values])
    titles = (
        "collection",
        "mode",
        "with quotes",
        "whose phrases some row has",
        "signs",
        "required",
        "as searched",
    )
    print(table(titles, lines))


def _as_signs(index: scannery.Index, mode: Any, texts: Sequence[str]) -> Sequence[Sequence[str]]:
    return searching(index, mode=mode)([_QUOTES.sub("", text) for text in texts])


def _with_required(index: scannery.Index, mode: Any, texts: Sequence[str]) -> list[list[str]]:
    plain = ((_QUOTES.sub("", text), required(text)) for text in texts)
    return [[hit.id for hit in index.search(text, HITS, mode=mode, where=where)] for text, where in plain]


def quoted(text: str) -> list[str]:
    """Return what a text has in quotes, with words."""
    return ["".join(each) for each in re.findall('"([^"]*\\w[^"]*)"|“([^”]*)”|„([^“”]*)[“”]', text)]


def required(text: str) -> dict[str, Any]:
    """Return a filter by all that a text has in quotes."""
    return {"$and": [{"text": {"$phrase": phrase}} for phrase in quoted(text)]}


CASES = {
    "modes": modes, "fusion": fusion, "lexical": lexical, "code": code, "transcripts": transcripts, "named": named,
    "headings": headings, "scope": scope, "snippets": snippets, "phrases": phrases, "relevance": relevance,
}  # fmt: skip


def main() -> None:
    run_cases(
        __doc__, CASES, "sentence-transformers torch scann", on="", encoder="", reranker="",
        languages="ar,de,el,en,es,hi,ru,th,tr,vi,zh", dictionary=Path, shows=500, every=1,
    )  # fmt: skip


if __name__ == "__main__":
    main()
