"""Retrieval of Markdown that is cut at its headings, against the same texts cut by tokens alone.

    python -m benchmarks.headings [--shows 500] [--title]

The texts are show notes (podcasts-syntax of the shared data) without their front matter. Two kinds of questions: the
title of each show, which is not indexed and whose answer is the show; and seven words from the middle of a line, whose
answer is a passage with these words.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tarfile
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import scannery
from benchmarks.report import environment, shared_data, table
from scannery.embed.text.markdown import front_matter_end
from scannery.pipelines import build
from scannery.pipelines.sources.documents.text_documents import front_matter

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
K = 10


class Show(NamedTuple):
    """One show."""

    id: str
    title: str
    text: str


class Question(NamedTuple):
    """A question, the show that answers it, and where in its text; None: anywhere."""

    text: str
    show: str
    place: int | None


def shows(count: int) -> list[Show]:
    found = []
    with tarfile.open(shared_data("podcasts-syntax", "shows.tar.gz")) as archive:
        for member in sorted(archive.getmembers(), key=lambda one: one.name):
            file = archive.extractfile(member) if member.name.endswith(".md") else None
            text = file.read().decode() if file is not None else ""
            title = front_matter(text).get("title")
            if title and re.search(r"^#+ ", text, re.MULTILINE):
                found.append(Show(member.name, str(title), text[front_matter_end(text) :].strip()))
    return random.Random(1).sample(found, min(count, len(found)))


def questions(corpus: list[Show]) -> dict[str, list[Question]]:
    chosen = random.Random(2)
    spans = []
    for show in corpus:
        lines = list(re.finditer(r"^[^#\n].{60,}$", show.text, re.MULTILINE))
        if lines:
            line = chosen.choice(lines)
            words = [*re.finditer(r"\w[\w'-]*", line[0])]
            if len(words) >= 9:
                first = chosen.randrange(1, len(words) - 7)
                text = " ".join(word[0] for word in words[first : first + 7])
                spans.append(Question(text, show.id, line.start() + words[first + 3].start()))
    return {"titles": [Question(show.title, show.id, None) for show in corpus], "words of a line": spans}


def reciprocal_ranks(index: scannery.Index, asked: list[Question], mode: Any) -> np.ndarray:
    """Return 1 / rank of the first right hit of each question, 0 beyond K, float64 (questions,)."""
    found = []
    group = 1 if asked[0].place is None else None
    answers = index.search_many([question.text for question in asked], K, mode=mode, max_per_group=group)
    for question, hits in zip(asked, answers, strict=True):
        right = (rank for rank, hit in enumerate(hits, 1) if _answers(hit, question))
        found.append(1 / rank if (rank := next(right, 0)) else 0.0)
    return np.array(found)


def _answers(hit: Any, question: Question) -> bool:
    if hit.document_id != question.show:
        return False
    return question.place is None or hit.text_start <= question.place < hit.text_end


def interval(values: np.ndarray) -> str:
    """Return the mean with its 95 % bootstrap interval."""
    draws = np.random.default_rng(3).choice(values, (2000, len(values))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return f"{values.mean():+.3f} ({low:+.3f} to {high:+.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shows", type=int, default=500)
    parser.add_argument("--title", action="store_true", help="give documents their titles, too")
    options = parser.parse_args()
    corpus = shows(options.shows)
    asked = questions(corpus)
    if options.title:
        del asked["titles"]
    ranks: dict[tuple[bool, str, str], np.ndarray] = {}
    passages = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shows.jsonl"
        path.write_text("".join(f"{json.dumps(show._asdict())}\n" for show in corpus))
        for headings in (False, True):
            source = {"text": "text", "chunk": {"headings": headings}} | (
                {"title": "title"} if options.title else {}
            )
            spec = {"index": "shows", "source": source, "encoder": {"model": MODEL}, "lexical": True}
            store = f"{folder}/{headings}"
            passages[headings] = build(spec, [str(path)], store).passages
            with scannery.connect(store) as client:
                for kind, one in asked.items():
                    for mode in ("dense", "lexical", "hybrid"):
                        ranks[headings, kind, mode] = reciprocal_ranks(client.index("shows"), one, mode)
    print(environment("sentence-transformers", "torch"))
    print(f"\n{len(corpus)} shows; {passages[False]} passages by tokens, {passages[True]} at headings\n")
    rows = [
        [kind, len(asked[kind]), mode, f"{before.mean():.3f}", f"{ranks[True, kind, mode].mean():.3f}",
         interval(ranks[True, kind, mode] - before)]
        for (headings, kind, mode), before in ranks.items() if not headings
    ]  # fmt: skip
    print(table(["questions", "number", "mode", "MRR@10 by tokens", "at headings", "difference"], rows))


if __name__ == "__main__":
    main()
