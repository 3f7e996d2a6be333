"""Every command and every Python example of the pages that a newcomer follows, run as it stands there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from scannery.embed import Encoder
from scannery.pipelines import build
from tests.data import ROOT
from tests.pages import Reader, blocks, commands
from tests.served import MINILM

pytestmark = pytest.mark.system

PAGES = (
    "README.md", "docs/quickstart.md", "docs/build.md", "docs/documents.md", "docs/fields.md", "docs/collections.md",
    "docs/searching.md", "docs/dynamic-attributes.md", "docs/scan.md", "docs/highlighting.md", "docs/sdk.md",
    "docs/encoders.md", "docs/spec.md", "docs/live-updates.md", "docs/counting.md", "docs/vectorless-rows.md",
    "docs/named-vectors.md", "docs/import-export.md", "docs/serving.md", "docs/cluster.md", "docs/http.md",
    "docs/security.md", "docs/operations/serving.md", "docs/operations/versions.md", "docs/operations/memory.md",
)  # fmt: skip

START = "the first commands of Searching]("
"""What a page says whose examples begin with the index that docs/searching.md builds first."""

NOT_RUN = {
    ("docs/security.md", "--limit max_k=1000"): "the first server has its port; tests/serving/transport limits one",
    ("docs/cluster.md", "--ray auto"): "needs Ray; tests/bridges/ray runs a cluster on it",
    ("README.md", "make demo"): "makes an environment; tests/cli/test_demo.py runs the demo",
    ("README.md", "make wheel"): "tests/test_layout.py builds the wheel; pip would change this environment",
    ("docs/quickstart.md", "scannery demo"): "tests/cli/test_demo.py runs it",
    ("docs/searching.md", "rerank=50"): "no cross-encoder is installed; tests/serving/engine has one",
    ("docs/searching.md", "token_budget=1500"): "its texts are not cut; tests/serving/engine has an index whose are",
    ("docs/searching.md", "min_relevance=0.5"): "the index has few passages; tests/serving/engine has the curves",
    ("docs/searching.md", "--min-relevance 0.5"): "likewise; tests/cli/test_commands.py runs it",
    ("docs/searching.md", "Sparse({"): "needs vectors of a model for sparse retrieval",
    ("docs/import-export.md", "gs://bucket/export"): "needs a bucket; tests/cli/test_export.py exports to folders",
    ("docs/import-export.md", "./qdrant"): "needs other databases; tests/bridges/importers/test_import.py has them",
    ("docs/serving.md", "gs://bucket/store"): "needs a bucket; tests/serving/process serves with workers",
    ("docs/serving.md", "--compact podcasts"): "the page has a server there; tests/serving/test_compact.py serves them",
    ("docs/serving.md", "--cold archive"): "needs a bucket; tests/serving/test_cold.py serves cold indexes",
    ("docs/live-updates.md",
     "SCANNERY_LOG"): "needs a bucket and a database; tests/live/log has servers of PostgreSQL",
    ("docs/operations/versions.md",
     "index.rollback("): "the index is dropped by then; tests/serving/services/test_versions.py does the same",
    ("docs/operations/serving.md", "# doubles the rate"): "two minutes; tests/cli/test_bench.py doubles it, too",
    ("docs/operations/serving.md", "pip install"): "pip would change this environment; test_tracing.py traces",
}  # fmt: skip
"""Blocks that are not run, by their page and a text in them, each with the reason."""

SLOW = {
    "docs/operations/serving.md": "it measures for seconds; tests/cli/test_bench.py does for one",
    "docs/operations/versions.md": "tests/cli/indexes/test_index.py runs the commands",
    "docs/http.md": "tests/serving/transport/http asks the same by curl and three clients",
    "docs/import-export.md": "tests/cli/test_export.py runs the commands",
    "docs/live-updates.md": "tests/cli/indexes/test_live.py runs the commands",
    "docs/security.md": "tests/serving/security does the same with keys and certificates",
    "docs/serving.md": "tests/serving/process starts and stops servers",
}
"""Pages that only `make test-long` runs, each with the reason."""

ELSEWHERE = {
    "docs/bridges.md": "tests/bridges/test_door.py installs its package, and asks a server",
    "docs/adapters.md": "needs frameworks; tests/bridges has them (`make test-clients`)",
    "docs/cluster.md": "tests/cluster starts the same processes, and kills them",
    "docs/operations/cluster-runbook.md": "needs a cluster that fails; tests/cluster kills and stops its processes",
    "docs/evaluate.md": "tests/test_docs_evaluate.py runs it",
    "docs/feedback.md": "needs users; tests/serving/traffic and tests/cli/evaluation/test_log.py do the same",
    "docs/training.md": "needs judged queries; tests/cli/models trains, promotes and rolls back",
    "docs/changing-models.md": "needs a second model; tests/live/migration and tests/cli/models run the command",
    "docs/console.md": "it goes on for ever; tests/console starts the same processes",
    "docs/mcp.md": "it needs a server and goes on for ever; tests/bridges/mcp starts the same processes",
    "docs/operations/proxies.md": "tests/serving/transport/test_proxies.py starts the proxies with its text",
    "docs/embedding.md": "needs a TPU and models that are not installed",
    "docs/podcasts.md": "needs transcripts that are not in the repository",
    "docs/operations/audit.md": "needs a server and its calls; tests/serving/audit does the same",
    "docs/tenants.md": "needs keys of customers; tests/rights runs the commands",
    "docs/operations/upgrading.md": "needs former releases; tests/releases runs their code, and the command",
    "docs/operations/dataflow.md": "needs a cloud; tests/pipelines/execution makes the job without submitting it",
    "docs/operations/flink.md": "needs a cluster",
    "docs/operations/spark.md": "needs a cluster",
    "docs/vertex-collections.md": "needs other people's clients; tests/bridges/vertex runs them",
    "docs/vertex.md": "needs other people's clients; tests/bridges/vertex runs what it says with them",
    "docs/migrating.md": "needs other people's clients and services",
    "docs/operations/runners.md": "needs clusters; tests/pipelines runs two of the engines",
}
"""Other pages with commands, each with the reason."""

SHOWN = {
    "docs/quickstart.md": ("1 of 4 records would be refused", "Books.csv line 3", "Keeping bees", "first railways"),
    "docs/documents.md": ("The coffee guide > Espresso", "thirty days"),
    "docs/fields.md": ("looked at all 2 records", "A pot for the stove."),
    "docs/collections.md": ("songs is at version 2", "target_recall: 0.98"),
    "docs/searching.md": ("Magma rises", "Cars without petrol"),
    "docs/scan.md": ("Magma rises", "Electric cars"),
    "docs/highlighting.md": ("a *volcano* *erupts*",),
    "docs/build.md": ("missing_text", "removed"),
    "docs/encoders.md": ("intfloat/multilingual-e5-small", "german"),
    "docs/live-updates.md": ("Choirs", "ep-3"),
    "docs/named-vectors.md": ("Keeping bees", "shots is at version 1"),
    "docs/counting.md": ("2  Ann", "2 datapoints would be changed", "datapoints deleted; sequence"),
    "docs/import-export.md": ("sift: version 1", "products: version 1"),
    "docs/serving.md": ("Magma rises", "Serving on"),
    "docs/cluster.md": ("Serving on",),
    "docs/security.md": ("indexer", "Magma rises"),
    "docs/operations/serving.md": ("p99_ms",),
    "docs/operations/versions.md": ("podcasts: version 2", "version 3"),
    "docs/operations/memory.md": ("bytes a row", "in 8.0 GiB with 4 workers"),
    "README.md": ("operations: version 1", "Versions: show, verify"),
}  # fmt: skip
"""Texts that the commands of a page print."""


@pytest.fixture(scope="module", autouse=True)
def _encoder() -> None:
    # Torch's import must not count against the 30 s of a page's first call when the machine is busy.
    Encoder.load(MINILM, device="cpu")


@pytest.fixture
def reader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Reader]:
    monkeypatch.chdir(tmp_path)
    # README.md builds an index of this folder, and asks for these two pages.
    (tmp_path / "docs" / "operations").mkdir(parents=True)
    for page in ("serving.md", "versions.md"):
        shutil.copy(ROOT / "docs" / "operations" / page, tmp_path / "docs" / "operations")
    for name in ("SCANNERY_API_KEY", "SCANNERY_CA"):
        monkeypatch.delenv(name, raising=False)
    reader = Reader(capsys, monkeypatch)
    yield reader
    reader.close()


def is_listed(page: str, text: str) -> bool:
    return any(page == where and part in text for where, part in NOT_RUN)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the first commands of docs/searching.md make: `store`, `podcasts.yaml`, `episodes.jsonl`."""
    folder = tmp_path_factory.mktemp("start")
    files = [text for text in commands(blocks("docs/searching.md")[0].text) if text.startswith("cat ")]
    subprocess.run(["bash", "-euc", "\n".join(files)], check=True, cwd=folder)
    spec = yaml.safe_load((folder / "podcasts.yaml").read_text())
    build(spec, [str(folder / "episodes.jsonl")], str(folder / "store"))
    return folder


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=pytest.mark.long) if page in SLOW else page for page in PAGES]
)
def test_the_page_works_as_it_stands(
    page: str, reader: Reader, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = (ROOT / page).read_text()
    for program in ("curl", "openssl"):
        if re.search(rf"^{program} ", text, re.MULTILINE) and shutil.which(program) is None:
            pytest.skip(f"there is no {program}")
    if START in text:
        shutil.copytree(request.getfixturevalue("start"), tmp_path, dirs_exist_ok=True)
    for block in blocks(page):
        if not is_listed(page, block.text):
            reader.run(block)
    printed = "".join(reader.outputs.values())
    assert [text for text in SHOWN.get(page, ()) if text not in printed] == []


def test_what_is_not_run_is_listed_and_there() -> None:
    assert SLOW.keys() <= set(PAGES)
    for page, part in NOT_RUN:
        assert any(part in block.text for block in blocks(page)), (page, part)
    for page in PAGES:
        untagged = [block.text for block in blocks(page) if not block.language]
        assert [text for text in untagged if text.startswith(("scannery ", "pip ", "make ", "python "))] == []
        synopses = [block.text for block in blocks(page) if block.language == "text"]
        assert [text for text in synopses if not re.search(r"\b(INDEX|PATH|URI)\b", text)] == []
    pages = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")}
    guides = {page for page in pages if not page.startswith(("docs/adr/", "docs/benchmarks/"))}
    with_blocks = {page for page in guides if any(b.language != "yaml" for b in blocks(page))}
    assert with_blocks - {"docs/architecture.md", "docs/format.md", "docs/spec.md"} <= {*PAGES, *ELSEWHERE}
    assert set(ELSEWHERE) <= pages
