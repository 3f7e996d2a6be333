from __future__ import annotations

import json
import subprocess
import sys
import tarfile

import pytest

from scannery.embed.text.language import UNKNOWN, language_of, languages_of
from tests.data import shared_data

NAMES = {"ar": "arabic", "de": "german", "el": "greek", "en": "english", "es": "spanish", "hi": "hindi",
         "ru": "russian",
         "th": "thai", "tr": "turkish", "vi": "vietnamese", "zh": "chinese"}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Der Hund ist im Garten und bellt.", "german"),
        ("The dog is in the garden and barks.", "english"),
        ("Le chien est dans le jardin et il aboie.", "french"),
        ("Il cane è in giardino e abbaia, ma non morde.", "italian"),
        ("O cão está no jardim e não morde uma pessoa.", "portuguese"),
        ("De hond is in de tuin en blaft niet.", "dutch"),
        ("Hunden är i trädgården och skäller på en katt.", "swedish"),
        ("Pies jest w ogrodzie i nie szczeka na kota.", "polish"),
        ("通勤客は火山の近くに住んでいる。", "japanese"),
        ("火山附近住着很多人。", "chinese"),
        ("개가 정원에서 짖는다.", "korean"),
        ("Собака лает в саду, и это не кошка.", "russian"),
        ("סוף סוף הכלב נובח", "hebrew"),
        ("SKU-4411 XL", UNKNOWN),
        ("1234", UNKNOWN),
        ("", UNKNOWN),
    ],
)
def test_sentences(text: str, language: str):
    assert language_of(text) == language


def test_shares_of_a_mixed_collection():
    texts = ["The dog is in the garden."] * 3 + ["Der Hund ist im Garten."] + ["", "  "]
    assert languages_of(texts) == [("english", 0.75), ("german", 0.25)]
    assert languages_of([]) == []


def test_short_texts_are_judged_together():
    titles = ["the garden", "of mice", "to the sea", "a dog in spring", "and then", "it is late"]
    assert languages_of(titles)[0] == ("english", 1.0)


@pytest.mark.system
def test_parallel_texts_of_eleven_languages():
    with tarfile.open(shared_data("ir-xquad-r", "xquad-r.tar.gz")) as archive:
        for code, language in NAMES.items():
            file = archive.extractfile(f"xquad-r/{code}.json")
            assert file is not None
            articles = json.load(file)["data"]
            paragraphs = [part for article in articles for part in article["paragraphs"]]
            found = dict(languages_of(part["context"] for part in paragraphs))
            assert found[language] >= 0.95, (code, found)
            found = dict(languages_of(qa["question"] for part in paragraphs for qa in part["qas"]))
            assert found[language] >= 0.85, (code, found)


def test_it_needs_no_model():
    code = "import sys, scannery.embed.text.language; print('torch' in sys.modules, 'transformers' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env={
        "PYTHONPATH": ":".join(path for path in sys.path if path),
    })  # fmt: skip
    assert done.stdout.split() == ["False", "False"]
