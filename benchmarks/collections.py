"""Test collections with relevance judgements, as files that `scannery build` and `scannery evaluate` read."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.data import archived
from benchmarks.harness import shared_data

__all__ = [
    "COLLECTIONS", "LANGUAGES", "MORE_COLLECTIONS", "Collection", "cisi", "cranfield", "podcast_speech",
    "podcast_titles", "stackfaq", "xquad_articles", "xquad_paragraphs", "xquad_r",
]  # fmt: skip


@dataclass(frozen=True)
class Collection:
    """Documents as (id, title, text), queries by id, and judgements by query (a higher level is more relevant)."""

    name: str
    documents: tuple[tuple[str, str, str], ...]
    queries: dict[str, str]
    judgements: dict[str, dict[str, int]]

    def write(self, folder: Path) -> None:
        """Write `corpus.jsonl`, `queries.jsonl` and `qrels.tsv` in the layout of BEIR."""
        folder.mkdir(parents=True, exist_ok=True)
        documents = ({"id": name, "title": title, "text": text} for name, title, text in self.documents)
        _write_lines(folder / "corpus.jsonl", map(json.dumps, documents))
        queries = ({"_id": name, "text": text} for name, text in self.queries.items())
        _write_lines(folder / "queries.jsonl", map(json.dumps, queries))
        pairs = (
            f"{query}\t{document}\t{level}"
            for query, levels in self.judgements.items()
            for document, level in levels.items()
        )
        _write_lines(folder / "qrels.tsv", ["query-id\tcorpus-id\tscore", *pairs])


def cranfield() -> Collection:
    """Return Cranfield 1400: abstracts on aerodynamics. Level 1, the best, becomes 4; rows with -1 are dropped."""
    folder = shared_data("ir-cranfield")
    judgements: dict[str, dict[str, int]] = {}
    for line in (folder / "cranqrel").read_text().splitlines():
        query, document, level = line.split()[:3]
        if int(level) > 0:
            judgements.setdefault(query, {})[document] = 5 - int(level)
    queries = [text["W"] for _, text in _entries(folder / "cran.qry")]
    return Collection(
        "Cranfield",
        tuple(_documents(folder / "cran.all.1400")),
        # The judgements number the queries consecutively; the numbers in the file have gaps.
        {str(number): text for number, text in enumerate(queries, 1)},
        judgements,
    )


def cisi() -> Collection:
    """Return CISI: abstracts on library science; every judged document is relevant (1)."""
    folder = shared_data("ir-cisi")
    judgements: dict[str, dict[str, int]] = {}
    for line in (folder / "CISI.REL").read_text().splitlines():
        query, document = line.split()[:2]
        judgements.setdefault(query, {})[document] = 1
    queries = {name: text["W"] for name, text in _entries(folder / "CISI.QRY")}
    return Collection("CISI", tuple(_documents(folder / "CISI.ALL")), queries, judgements)


def stackfaq() -> Collection:
    """Return StackFAQ: answers on web applications, many with code, and questions in other words."""
    folder = shared_data("ir-stackfaq")
    documents, queries = (
        [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        for name in ("documents.jsonl", "queries.jsonl")
    )
    judgements: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels.tsv").read_text(encoding="utf-8").splitlines():
        query, _, document, level = line.split("\t")
        judgements.setdefault(query, {})[document] = int(level)
    return Collection(
        "StackFAQ",
        tuple((each["id"], "", each["text"]) for each in documents),
        {each["_id"]: each["text"] for each in queries},
        judgements,
    )


def xquad_r(language: str) -> Collection:
    """Return XQuAD-R in one language: questions, and the sentences of Wikipedia that hold their answers."""
    documents, queries, judgements = [], {}, {}
    for number, paragraph in enumerate(xquad_paragraphs(language)):
        documents += [(f"{number}-{i}", "", text) for i, text in enumerate(paragraph["sentences"])]
        for question in paragraph["qas"]:
            at = question["answers"][0]["answer_start"]
            breaks = paragraph["sentence_breaks"]
            found = [i for i, (start, end) in enumerate(breaks) if start <= at <= end]
            if found:
                queries[question["id"]] = question["question"]
                judgements[question["id"]] = {f"{number}-{found[0]}": 1}
    return Collection(f"XQuAD-R, {language}", tuple(documents), queries, judgements)


def podcast_titles() -> Collection:
    """Return the Syntax podcast: titles of 400 shows as queries, and the notes of all shows as documents."""
    documents, queries, judgements = [], {}, {}
    shows = archived(shared_data("podcasts-syntax", "shows.tar.gz"))
    for place, (name, text) in enumerate(shows):
        _, head, notes = text.split("---", 2)
        title = re.search(r"^title: *(.+)$", head, re.MULTILINE)
        documents.append((name, "", notes.strip() or "none"))
        if title and place % 5 < 2:
            queries[name] = title[1].strip("'\" ")
            judgements[name] = {name: 1}
    return Collection("Podcast titles", tuple(documents), queries, judgements)


def podcast_speech() -> Collection:
    """Return Hacker Public Radio: summaries read out by hosts as queries, and what is said after them as documents."""
    path = shared_data("podcasts-hpr", "episodes.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        episodes = [json.loads(line) for line in file]
    return Collection(
        "Podcast speech",
        tuple((each["id"], "", each["text"]) for each in episodes),
        {each["id"]: each["summary"] for each in episodes},
        {each["id"]: {each["id"]: 1} for each in episodes},
    )


COLLECTIONS = {"cranfield": cranfield, "cisi": cisi}
MORE_COLLECTIONS: dict[str, Callable[[], Collection]] = {
    **COLLECTIONS,
    "podcasts": podcast_titles,
    "stackfaq": stackfaq,
    **{
        f"xquad-{language}": partial(xquad_r, language)
        for language in ("en", "de", "es", "ru", "el", "tr", "ar", "hi", "vi", "th", "zh")
    },
}
_SNOWBALL = {
    "ar": "arabic",
    "de": "german",
    "el": "greek",
    "es": "spanish",
    "hi": "hindi",
    "ru": "russian",
    "tr": "turkish",
}
LANGUAGES = {
    f"xquad-{code}": _SNOWBALL.get(code, "none")
    for code in ("de", "es", "ru", "el", "tr", "ar", "hi", "vi", "th", "zh")
}
"""Language of the stemmer by collection; the others are English."""


def xquad_paragraphs(language: str) -> Iterator[dict[str, Any]]:
    """Yield the paragraphs of XQuAD-R in one language, with their sentences and questions."""
    for _, paragraphs in xquad_articles(language):
        yield from paragraphs


def xquad_articles(language: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield the title and the paragraphs of each article of XQuAD-R in one language."""
    [(_, text)] = archived(shared_data("ir-xquad-r", "xquad-r.tar.gz"), f"/{language}.json")
    for article in json.loads(text)["data"]:
        yield article["title"], article["paragraphs"]


def _documents(path: Path) -> Iterator[tuple[str, str, str]]:
    for name, fields in _entries(path):
        # Two documents of Cranfield are empty and cannot be indexed.
        if fields.get("W"):
            yield name, fields.get("T", ""), fields["W"]


def _entries(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the number and the fields of each entry of a SMART file: `.I 7`, then `.T`, `.W`, … with lines below."""
    for entry in re.split(r"^\.I +", path.read_text(encoding="latin-1"), flags=re.MULTILINE)[1:]:
        number, _, body = entry.partition("\n")
        parts = re.split(r"^\.([A-Z])[ \t]*$", body, flags=re.MULTILINE)
        fields: dict[str, str] = {}
        for letter, text in zip(parts[1::2], parts[2::2], strict=True):
            fields.setdefault(letter, " ".join(text.split()))
        yield str(int(number)), fields


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
