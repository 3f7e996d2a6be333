"""Migrations by the command, killed again and again, under readers and writes: no failed call, no lost write."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import scannery
from scannery.indexer import Store, read_manifest
from tests.cluster.servers import started_cluster
from tests.data import ROOT, at_full_length, repeated
from tests.live.log.postgres_server import PostgresServer
from tests.live.migration.traffic import INDEX, Traffic, text_of
from tests.served import MINILM, serving

pytestmark = pytest.mark.system
DOCUMENTS = 120
OTHER = json.dumps({"model": MINILM, "dimensions": 64})
MOST_S = 12.0
"""A command that runs for longer is killed; one that takes over a small index needs about as long."""


def command(store: Path, log: str, *arguments: str) -> list[str]:
    line = [sys.executable, "-m", "scannery.cli.main", "index", "migrate", INDEX, "--store", str(store)]
    return [*line, *(("--log", log) if log else ()), *arguments]


def run(store: Path, log: str, kills: int, chosen: random.Random, *arguments: str) -> int:
    """Run a migration that is killed up to some times, to its end; return how often it was killed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    for killed in range(kills + 1):
        process = subprocess.Popen(
            command(store, log, *arguments), env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        try:
            output, _ = process.communicate(timeout=240 if killed == kills else chosen.uniform(2, MOST_S))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            continue
        assert process.returncode == 0, output.decode()
        return killed
    raise AssertionError


@contextmanager
def served(kind: str, store: Path, log: str) -> Iterator[str]:
    """Serve a store by one server, by one with its log in PostgreSQL, or by a cluster; give its address."""
    if kind == "cluster":
        with started_cluster(store, 2, log=log) as (root, _):
            yield root.address
    else:
        with serving(store, device="cpu", log=log, models=(MINILM,)) as server:
            yield server.address


WHOLE = at_full_length("two minutes")
"""Of servers alone: test_migrating.py kills what migrates for one, and logs in PostgreSQL have tests of kills."""


@pytest.mark.long
@pytest.mark.parametrize(
    "kind", [pytest.param("server", marks=WHOLE), "cluster", pytest.param("postgres", marks=WHOLE)]
)
def test_a_migration_that_is_killed_loses_nothing(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    chunk = json.dumps({"max_tokens": 24, "overlap_tokens": 0})
    check(kind, tmp_path, request, kills=repeated(20), changes=["--encoder", OTHER, "--chunk", chunk])


def check(kind: str, store: Path, request: pytest.FixtureRequest, *, kills: int, changes: list[str]) -> None:
    """Fail if a call fails, or if the index or its mirror lack a write, after an exchange and one back."""
    log = ""
    if kind == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres")
        log = server.new_database()
    chosen, words = random.Random(kills), 40 if "--chunk" in changes else 12
    cut = "--chunk" in changes
    if not log:  # a root serves an index once its leaves do
        create(store, words, cut=cut)
    with served(kind, store, log) as target:
        if log:
            create(target, words, cut=cut)
        traffic = Traffic(target, DOCUMENTS, words=words)
        with traffic.running():
            run(store, log, kills, chosen, *changes)
            assert read_manifest(Store.open(store), INDEX).dimensions == 64
            run(store, log, 1, chosen, "--undo")
            assert read_manifest(Store.open(store), INDEX).dimensions == 384
        run(store, log, 0, chosen, "--no-switch")
        assert traffic.failures == []
        assert traffic.answers > 50 and traffic.writes > 50
        with scannery.connect(target, timeout_s=120) as client:
            for name in (INDEX, f"{INDEX}-mirror"):
                index = client.index(name)
                index.search(text_of(1, 0), min_sequence=index.stats().sequence)
                assert traffic.problems(index) == [], name
        run(store, log, 0, chosen, "--abandon")
        assert not [*store.glob(f"{INDEX}-mirror/versions/*")]


def create(target: Path | str, words: int, *, cut: bool) -> None:
    """Create the index, with the texts that the traffic expects."""
    chunk = {"max_tokens": 40, "overlap_tokens": 0} if cut else None
    with scannery.connect(target, timeout_s=120) as client:
        index = client.create_index(INDEX, encoder=MINILM, lexical=True, chunk=chunk)
        index.upsert(
            [{"id": f"d{number}", "text": text_of(number, 0, words)} for number in range(DOCUMENTS)],
            timeout_s=120,
        )
