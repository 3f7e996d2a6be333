"""Every command and every Python example of the pages that a newcomer follows, run as it stands there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scannery.embed import Encoder
from tests.data import ROOT
from tests.pages import Reader, blocks
from tests.served import MINILM

PAGES = (
    "README.md",
    "docs/quickstart.md",
    "docs/build.md",
    "docs/documents.md",
    "docs/fields.md",
    "docs/searching.md",
    "docs/sdk.md",
    "docs/encoders.md",
    "docs/spec.md",
)

NOT_RUN = {
    ("README.md", "make demo"): "makes an environment; tests/cli/test_demo.py runs the demo",
    ("README.md", "make wheel"): "tests/test_layout.py builds the wheel; pip would change this environment",
    ("docs/quickstart.md", "scannery demo"): "tests/cli/test_demo.py runs it",
    ("docs/searching.md", "rerank=50"): "no cross-encoder is installed; tests/serving/engine has one",
    ("docs/searching.md", "Sparse({"): "needs vectors of a model for sparse retrieval",
}
"""Blocks that are not run, by their page and a text in them, each with the reason."""

ELSEWHERE = {
    "docs/evaluate.md": "tests/test_docs_evaluate.py runs it",
    "docs/embedding.md": "needs a TPU and models that are not installed",
    "docs/http.md": "tests/serving/transport/http calls what it describes",
    "docs/import-export.md": "has buckets; tests/cli/test_export.py runs the commands",
    "docs/live-updates.md": "has servers and buckets; tests/cli/test_live.py runs the commands",
    "docs/podcasts.md": "needs transcripts that are not in the repository",
    "docs/security.md": "needs certificates; tests/serving/security makes some",
    "docs/serving.md": "servers that do not end; tests/serving/process starts some",
    "docs/operations/dataflow.md": "needs a cloud; tests/pipelines/execution makes the job without submitting it",
    "docs/operations/flink.md": "needs a cluster",
    "docs/operations/spark.md": "needs a cluster",
    "docs/operations/runners.md": "needs clusters; tests/pipelines runs two of the engines",
    "docs/operations/serving.md": "needs containers and systemd; tests/test_deploy.py checks the files",
    "docs/operations/versions.md": "synopses; tests/cli/test_index.py runs the commands",
}
"""Other pages with commands, each with the reason."""

SHOWN = {
    "docs/quickstart.md": (
        "1 of 4 records would be refused",
        "Books.csv line 3",
        "Keeping bees",
        "first railways",
    ),
    "docs/documents.md": ("The coffee guide > Espresso", "thirty days"),
    "docs/fields.md": ("looked at all 2 records", "A pot for the stove."),
    "docs/searching.md": ("Magma rises", "Cars without petrol"),
    "docs/build.md": ("missing_text", "removed"),
    "docs/encoders.md": ("intfloat/multilingual-e5-small", "german"),
    "README.md": ("operations: version 1", "Versions: show, verify"),
}
"""Texts that the commands of a page print."""


@pytest.fixture
def reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    # Torch's import must not count against the 30 s of a page's first call when the machine is busy.
    Encoder.load(MINILM, device="cpu")
    reader = Reader(capsys)
    yield reader
    reader.close()


def is_run(page: str, text: str) -> bool:
    return not any(page == where and part in text for where, part in NOT_RUN)


@pytest.mark.parametrize("page", PAGES)
def test_the_page_works_as_it_stands(page: str, reader: Reader) -> None:
    for block in blocks(page):
        if is_run(page, block.text):
            reader.run(block)
    printed = "".join(reader.outputs.values())
    assert [text for text in SHOWN.get(page, ()) if text not in printed] == []


def test_what_is_not_run_is_listed_and_there() -> None:
    for page, part in NOT_RUN:
        assert any(part in block.text for block in blocks(page)), (page, part)
    for page in PAGES:
        untagged = [block.text for block in blocks(page) if not block.language]
        assert [text for text in untagged if text.startswith(("scannery ", "pip ", "make ", "python "))] == []
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    guides = {page for page in pages if not page.startswith(("docs/adr/", "docs/benchmarks/"))}
    with_blocks = {page for page in guides if any(b.language != "yaml" for b in blocks(page))}
    assert with_blocks - {"docs/architecture.md", "docs/format.md", "docs/spec.md"} <= {*PAGES, *ELSEWHERE}
    assert set(ELSEWHERE) <= pages
