"""One store, the actors on it, and the model beside them; it does one operation at a time."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

import scannery
from scannery.indexer import Manifest, SegmentCache, Store, list_versions, read_manifest, segment_key
from scannery.live.log.location import DatabaseUrl, LogRoot
from scannery.pipelines import build
from tests.model.actors import ACTORS, Actor, LocalActor
from tests.model.checks import Checker
from tests.model.errors import check
from tests.model.operations import OPERATIONS, Op
from tests.model.rows import INDEX, Row, Shape, make_spec, random_row
from tests.model.world import Rows, World, after_build

__all__ = ["IDS", "Machine"]

IDS = 220
STARTING_ROWS = 60
SCANN_IDS, SCANN_ROWS = 1500, 1300
"""Where segments are to be large enough for ScaNN, which takes a thousand rows at least."""
PRESERVING = ("live", "merge")
"""Modes of versions that keep what there is."""

ResultT = TypeVar("ResultT")
Effect = Callable[[Rows], Rows]


class Machine:
    """Executes operations, each known by what it is and a seed, and compares."""

    actor_names: tuple[str, ...] = tuple(ACTORS)

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        """Make a store in a folder; `config` has seed, distance and shards."""
        self.folder, self.config = folder, config
        scann = config.get("scann", False)
        self.ids, self.starting_rows = (SCANN_IDS, SCANN_ROWS) if scann else (IDS, STARTING_ROWS)
        self.grouped = config.get("documents", True)
        self.shape = Shape(*(config.get(name, False) for name in Shape._fields))
        self.spec = make_spec(**config | {"documents": self.grouped})
        self.path = folder / "store"
        # `log`: false, true, or the URL of a server of PostgreSQL, where each machine has a database of its own.
        given = config.get("log")
        self.log_root: LogRoot | None = folder / "logs" if given else None
        if isinstance(given, str):
            self.log_root = DatabaseUrl(given)
        self.cache = SegmentCache(folder / "cache")
        self.world = World()
        self.checker = Checker(
            self.world, config["distance"], self.ids, scann=scann, shape=self.shape, sync=self.sync
        )
        self.actors: dict[str, Actor] = {}
        self.backup: tuple[Path, World] | None = None
        self.counts: dict[str, int] = {}
        self.other: dict[str, int] | None = None
        """The rows of another index, by id; None: there is none."""
        self.aliased: str | None = None
        """The index that the alias stands for."""
        self._inputs = 0
        self._begin(random.Random(config["seed"]))

    def _begin(self, rng: random.Random) -> None:
        self.begin_index(rng)
        for name in self.actor_names:
            self.reopen(name)

    def begin_index(self, rng: random.Random) -> None:
        """Build the first version of the index."""
        rows = self.as_built([self.random_row(rng, f"id{number}") for number in range(self.starting_rows)])
        report = build(self.spec, [self.input_of(rows)], str(self.path))
        self.world.add_version(report.version, after_build({}, rows), 0)

    @property
    def store(self) -> Store:
        """The store, opened anew."""
        return Store.open(self.path)

    def do(self, op: Op) -> None:
        """Do one operation and compare what it is about."""
        kind = op["do"]
        self.counts[kind] = self.counts.get(kind, 0) + 1
        OPERATIONS[kind].run(self, random.Random(op["seed"]), op)

    def close(self) -> None:
        """Close all actors, and check that the store is sound."""
        for actor in self.actors.values():
            actor.close()

    def some_actor(self, rng: random.Random) -> Actor:
        """Return an actor by chance."""
        return self.actors[rng.choice(sorted(self.actors))]

    def reopen(self, name: str) -> Actor:
        """Open an actor anew."""
        if name in self.actors:
            self.actors.pop(name).close()
        self.actors[name] = self.open_actor(name)
        return self.actors[name]

    def open_actor(self, name: str) -> Actor:
        """Return a new actor."""
        return LocalActor.opened(name, self.path, INDEX, self.cache, log=self.log_root)

    def random_row(self, rng: random.Random, identifier: str) -> Row:
        """Return a row that the index may have."""
        return random_row(rng, identifier, self.shape)

    def some_ids(self, rng: random.Random, counts: Sequence[int]) -> list[str]:
        """Return different ids, sorted."""
        return sorted({f"id{rng.randrange(self.ids)}" for _ in range(rng.choice(counts))})

    def as_built(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows as a build of them has them."""
        return [
            replace(row, revision=0, document_id=row.document_id if self.grouped else row.id) for row in rows
        ]

    def input_of(self, rows: Sequence[Row]) -> str:
        """Write the input of a build and return its path."""
        self._inputs += 1
        path = self.folder / "input" / f"{self._inputs}.jsonl"
        path.parent.mkdir(exist_ok=True)
        records = [row.to_record() for row in rows]
        if not self.grouped:  # a field that the spec does not name would be a dynamic attribute
            records = [
                {name: value for name, value in record.items() if name != "document"} for record in records
            ]
        path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
        return str(path)

    def moved(self, actor: Actor, call: Callable[[], ResultT]) -> ResultT:
        """Return what a write answers; where its index is about to move to another version, move it."""
        try:
            return call()
        except scannery.ResourceExhaustedError as error:
            check("moves to another version" in str(error), f"{actor.name} takes no writes: {error}")
            actor.look()
            return call()

    def sync(self, effect: Effect | None = None, *, at: int | None = None) -> None:
        """Take note of versions that are new in the store.

        `effect` is what one of them does to its parent: `at`, or each that neither a seal nor a merge has made.
        All others hold what their parents do.
        """
        stored = list_versions(self.store, INDEX)
        for number in stored:
            if number in self.world.stored:
                continue
            check(number not in self.world.versions, f"version {number} was collected, and is there again")
            manifest = read_manifest(self.store, INDEX, number)
            preserves = manifest.statistics.get("mode") in PRESERVING
            has_effect = number == at if at is not None else not preserves
            self._add(manifest, effect if has_effect else None)
        check(not self.world.stored - set(stored), f"versions {self.world.stored - set(stored)} are gone")

    def _add(self, manifest: Manifest, effect: Effect | None) -> None:
        parent = manifest.parent
        check(
            parent == self.world.current,
            f"version {manifest.version} is of {parent}, not {self.world.current}",
        )
        assert parent is not None
        check(manifest.log_sequence <= self.world.position, "a version is ahead of the log")
        rows = self.world.state(parent, manifest.log_sequence)
        self.world.add_version(manifest.version, effect(rows) if effect else rows, manifest.log_sequence)
        self.check_files(manifest)

    def check_files(self, manifest: Manifest | None = None) -> None:
        """Check that all files of a version are in the store; by default of the current one."""
        manifest = manifest or read_manifest(self.store, INDEX)
        keys = [segment_key(INDEX, key) for entry in manifest.segments for key in entry.keys]
        missing = [key for key in keys if not (self.path / key).exists()]
        check(not missing, f"version {manifest.version} has no {missing}")

    def look_all(self) -> None:
        """Have all actors go over to the current version."""
        for actor in self.actors.values():
            actor.look()
            found = actor.version()
            check(
                found == self.world.current, f"{actor.name} is at version {found}, not {self.world.current}"
            )

    def forget(self) -> None:
        """Keep the model small."""
        self.world.forget(actor.open_version() for actor in self.actors.values())

    @contextmanager
    def during(self, ops: Sequence[Op], part: str) -> Iterator[None]:
        """Do some operations right before a file is stored whose key has a part: as if others were faster."""
        left = [list(ops)]
        create, write_file = Store.create, Store.write_file

        def interrupt(key: str) -> None:
            if part in key and left:
                for op in left.pop():
                    self.do(op | {"nested": True})

        def created(store: Store, key: str, data: bytes) -> None:
            interrupt(key)
            create(store, key, data)

        def written(store: Store, key: str, path: Path) -> None:
            interrupt(key)
            write_file(store, key, path)

        if not ops:
            yield
            return
        if any(op["do"] == "collected" for op in ops):
            self._age()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Store, "create", created)
            patch.setattr(Store, "write_file", written)
            yield

    def _age(self) -> None:
        """Make all files of the index two days old, so that only what comes now is too young for gc."""
        for path in (self.path / INDEX).rglob("*"):
            if path.is_file() and "log" not in path.parts:
                past = path.stat().st_mtime - 2 * 86400
                os.utime(path, (past, past))

    def replace_store(self, other: Path, world: World) -> None:
        """Put another store in the place of this one, with nobody there."""
        names = list(self.actors)
        for name in names:
            self.actors.pop(name).close()
        shutil.rmtree(self.path)
        other.rename(self.path)
        self.log_root = None  # a restored log lies in the store
        self.other = self.aliased = None
        self.world = self.checker.world = world
        for name in names:
            self.reopen(name)
