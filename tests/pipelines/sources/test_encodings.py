"""Texts in encodings from before UTF-8: as their letters tell, as the spec says, and damaged ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from scannery.indexer.spec.spec import SourceSpec
from scannery.pipelines.sources import arrange, find_files, one_by_one, read_batches, split_file
from scannery.pipelines.sources.encodings import decoded_text
from scannery.pipelines.sources.parts import Fields, Record
from tests.pipelines.sources.encoded_texts import TEXTS

AMBIGUOUS = {
    ("italian", "cp850", 0), ("croatian", "iso8859-2", 1), ("thai", "cp874", 0), ("thai", "cp874", 2),
    ("lithuanian", "cp1257", 0), ("lithuanian", "cp1257", 2),
}  # fmt: skip
"""Single lines whose few letters fit a more frequent encoding as well."""
NAMED = [(language, encoding) for language, (_, encodings) in TEXTS.items() for encoding in encodings]


def forms(text: str) -> dict[object, str]:
    """Return each line, the text, and the text as subtitles and as a table."""
    lines = text.split("\n")
    srt = (f"{n}\r\n00:00:0{n},000 --> 00:00:0{n},900\r\n{line}\r\n\r\n" for n, line in enumerate(lines, 1))
    rows = (f'{n};"{line}";{7 * n}\r\n' for n, line in enumerate(lines, 1))
    return {
        **dict(enumerate(lines)),
        "page": text,
        "subtitles": "".join(srt),
        "table": "id;text;n\r\n" + "".join(rows),
    }


@pytest.mark.system
@pytest.mark.parametrize(("language", "encoding"), NAMED, ids=[f"{one} {other}" for one, other in NAMED])
def test_letters_tell_the_encoding(language: str, encoding: str) -> None:
    for form, text in forms(TEXTS[language][0]).items():
        try:
            data = text.encode(encoding)
        except UnicodeEncodeError:  # œ
            continue
        if (language, encoding, form) not in AMBIGUOUS:
            assert decoded_text(data)[0] == text, form


@pytest.mark.parametrize("name", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_encodings_of_unicode(name: str) -> None:
    for text in ("Rødgrød med fløde, " * 3, TEXTS["russian"][0]):
        assert decoded_text(text.encode(name), "") == (text, "") or name in ("utf-16-le", "utf-16-be")
        assert decoded_text(text.encode(name), name) == (text, "")


@pytest.mark.parametrize("language", ["danish", "russian", "japanese"])
@pytest.mark.parametrize("lines", ["\n", " "])
def test_a_broken_byte_costs_one_character(language: str, lines: str) -> None:
    text = TEXTS[language][0].replace("\n", lines)
    data = text.encode()
    text, note = decoded_text(data[:40] + b"\xff" + data[40:])
    assert "�" in text and text.count("�") <= 3 and note == "bytes that are not UTF-8 as U+FFFD"
    assert data[60:].decode(errors="ignore")[-30:] in text


def test_binary_data_is_no_text() -> None:
    with pytest.raises(UnicodeDecodeError):
        decoded_text(bytes(range(256)) * 4)


FILES = {
    "a.txt": TEXTS["polish"][0],
    "a.md": "# Tytuł\n\n" + TEXTS["polish"][0],
    "a.html": "<p>" + TEXTS["polish"][0] + "</p>",
    "a.csv": 'id,text\n1,"' + TEXTS["polish"][0] + '"\n',
    "a.jsonl": '{"id": "1", "text": "' + TEXTS["polish"][0].replace("\n", "\\n") + '"}\n',
    "a.json": '[{"id": "1", "text": "' + TEXTS["polish"][0].replace("\n", "\\n") + '"}]\n',
    "a.srt": "1\n00:00:01,000 --> 00:00:02,000\n" + TEXTS["polish"][0] + "\n",
}


@pytest.mark.parametrize("name", FILES)
def test_the_spec_names_the_encoding(tmp_path: Path, name: str) -> None:
    # In this encoding, no letter is where it is in those that are guessed.
    (tmp_path / name).write_bytes(FILES[name].encode("cp775"))
    source = SourceSpec(text="text", encoding="cp775")
    [file] = arrange(find_files([str(tmp_path / name)]), source)
    fields = Fields("id", None, frozenset({"id", "text"}), {})
    records = [
        record for part in split_file(file, 1 << 20) for record in one_by_one(read_batches(part, fields))
    ]
    assert all(isinstance(record, Record) for record in records)
    assert all(
        "Zażółć gęślą jaźń." in record.fields["text"] for record in records if isinstance(record, Record)
    )
    assert len(records) == 1


@pytest.mark.parametrize(
    ("name", "near"),
    [("windows1253x", "windows-1253"), ("utf_9", "utf-8"), ("hex", None), ("shift-jiss", "shift-jis")],
)
def test_unknown_encodings_are_refused(name: str, near: str | None) -> None:
    for spec in ({"encoding": name}, {"csv": {"encoding": name}}):
        with pytest.raises(ValidationError, match=near or "must be an encoding"):
            SourceSpec.model_validate({"text": "text", **spec})
