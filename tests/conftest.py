"""What all tests share."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from tests.tools.affected import affected_tests, changed_files
from tests.tools.metadata import bring_up_to_date

if TYPE_CHECKING:
    from tests.live.log.postgres_server import PostgresServer

# How long an example takes is the machine's doing, and no test's business. The examples are the same in every run, so
# that no change is refused for what it has not done; HYPOTHESIS_PROFILE=explore looks for new ones.
_ANY_TIME = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("scannery", _ANY_TIME, derandomize=True)
settings.register_profile("explore", _ANY_TIME)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "scannery"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--since`."""
    parser.addoption(
        "--since", metavar="REVISION", help="run only the files that changes since then can affect"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Let servers of this checkout find its bridges; workers of pytest-xdist leave that to the first process."""
    if not hasattr(config, "workerinput"):
        bring_up_to_date(config.rootpath)


_TEXTS = {"system": ("mark.system",), "long": ("mark.long", "first_quick(", "longer(")}
"""What the text of a file has whose tests have a mark."""


# To import all test files takes a process half a minute, and the marks of a run of `make` need some of them.
@cache
def _says(file: Path, mark: str) -> bool:
    return any(text in file.read_text() for text in _TEXTS[mark])


@cache
def _says_of_all(file: Path) -> bool:
    """Return whether a file says of all its tests that they have a mark."""
    return re.search(r"^pytestmark = .*mark\.(system|long)", file.read_text(), re.MULTILINE) is not None


def _can_have(file: Path, marks: str) -> bool:
    """Return whether a file can have tests of the marks that a run is for."""
    if marks in ("long", "system and not long"):
        return _says(file, marks.split(maxsplit=1)[0])
    return marks != "not system and not long" or not _says_of_all(file)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Refuse marks that the text of their file does not have: the tests would be in no run."""
    for mark in _TEXTS:
        if item.get_closest_marker(mark) and not _says(item.path, mark):
            raise pytest.UsageError(f"{item.nodeid}: {item.path.name} must say pytest.mark.{mark} itself")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out the test files without tests of the marks, and those that no change since `--since` can affect."""
    if not collection_path.match("test_*.py"):
        return None
    if not _can_have(collection_path, config.getoption("markexpr")):
        return True
    since = config.getoption("since")
    if since is None:
        return None
    chosen = _affected(config.rootpath, since)
    return (
        True
        if chosen is not None and str(collection_path.relative_to(config.rootpath)) not in chosen
        else None
    )


@cache
def _affected(root: Path, since: str) -> set[str] | None:
    return affected_tests(root, changed_files(root, since))


def pytest_collection() -> None:
    """Collect tests without garbage collections: they took a fifth of that time, and nearly all that is made stays."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Keep all modules and collected tests out of later garbage collections, each of which took half a second."""
    gc.freeze()
    gc.enable()


# Tests that load models by their library, whose imports alone take six seconds of processor time. The other files find
# in the shared cache how to load the same models without it.
_BY_LIBRARY = (
    "tests/embed/",
    "tests/cli/models/",
    "tests/cli/test_evaluate.py",
    "tests/client/test_named_vectors.py",
    "tests/live/named_vectors/test_encoded_texts.py",
    "tests/live/test_transcripts.py",
    "tests/pipelines/named_vectors/test_encoded_texts.py",
    "tests/pipelines/planning/test_padded_widths.py",
    "tests/pipelines/tuning/test_fusion_weight.py",
    "tests/serving/catalog/test_broken_indexes.py",
    "tests/serving/engine/test_highlighting.py",
    "tests/serving/engine/test_rerank.py",
    "tests/serving/services/test_creation.py",
    "tests/test_linear_text.py",
)

_LIBRARY = "library"

# Files of a few tests that take a minute or more each, and share nothing: their tests run apart.
_APART = ("tests/live/migration/test_kills.py", "tests/serving/services/test_migrating.py")

# What takes longest of one process: it comes first, so that no process is left with it at the end; those that load a
# model come after the first of _LIBRARY has loaded it. The others come by their number of tests.
_FIRST = (
    "tests/installed/test_installed.py",
    "tests/installed/test_client_alone.py",
    "tests/serving/memory/test_soak.py",
    _LIBRARY,
    "tests/live/migration/test_kills.py",
    "tests/releases/test_downgrade.py",
    "tests/live/expiry/test_expiry.py",
    "tests/console/test_map.py",
    "tests/cluster/failures/test_growing.py",
    "tests/cluster/failures/test_maintainers.py",
    "tests/cluster/failures/test_log_failures.py",
    "tests/cluster/failures/test_partitions.py",
    "tests/cluster/failures/test_hung_writers.py",
    "tests/serving/services/test_migrating.py",
    "tests/bridges/mcp/test_serve.py",
    "tests/serving/leaves/test_processes.py",
    "tests/serving/encoding/test_changed_encoders.py",
    "tests/cluster/failures/test_storm.py",
    "tests/serving/process/test_memory_ceiling.py",
    "tests/pipelines/test_kill_often.py",
    "tests/bridges/ray/test_server_process.py",
    "tests/console/test_browser.py",
    "tests/serving/process/test_held_recall.py",
    "tests/cluster/writes/test_writes.py",
    "tests/live/test_moves.py",
    "tests/serving/process/test_supervisor.py",
    "tests/pipelines/execution/test_runners.py",
    "tests/test_docs_commands.py",
    "tests/serving/process/test_encoder_process.py",
    "tests/model/test_model.py",
    "tests/live/test_disks.py",
    "tests/live/test_torture.py",
    "tests/pipelines/test_kill.py",
    "tests/pipelines/test_bit_rot.py",
    "tests/cli/test_foreign_files.py",
    "tests/cli/test_judge.py",
    "tests/test_docs_evaluate.py",
)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests that load models by their library in one process, and those of other files as `loadfile` does."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # its package has no types
        def _split_scope(self, nodeid: str) -> str:
            if nodeid.startswith(_APART):
                return nodeid
            return _LIBRARY if nodeid.startswith(_BY_LIBRARY) else super()._split_scope(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            scopes = (scope for first in _FIRST for scope in self.workqueue if scope.split("::")[0] == first)
            if (scope := next(scopes, None)) is not None:
                self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

    return Scheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def _own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep cached segments and temporary files in folders of this run; child processes inherit that.

    Processes are killed in many tests, and what they leave must not stay with the user. The processes of pytest-xdist
    share the cache: a model that one of them has loaded by its library is loaded without it by the others.
    """
    temporary = str(tmp_path_factory.mktemp("tmp"))
    run = tmp_path_factory.getbasetemp()
    cache = (run.parent if "PYTEST_XDIST_WORKER" in os.environ else run) / "cache"
    cache.mkdir(mode=0o700, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SCANNERY_CACHE_DIR", str(cache))
        patch.setenv("TMPDIR", temporary)
        patch.setattr(tempfile, "tempdir", temporary)
        yield


@pytest.fixture(scope="session", autouse=True)
def _shared_encoders() -> Iterator[None]:
    from tests.embed.shared_encoders import share_encoders

    with pytest.MonkeyPatch.context() as patch:
        share_encoders(patch)
        yield


@pytest.fixture(scope="session", autouse=True)
def _kept_tuners() -> Iterator[None]:
    """Let the processes that tune builds be forked by one server in the whole run, not by a new one after each pause.

    A server takes more than a second of processor time to start, and pauses between builds are longer here than in use.
    """
    if importlib.util.find_spec("scann") is None:  # the environment of `make test-xla`, which builds nothing
        yield
        return
    from scannery.indexer.scann import build

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build._TUNERS, "_idle_s", 3600.0)
        yield


@pytest.fixture
def merges_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have segments merged where the test does it, and by no process of maintenance beside it.

    Such a process takes more than a second of processor time, and may be first to merge what the test wants to.
    """
    from scannery.live.maintenance import scheduler

    monkeypatch.setattr(scheduler, "due", lambda manifest, *, filling=False: [])


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A server of PostgreSQL, whose commits would not survive a crash of the machine; each test makes a database."""
    from tests.live.log.postgres_server import postgres_or_skip

    server = postgres_or_skip()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the indexes `library` and `flat` of tests/served.py."""
    from tests.served import make_library_store

    return make_library_store(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the index `texts` of tests/served.py."""
    from tests.served import make_text_store

    return make_text_store(tmp_path_factory.mktemp("texts"))
