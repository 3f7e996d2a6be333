"""Snippets of hits: how often the chosen sentence has the answer, and what highlighting costs.

    python -m benchmarks.highlight [--show brainscience] [--languages en,de,es,ru,zh] [--every 1]

Answers: the paragraphs of XQuAD-R, with the questions to them. Of the paragraphs that a hybrid search for a question
finds among its best ten, that with the answer is looked at: does the snippet have the whole answer? The same is told of
the first sentence, of a random one (the mean of all), and of the best one by encoder or words.

Cost: passages of 128 tokens of one podcast, ten hits a query, through the embedded client: process time and wall time
with and without highlighting, when no sentence is known yet, and when all are.
"""

from __future__ import annotations

import argparse
import json
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import scannery
from benchmarks.report import environment, shared_data, table
from scannery.embed.text.sentences import sentences_of
from scannery.pipelines import build

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
LEXICAL = {
    "en": "english",
    "de": "german",
    "es": "spanish",
    "ru": "russian",
    "ar": "arabic",
    "tr": "turkish",
    "hi": "hindi",
}
QUESTIONS = (
    "how does sleep change memory",
    "why is it hard to change a habit",
    "what does stress do to the body",
    "how to be kinder to yourself",
    "does meditation help with anxiety",
    "the chemistry of falling in love",
    "why do we compare ourselves to others",
    "how to talk with children about feelings",
)


class Question(NamedTuple):
    """A question to a paragraph, and where its answer is."""

    text: str
    paragraph: str
    start: int
    end: int


def xquad(language: str) -> tuple[dict[str, str], list[Question]]:
    """Return paragraphs by id, and the questions."""
    with tarfile.open(shared_data("ir-xquad-r", "xquad-r.tar.gz")) as archive:
        file = archive.extractfile(f"xquad-r/{language}.json")
        assert file is not None
        articles = json.load(file)["data"]
    paragraphs: dict[str, str] = {}
    questions = []
    for article in articles:
        for paragraph in article["paragraphs"]:
            name = str(len(paragraphs))
            paragraphs[name] = paragraph["context"]
            for each in paragraph["qas"]:
                answer = each["answers"][0]
                end = answer["answer_start"] + len(answer["text"])
                questions.append(Question(each["question"], name, answer["answer_start"], end))
    return paragraphs, questions


def built(folder: Path, records: Sequence[dict[str, str]], language: str, **source: Any) -> scannery.Index:
    """Return the index of some records, with words and an encoder."""
    folder.mkdir()
    path = folder / "corpus.jsonl"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    spec = {
        "index": "highlight",
        "source": {"id": "id", "text": "text", **source},
        "encoder": {"model": MODEL},
        "lexical": {"language": language},
    }
    build(spec, [str(path)], str(folder / "store"))
    return scannery.connect(folder / "store", timeout_s=600).index("highlight")


def answers(language: str, folder: Path, every: int) -> list[object]:
    """Return a row: shares of paragraphs whose chosen sentence has the answer."""
    paragraphs, questions = xquad(language)
    records = [{"id": name, "text": text} for name, text in paragraphs.items()]
    index = built(folder / language, records, LEXICAL.get(language, "none"))
    sentences = {name: sentences_of(text) for name, text in paragraphs.items()}
    shares: dict[str, list[float]] = {"first": [], "random": [], "words": [], "encoder": [], "both": []}
    for question in questions[::every]:
        choices: tuple[tuple[str, Any], ...] = (("words", "words"), ("encoder", "encoder"), ("both", True))
        for choice, highlight in choices:
            hits = index.search(question.text, 10, mode="hybrid", highlight=highlight)
            for hit in hits:
                if hit.id == question.paragraph and hit.snippet is not None:
                    shares[choice].append(_has(question, hit.snippet.start, hit.snippet.end))
        if any(hit.id == question.paragraph for hit in hits):
            having = [_has(question, start, end) for start, end, _ in sentences[question.paragraph]]
            shares["first"].append(having[0])
            shares["random"].append(mean(having))
    per_paragraph = mean(map(len, sentences.values()))
    found = len(shares["encoder"])
    return [
        language,
        f"{found} of {len(questions[::every])}",
        f"{per_paragraph:.1f}",
        *(f"{mean(each):.3f}" for each in shares.values()),
    ]


def _has(question: Question, start: int, end: int) -> bool:
    return start <= question.start and question.end <= end


def podcast(show: str) -> Iterator[dict[str, str]]:
    """Yield the episodes of a show."""
    with tarfile.open(shared_data("podcasts-changelog", f"{show}.tar.gz")) as archive:
        for member in archive:
            if member.isfile() and member.name.endswith(".md"):
                file = archive.extractfile(member)
                assert file is not None
                yield {"id": Path(member.name).stem, "text": file.read().decode()}


def cost(index: scannery.Index) -> list[list[str]]:
    """Return rows: milliseconds of a query, by the clock and of the processor."""
    for question in QUESTIONS:
        index.search(question, 10)  # the encoder is loaded, and the query's vector known
    rows: list[list[str]] = []
    options: list[tuple[str, dict[str, Any]]] = [
        ("without", {}),
        ("by words", {"highlight": "words"}),
        ("by the encoder, sentences not known", {"highlight": "encoder"}),
        ("by the encoder, sentences known", {"highlight": "encoder"}),
    ]
    for name, option in options:
        walls, processor = [], []
        for question in QUESTIONS:
            started, used = time.perf_counter(), time.process_time()
            index.search(question, 10, **option)
            walls.append(1000 * (time.perf_counter() - started))
            processor.append(1000 * (time.process_time() - used))
        rows.append([name, f"{median(walls):.1f}", f"{median(processor):.1f}"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", default="brainscience")
    parser.add_argument("--episodes", type=int, default=15)
    parser.add_argument("--every", type=int, default=1, help="Ask every n-th question.")
    parser.add_argument("--languages", default="en,de,es,ru,zh")
    arguments = parser.parse_args()
    print(environment("sentence-transformers", "torch", "scann"), end="\n\n")
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        header = [
            "language",
            "answer among 10 hits",
            "sentences",
            "first",
            "random",
            "by words",
            "by the encoder",
            "by both",
        ]
        rows = [answers(language, folder, arguments.every) for language in arguments.languages.split(",")]
        print(table(header, rows), end="\n\n")
        episodes = list(podcast(arguments.show))[: arguments.episodes]
        index = built(
            folder / "podcast", episodes, "english", chunk={"max_tokens": 128, "overlap_tokens": 16}
        )
        print(f"{arguments.show}: {len(episodes)} episodes, {index.stats().rows} passages\n")
        print(table(["highlighting", "ms", "ms of the processor"], cost(index)), end="\n\n")
        for question in QUESTIONS:
            snippet = index.search(question, 1, highlight=True)[0].snippet
            assert snippet is not None
            print(f"- {question}: {snippet.html()} ({snippet.score:.2f})")


if __name__ == "__main__":
    main()
