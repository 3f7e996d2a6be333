"""Words that a page cuts at the end of a line are made whole; hyphens that belong to words stay."""

from __future__ import annotations

import pytest

from scannery.pipelines.sources.documents.document import with_whole_words

CASES = {
    "whole": ("it needs photo-\nsynthesis and light", "it needs photosynthesis\nand light"),
    "punctuation": ("(over-\ncome), then", "(overcome),\nthen"),
    "soft hyphen": ("good in\u00ad\nfrastructure, too", "good infrastructure,\ntoo"),
    "soft hyphen in a line": ("co\u00adoperation", "co\u00adoperation"),
    "other hyphen": ("long\u2010\nish", "longish"),
    "carriage return": ("photo-\r\nsynthesis", "photosynthesis"),
    "several lines": ("un-\nbe-\nliev-\nable story", "unbelievable\nstory"),
    "page": ("inter-\n\n\fnational. Three", "international.\n\n\fThree"),
    "name": ("Müller-\nLüdenscheidt", "Müller-Lüdenscheidt"),
    "number": ("COVID-\n19 from 2019-\n2020", "COVID-19\nfrom 2019-2020"),
    "capitals": ("INTER-\nNATIONAL", "INTERNATIONAL"),
    "letter": ("an e-\nmail", "an e-mail"),
    "state": ("the state-of-the-\nart hive", "the state-of-the-art\nhive"),
    "state, early": ("the state-\nof-the-art hive", "the state-of-the-art\nhive"),
    "cut within a compound": ("well-estab-\nlished rules", "well-established\nrules"),
    "self": ("a self-\nmade man", "a self-made\nman"),
    "part of the next word": ("die Groß-\nund Kleinschreibung", "die Groß-\nund Kleinschreibung"),
    "the document has a hyphen": ("well-known; a well-\nknown hive", "well-known; a well-known\nhive"),
    "the document has none": ("self-\nish is selfish", "selfish\nis selfish"),
    "the document has the part": ("data are driven, data-rich, data-\ndriven",
                                  "data are driven, data-rich, data-driven"),
    "more often whole": ("Kern-\nkraft: Kernkraft, Kernkraft, Kern-Kraft",
                         "Kernkraft:\nKernkraft, Kernkraft, Kern-Kraft"),
    "address": ("https://a.example/foo-\nbar", "https://a.example/foo-\nbar"),
    "list": ("- item\n- other\n--\nend", "- item\n- other\n--\nend"),
    "dash": ("a dash -\nand more", "a dash -\nand more"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "whole"), CASES.values(), ids=CASES)
def test_words_at_the_ends_of_lines(text: str, whole: str) -> None:
    assert with_whole_words(text) == whole
