"""Random operations on an index and its branches: each has the rows that a model says, and none those of another."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pytest

import scannery
from scannery.indexer import Store, collect_garbage, list_versions, verify
from scannery.live.maintenance.copies import branch
from scannery.live.maintenance.merge import merge
from scannery.live.maintenance.rollback import rollback
from scannery.live.maintenance.seal import seal
from tests.data import repeated

Rows = dict[str, int]
"""The value of each datapoint."""

NAMES = [f"index{number}" for number in range(5)]
IDS = [f"id{number}" for number in range(60)]
OPERATIONS = {
    "write": 10.0, "delete": 4.0, "seal": 2.0, "merge": 1.0, "collect": 1.0, "branch": 1.0, "drop": 0.4,
    "roll_back": 0.5,
}  # fmt: skip
CHECK_EVERY = 7

pytestmark = pytest.mark.usefixtures("merges_by_hand")


@dataclass
class Expected:
    """What an index should have."""

    versions: dict[int, Rows]
    """The rows of each version that is kept."""
    unsealed: list[tuple[str, int | None]] = field(default_factory=list)
    """Writes after the last version; None: the datapoint is deleted."""

    @property
    def rows(self) -> Rows:
        rows = dict(self.versions[max(self.versions)])
        for name, value in self.unsealed:
            if value is None:
                rows.pop(name, None)
            else:
                rows[name] = value
        return rows


class Machine:
    """A store with indexes, and what they should have."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng, self.path = random.Random(seed), path
        self.store = Store.open(path, create=True)
        self.client = scannery.connect(path)
        self.indexes: dict[str, Expected] = {}
        self.values: Iterator[int] = iter(range(1 << 30))

    def create(self) -> None:
        self.client.create_index(
            {"index": NAMES[0], "source": {"vector": "vector"}, "live": {"merge_segments": 2}},
            dimensions=2, attributes={"value": "int"},
        )  # fmt: skip
        self.indexes[NAMES[0]] = Expected({1: {}})

    def step(self) -> None:
        if not self.indexes:
            self.create()
        kind = self.rng.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]
        getattr(self, f"_{kind}")(self.rng.choice(sorted(self.indexes)))

    def check(self, name: str) -> None:
        # Another client: it opens what is there now.
        with scannery.connect(self.path) as client:
            points = client.index(name).scan(fields=["value"])
            assert {point.id: point.attributes["value"] for point in points} == self.indexes[name].rows, name
        assert list_versions(self.store, name) == sorted(self.indexes[name].versions)

    def check_all(self) -> None:
        for name in self.indexes:
            self.check(name)
            assert verify(self.store, name).problems == ()
        assert sorted(self.store.folders()) == sorted(self.indexes)

    def _write(self, name: str) -> None:
        rows = {identifier: next(self.values) for identifier in self.rng.sample(IDS, self.rng.randint(1, 12))}
        self.client.index(name).upsert(
            [
                {"id": each, "vector": [value, 1], "attributes": {"value": value}}
                for each, value in rows.items()
            ]
        )
        self.indexes[name].unsealed += rows.items()

    def _delete(self, name: str) -> None:
        gone = self.rng.sample(IDS, self.rng.randint(1, 12))
        self.client.index(name).delete(gone)
        self.indexes[name].unsealed += [(each, None) for each in gone]

    def _seal(self, name: str) -> None:
        expected = self.indexes[name]
        report = seal(self.store, name)
        assert (report is None) == (not expected.unsealed)
        if report is not None:
            rows = expected.rows
            expected.versions[report.version], expected.unsealed = rows, []

    def _merge(self, name: str) -> None:
        versions = self.indexes[name].versions
        if (report := merge(self.store, name)) is not None:
            versions[report.version] = versions[max(versions)]

    def _collect(self, name: str) -> None:
        keep = self.rng.choice([1, 1, 2])
        for version in collect_garbage(self.store, name, keep=keep, min_age=timedelta(0)).versions:
            del self.indexes[name].versions[version]

    def _branch(self, name: str) -> None:
        if not (free := [each for each in NAMES if each not in self.indexes]):
            return
        made, origin = self.rng.choice(free), self.indexes[name]
        if self.rng.random() < 0.3:
            version = self.rng.choice(sorted(origin.versions))
            branch(self.store, name, made, version=version)
            self.indexes[made] = Expected({version: origin.versions[version]})
        else:
            version = branch(self.store, name, made).version
            self.indexes[made] = Expected({version: origin.versions[version]}, list(origin.unsealed))
        self.check(made)

    def _drop(self, name: str) -> None:
        self.client.drop_index(name)
        del self.indexes[name]

    def _roll_back(self, name: str) -> None:
        versions = self.indexes[name].versions
        old = self.rng.choice(sorted(versions))
        versions[rollback(self.store, name, old).version] = versions[old]


def run(path: Path, seed: int, operations: int) -> None:
    machine = Machine(path, seed)
    for number in range(operations):
        machine.step()
        if number % CHECK_EVERY == 0 and machine.indexes:
            machine.check(machine.rng.choice(sorted(machine.indexes)))
    machine.check_all()
    machine.client.close()


def test_an_index_and_its_branches_have_the_rows_that_a_model_says(tmp_path: Path) -> None:
    run(tmp_path / "store", seed=1, operations=30)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_ten_thousand_operations(tmp_path: Path) -> None:
    for seed in range(max(3, repeated(10))):
        run(tmp_path / f"store{seed}", seed, repeated(1000))
