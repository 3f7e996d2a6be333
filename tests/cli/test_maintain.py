"""`scannery maintain` as a command: what `--once` does, and how it ends."""

from __future__ import annotations

import logging
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from scannery.cli.main import main
from scannery.indexer import Store, list_versions, read_manifest
from scannery.live.maintenance.locks import locked
from scannery.serving.catalog.roles import server_catalog
from tests.live.model import make_store, random_row
from tests.live.test_identity import write


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The command sets the handler of a signal and the level of the log of its process."""
    handler, level = signal.getsignal(signal.SIGTERM), logging.getLogger("scannery").level
    yield
    signal.signal(signal.SIGTERM, handler)
    logging.getLogger("scannery").setLevel(level)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rng = random.Random(0)
    path = make_store(tmp_path, [random_row(rng, f"id{i}") for i in range(10)])
    catalog = server_catalog(Store.open(path))
    catalog.refresh()
    write(catalog, "new")
    catalog.close()
    return path


def test_once_does_what_is_due_and_leaves_the_tasks_of_others_to_them(path: Path) -> None:
    store = Store.open(path)
    with locked(path, "live", "seal"):  # as a server holds it, whose log is in the same folder
        assert main(["maintain", "--store", str(path), "--once"]) == 0
    assert list_versions(store, "live") == [1]
    assert main(["maintain", "--store", str(path), "--once", "--index", "live"]) == 0
    assert read_manifest(store, "live").log_sequence == 1
    assert read_manifest(store, "live").rows == 11


@pytest.mark.parametrize(
    ("options", "code", "told"),
    [
        (("--store", "{path}/none"), 3, "none"),
        (("--store", "s3://bucket/store"), 2, "--log"),
        (("--store", "{path}", "--once", "--index", "other"), 3, "other"),
        (("--store", "{path}", "--metrics-listen", "here"), 2, "--metrics-listen: must be"),
        (("--store", "{path}", "--log", "postgresql://[", "--once"), 2, "URL"),
    ],
)
def test_wrong_options_end_it(
    path: Path, options: tuple[str, ...], code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["maintain", *(option.format(path=path) for option in options)]) == code
    assert told in capsys.readouterr().err
