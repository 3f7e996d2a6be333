"""Documents as people have them become records; hostile ones become dead letters, and quickly."""

from __future__ import annotations

import gzip
import json
import math
import os
import resource
import signal
import time
import zipfile
from decimal import Decimal
from pathlib import Path
from typing import Any

import docx
import pytest
from reportlab.lib.pdfencrypt import StandardEncryption
from reportlab.pdfgen import canvas

from scannery.embed.text.markdown import find_structure
from scannery.indexer import parse_spec
from scannery.pipelines.dead_letters import DeadLetter
from scannery.pipelines.errors import MissingPackageError
from scannery.pipelines.sources import Fields, Record, arrange, find_files, read_part, split_file
from scannery.pipelines.sources.documents import pdf_files
from scannery.pipelines.sources.documents.html_pages import markdown_of, read_html
from scannery.pipelines.sources.documents.text_documents import front_matter, has_bad_front_matter

SPEC = parse_spec({"index": "i", "source": {"text": "text"}, "encoder": {"model": "m"}})


def read(path: Path) -> tuple[list[Record], list[DeadLetter]]:
    items = [
        item
        for file in arrange(find_files([str(path)]), SPEC.source)
        for part in split_file(file, 1 << 20)
        for item in read_part(part, Fields.of(SPEC))
    ]
    records = [item for item in items if isinstance(item, Record)]
    return records, [item for item in items if isinstance(item, DeadLetter)]


def fields(path: Path) -> dict[str, Any]:
    [record], letters = read(path)
    assert not letters
    return dict(record.fields)


def refused(path: Path) -> DeadLetter:
    records, [letter] = read(path)
    assert not records
    assert letter.id == path.name
    return letter


PAGE = """<!doctype html><html lang="en"><head><title>Espresso at home</title><meta name="author" content="Ann">
<style>.x{}</style></head><body><header><nav><a href="/">Menu</a></nav></header>
<main><h1>Espresso</h1><p>Nine <b>bars</b> of pressure<br>for 30 s.</p><h2>Beans</h2>
<ul><li>Arabica<ul><li>washed</li></ul></li><li><p>Robusta</p></li></ul>
<table><tr><th>bean<th>price</tr><tr><td rowspan=2>A|B<td>1</tr><tr><td>2</tr></table>
<pre># a comment
x = 1</pre><p># not a heading</p><script>alert(1)</script><p hidden>secret</p></main>
<footer>Imprint</footer></body></html>"""

PAGE_TEXT = """# Espresso

Nine bars of pressure
for 30 s.

## Beans

- Arabica
  - washed
- Robusta

| bean | price |
| --- | --- |
| A\\|B | 1 |
| A\\|B | 2 |

```
# a comment
x = 1
```

\\# not a heading"""


@pytest.mark.parametrize("name", ["a.html", "a.htm.gz"])
def test_html_is_the_main_content_as_markdown(tmp_path, name):
    data = PAGE.encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    assert fields(tmp_path / name) == {
        "id": name, "path": name, "name": "a", "folder": "", "title": "Espresso at home", "language": "en",
        "author": "Ann", "text": PAGE_TEXT,
    }  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        "<p>Käse</p>".encode("cp1252"), '<meta charset="utf-8"><p>Käse</p>'.encode(), "<p>Käse</p>".encode("utf-16"),
        '<meta charset="iso-8859-1"><p>Käse</p>'.encode("cp1252"), b'<meta charset="no-such"><p>K\xe4se</p>',
        "\ufeff<p>Käse</p>".encode(),
        *(f"<meta charset={name}><p>Käse".encode("cp1252") for name in ("idna", "punycode", "undefined", "zlib")),
    ],
)  # fmt: skip
def test_the_encoding_of_a_page_is_found(data):
    assert read_html(data).text == "Käse"


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("plain text", "plain text"), ("", ""), ("<!-- -->", ""), ("a &amp; b&nbsp;c", "a & b c"),
        ("<ol><li>a<li>b</ol>", "1. a\n2. b"), ("<article>a</article><article>b</article>", "a\n\nb"),
        ("<table><tr><td><h2>t</h2></td></tr></table>x", "## t\n\nx"), ("<aside>x</aside>y", "y"),
        ("<table><tr><td>alone</table>", "alone"), ("<blockquote><p>q<p>r</blockquote>", "> q\n\n> r"),
    ],
)  # fmt: skip
def test_markdown_of_html(html, text):
    assert markdown_of(html) == text


@pytest.mark.system
@pytest.mark.parametrize(
    "piece",
    [
        "<div>",
        "<p>x</p>",
        "<aside>a</aside>b",
        "<ul><li>x",
        "<td colspan=9999>y",
        "<a href=x>",
        "&lt;",
        "<!--",
    ],
)
def test_hostile_pages_take_linear_time(piece):
    started = time.thread_time()
    try:
        read_html((piece * ((1 << 19) // len(piece))).encode())
    except Exception as error:  # noqa: BLE001
        assert type(error).__name__ == "DocumentError"
    assert time.thread_time() - started < 4


def test_front_matter_that_nests_takes_linear_time():
    started = time.thread_time()
    assert front_matter(f"---\na: {'[' * 200_000}\n---\ntext") == {}
    assert front_matter(f"---\na: {'[' * 900}{']' * 900}\n---\ntext") == {}
    assert time.thread_time() - started < 2


@pytest.mark.system
@pytest.mark.parametrize(
    "matter",
    ["+++\nx = 1\n" + ".".join("a" * 30_000) + " = 1\n+++\n",
     "+++\nx = 1\n[" + ".".join(['"a b"'] * 9_000) + "]\n+++\n",
     "+++\nx = { " + ".".join(["'a'"] * 9_000) + " = 1 }\n+++\n",
     "+++\nx = 0x" + "f" * 60_000 + "\n+++\n",
     '{"a": ' + "[" * 900 + "]" * 900 + "}\n",
     '{"a": ' + '{"b":' * 400 + "1" + "}" * 400 + "}\n",
     "---\na: " + "1:" * 20_000 + "1\n---\n",
     *(f"---\na: {value}\n---\n" for value in ('!!int ""', '!!float ""', "!!bool x", "!!timestamp x"))],
    ids=range(11),
)  # fmt: skip
def test_front_matter_that_is_hostile_has_no_fields(matter):
    started = time.thread_time()
    assert front_matter(f"{matter}text") == {}
    assert has_bad_front_matter(f"{matter}text")
    assert time.thread_time() - started < 4


@pytest.mark.parametrize(
    "matter",
    ['{"a": 1e999, "b": [-1e999], "c": 1.5}\n', "+++\na = 1e999\nb = [-1e999]\nc = 1.5\n+++\n",
     "---\na: 1.0e+999\nb: [-1_0.0e+998]\nc: 1.5\n---\n"],
    ids=["json", "toml", "yaml"],
)  # fmt: skip
def test_numbers_in_front_matter_do_not_become_infinite(matter):
    assert front_matter(f"{matter}text") == {"a": Decimal("1e999"), "b": [Decimal("-1e999")], "c": 1.5}


@pytest.mark.parametrize("matter", ["+++\na = inf\n+++\n", "---\na: .inf\n---\n", '{"a": Infinity}\n'])
def test_infinity_in_front_matter_is_infinite(matter):
    assert front_matter(f"{matter}text") == {"a": math.inf}


def test_sets_in_front_matter_have_an_order():
    assert front_matter("---\na: !!set {c, b, a}\n---\ntext") == {"a": ["a", "b", "c"]}


def test_a_page_of_tags_is_refused(tmp_path):
    (tmp_path / "a.html").write_bytes(b"<b>" * 1_100_000)
    assert refused(tmp_path / "a.html").reason == "too_large"


def as_pdf(path: Path, pages: list[str], **options: Any) -> None:
    page = canvas.Canvas(str(path), **options)
    page.setTitle("The annual report")
    page.setAuthor("Bo")
    for text in pages:
        page.drawString(72, 700, text)
        page.showPage()
    page.save()


@pytest.mark.system
def test_pdf_has_pages_and_metadata(tmp_path):
    as_pdf(tmp_path / "a.pdf", ["Sales grew by a tenth.", "", "Costs fell."])
    found = fields(tmp_path / "a.pdf")
    assert found["text"] == "Sales grew by a tenth.\n\n\f\n\n\fCosts fell."
    assert (found["title"], found["author"], found["pages"]) == ("The annual report", "Bo", 3)
    assert found["published"][:2] == "20"


def test_pdfs_without_a_text_to_index_are_refused_with_a_reason(tmp_path):
    as_pdf(tmp_path / "locked.pdf", ["secret"], encrypt=StandardEncryption("password"))
    assert refused(tmp_path / "locked.pdf").reason == "encrypted"
    as_pdf(tmp_path / "scan.pdf", ["", ""])
    letter = refused(tmp_path / "scan.pdf")
    assert (letter.reason, "scanned" in letter.message) == ("no_text", True)
    (tmp_path / "bad.pdf").write_bytes(b"%PDF-1.7\n" + os.urandom(2000))
    assert refused(tmp_path / "bad.pdf").reason == "damaged_file"


def test_a_pdf_that_opens_without_a_password_is_read(tmp_path):
    as_pdf(tmp_path / "a.pdf", ["open"], encrypt=StandardEncryption("", ownerPassword="x", canPrint=0))
    assert fields(tmp_path / "a.pdf")["text"] == "open"


@pytest.mark.system
def test_a_pdf_that_takes_too_long_is_refused_and_the_next_is_read(tmp_path, monkeypatch):
    as_pdf(tmp_path / "a.pdf", ["text"])
    assert fields(tmp_path / "a.pdf")["text"] == "text"
    child = pdf_files._PROCESS._child
    assert child is not None
    os.kill(child.pid, signal.SIGSTOP)  # as if a page were endless
    monkeypatch.setattr(pdf_files, "PAGE_S", 0.2)
    assert refused(tmp_path / "a.pdf").reason == "too_slow"
    assert child.poll() is not None
    monkeypatch.setattr(pdf_files, "PAGE_S", 60)
    assert fields(tmp_path / "a.pdf")["text"] == "text"
    child = pdf_files._PROCESS._child
    assert child is not None
    child.kill()  # as a defect of its library would
    child.wait()
    assert refused(tmp_path / "a.pdf").reason == "damaged_file"
    assert fields(tmp_path / "a.pdf")["text"] == "text"


def test_docx_has_headings_lists_and_tables(tmp_path):
    document = docx.Document()
    document.core_properties.title = "Handbook"
    document.core_properties.author = "Bo"
    document.add_heading("Travel", 1)
    document.add_paragraph("Book early.")
    document.add_heading("Trains", 2)
    document.add_paragraph("Seat 1", style="List Bullet")
    document.add_paragraph("Seat 2", style="List Bullet")
    table = document.add_table(rows=2, cols=2)
    for cell, text in zip(table._cells, ["from", "price", "Bern", "20 | 30"], strict=True):
        cell.text = text
    document.add_paragraph("The end.\tReally.")
    document.save(str(tmp_path / "a.docx"))
    found = fields(tmp_path / "a.docx")
    assert found["text"] == (
        "# Travel\n\nBook early.\n\n## Trains\n\n- Seat 1\n- Seat 2\n\n"
        "| from | price |\n| --- | --- |\n| Bern | 20 \\| 30 |\n\nThe end. Really."
    )
    assert (found["title"], found["author"]) == ("Handbook", "Bo")


def archive(path: Path, entries: dict[str, str | bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        for name, content in entries.items():
            made.writestr(name, content)
    return path


W = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


@pytest.mark.system
def test_hostile_archives_are_refused(tmp_path):
    bomb = f"<w:document {W}>" + " " * (80 << 20) + "</w:document>"
    assert refused(archive(tmp_path / "bomb.docx", {"word/document.xml": bomb})).reason == "too_large"
    laughs = '<!DOCTYPE w [<!ENTITY a "ha"><!ENTITY b "&a;&a;">' + "".join(
        f'<!ENTITY {chr(99 + i)} "{f"&{chr(98 + i)};" * 10}">' for i in range(9)
    )
    entity = f"{laughs}]><w:document {W}><w:body><w:p><w:r><w:t>x&k;</w:t></w:r></w:p></w:body></w:document>"
    assert refused(archive(tmp_path / "laughs.docx", {"word/document.xml": entity})).reason == "malformed"
    file = tmp_path / "passwd"
    file.write_text("secret")
    outside = f'<!DOCTYPE w [<!ENTITY a SYSTEM "file://{file}">]><w:document {W}><w:body><w:p><w:r><w:t>x&a;</w:t></w:r></w:p></w:body></w:document>'  # noqa: E501  # fmt: skip
    [record], _ = read(archive(tmp_path / "outside.docx", {"word/document.xml": outside}))
    assert record.fields["text"] == "x"
    assert refused(archive(tmp_path / "other.docx", {"a": "b"})).reason == "malformed"
    (tmp_path / "no.docx").write_bytes(b"PK\x03\x04" + os.urandom(500))
    assert refused(tmp_path / "no.docx").reason == "malformed"


@pytest.mark.system
@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_compression_that_cannot_be_read_in_pieces_is_refused(tmp_path, method):
    path = tmp_path / "a.docx"
    with zipfile.ZipFile(path, "w", method) as made:
        made.writestr("word/document.xml", " " * (80 << 20))
    assert path.stat().st_size < 1 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert refused(path).reason == "malformed"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def book(path: Path, **more: str) -> Path:
    container = '<container xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles><rootfile full-path="O/p.opf"/></rootfiles></container>'  # noqa: E501  # fmt: skip
    package = """<package xmlns="http://www.idpf.org/2007/opf"><metadata xmlns:dc="http://purl.org/dc/elements/1.1/">
    <dc:title>A Tale</dc:title><dc:creator>Ann</dc:creator><dc:language>en</dc:language></metadata><manifest>
    <item id="n" href="nav.xhtml" media-type="application/xhtml+xml" properties="nav"/>
    <item id="b" href="t/two.xhtml" media-type="application/xhtml+xml"/>
    <item id="a" href="t/one%201.xhtml" media-type="application/xhtml+xml"/></manifest>
    <spine><itemref idref="n"/><itemref idref="a"/><itemref idref="b"/></spine></package>"""
    nav = '<html xmlns="http://www.w3.org/1999/xhtml"><body><nav><a href="t/one%201.xhtml#x">The start</a></nav></body></html>'  # noqa: E501  # fmt: skip
    chapters = {"O/t/one 1.xhtml": "<html><body><p>It was.</p></body></html>",
                "O/t/two.xhtml": "<html><body><h1>Two</h1><p>It is.</p></body></html>"}  # fmt: skip
    return archive(
        path,
        {"META-INF/container.xml": container, "O/p.opf": package, "O/nav.xhtml": nav, **chapters, **more},
    )


def test_epub_has_its_chapters_in_reading_order(tmp_path):
    found = fields(book(tmp_path / "a.epub"))
    assert found["text"] == "# The start\n\nIt was.\n\n# Two\n\nIt is."
    assert (found["title"], found["author"], found["language"]) == ("A Tale", "Ann", "en")


def test_a_protected_book_is_refused(tmp_path):
    protection = '<encryption xmlns="urn:x"><e:EncryptedData xmlns:e="http://www.w3.org/2001/04/xmlenc#"><e:EncryptionMethod Algorithm="http://www.w3.org/2001/04/xmlenc#aes256-cbc"/></e:EncryptedData></encryption>'  # noqa: E501  # fmt: skip
    path = book(tmp_path / "a.epub", **{"META-INF/encryption.xml": protection})
    assert refused(path).reason == "encrypted"


def test_markdown_has_fields_of_its_front_matter(tmp_path):
    text = "---\ntitle: 2001\ndate: 2024-03-01\ntags: [a, b]\nid: ignored\n---\n# Heading\nText"
    (tmp_path / "a.md").write_text(text)
    assert fields(tmp_path / "a.md") == {
        "id": "a.md", "path": "a.md", "name": "a", "folder": "", "title": "2001", "date": "2024-03-01",
        "tags": ["a", "b"], "text": text,
    }  # fmt: skip
    (tmp_path / "a.md").write_text("Intro\n\n## First *heading*\ntext\n# Second")
    assert fields(tmp_path / "a.md")["title"] == "First heading"


@pytest.mark.parametrize(
    "matter", ["a: [", "a: &x [1]\nb: [*x, *x]", "a: !!python/object:os.system x", "- 1\nb: 2"]
)
def test_front_matter_that_is_not_plain_has_no_fields(tmp_path, matter):
    (tmp_path / "a.md").write_text(f"---\n{matter}\n---\ntext")
    assert set(fields(tmp_path / "a.md")) == {"id", "path", "name", "folder", "title", "text"}


def test_front_matter_that_cannot_be_read_is_counted(tmp_path):
    (tmp_path / "a.md").write_text("---\ntitle: Notes: on ice\ntags: x\n---\nGlaciers move.")
    [record], _ = read(tmp_path / "a.md")
    assert (record.fields["title"], record.ignored) == (
        None,
        ("front matter that is not valid YAML or TOML",),
    )
    (tmp_path / "a.md").write_text("---\n---\nGlaciers move.")
    assert read(tmp_path / "a.md")[0][0].ignored == ()


def test_a_notebook_has_texts_and_code(tmp_path):
    cells = [
        {"cell_type": "markdown", "source": ["# Study\n", "We look."]},
        {"cell_type": "code", "source": "# c\nx = 1", "outputs": [{"text": "no"}]},
    ]
    meta = {"language_info": {"name": "python"}}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": cells, "metadata": meta}))
    found = fields(tmp_path / "a.ipynb")
    assert found["text"] == "# Study\nWe look.\n\n```python\n# c\nx = 1\n```"
    assert found["title"] == "Study"
    (tmp_path / "b.ipynb").write_text("[" * 100_000)
    assert refused(tmp_path / "b.ipynb").reason == "malformed"


def test_without_the_extra_the_error_names_it(tmp_path, monkeypatch):
    (tmp_path / "a.pdf").write_bytes(b"x")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r'PDF needs pypdf: .*pip install "scannery\[documents\]"'):
        arrange(find_files([str(tmp_path)]), SPEC.source)


MATTERS = {
    "yaml": '---\ntitle: Owls\ndate: 2024-03-01\ntags: [a, b]\n---\n',
    "toml": '+++\ntitle = "Owls"\ndate = 2024-03-01\ntags = ["a", "b"]\n+++\n',
    "toml with a comment": '+++\n# of Hugo\ntitle = "Owls"\ndate = 2024-03-01\ntags = [\n  "a",\n  "b"\n]\n+++\n',
    "json": '{\n  "title": "Owls",\n  "date": "2024-03-01",\n  "tags": ["a", "b"]\n}\n\n',
    "json on one line": '{"title": "Owls", "date": "2024-03-01", "tags": ["a", "b"]}\n',
}  # fmt: skip


@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("lines", ["\n", "\r\n"])
@pytest.mark.parametrize("name", MATTERS)
def test_front_matter_in_yaml_toml_and_json(tmp_path, name, lines, mark):
    text = f"{mark}{MATTERS[name]}# Heading\nOwls hunt.".replace("\n", lines)
    (tmp_path / "a.md").write_bytes(text.encode())
    own = fields(tmp_path / "a.md")
    assert (own["title"], own["date"], own["tags"]) == ("Owls", "2024-03-01", ["a", "b"])
    assert [section.trail for section in find_structure(text).sections] == ["Heading"]


@pytest.mark.parametrize(
    "text",
    ["+++\nno key\n+++\nbody", "{not json}\nbody",
     '{"a": 1} and more\nbody', '{"a": 1}', "+++\na = 1\nno end", "{", "+++"],
)  # fmt: skip
def test_other_beginnings_are_no_front_matter(tmp_path, text):
    (tmp_path / "a.md").write_text(text)
    assert set(fields(tmp_path / "a.md")) == {"id", "path", "name", "folder", "title", "text"}


def test_toml_that_cannot_be_read_is_counted(tmp_path):
    (tmp_path / "a.md").write_text("+++\ntitle = Owls\n+++\nOwls hunt.")
    assert read(tmp_path / "a.md")[0][0].ignored == ("front matter that is not valid YAML or TOML",)
