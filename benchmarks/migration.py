"""What a change of the encoder of a served index costs its callers: real podcasts under readers, a writer, and kills.

    python -m benchmarks.migration [--episodes 60] [--readers 8] [--pause 0.02] [--kills 20] [--rate 50]
                                   [--dimensions 256] [--model MODEL] [--tokens 200] [--folder FOLDER]

Episodes of seven shows are cut into passages of 128 tokens and encoded by MiniLM. A server answers readers by text in
all modes while a writer replaces, adds and deletes short documents. The command `scannery index migrate` is killed
after a random time, again and again, and then runs to its end; then `--undo`, and again forward. At the end index and
mirror are compared with what was acknowledged. --model is the other encoder, or its options as JSON; the default is
MiniLM at fewer dimensions (0: all). --pause: seconds of a reader between two searches. --episodes 0: all of them.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import scannery
from benchmarks.data import topics, transcripts
from benchmarks.harness import MINILM, ROOT, environment, folder_of, milliseconds, options, served, table
from scannery.indexer import Store, read_manifest
from scannery.pipelines import build
from scannery.runtime.search_modes import Mode

INDEX = "podcasts"
MODES: tuple[Mode, ...] = ("dense", "hybrid", "lexical")
CHUNK = {"max_tokens": 128, "overlap_tokens": 16}
NOTES = 300
"""Documents that the writer begins with."""


class Traffic:
    """Readers and a writer of one server."""

    def __init__(self, address: str, readers: int, pause_s: float, rate: int) -> None:
        self.failures: list[str] = []
        self.searches: list[tuple[float, float]] = []
        """When each began, and the seconds that it took."""
        self.writes: list[tuple[float, float]] = []
        self.notes: dict[str, str | None] = {}
        """Text of each note as acknowledged; None: it was deleted."""
        self._address, self._pause_s, self._rate, self._ended = address, pause_s, rate, threading.Event()
        self._threads = [threading.Thread(target=self._read, args=(seed,)) for seed in range(readers)]
        self._threads.append(threading.Thread(target=self._write))

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run it within the context."""
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._ended.set()
            for thread in self._threads:
                thread.join()

    def _read(self, seed: int) -> None:
        chosen, questions = random.Random(seed), topics()
        with scannery.connect(self._address) as client:
            index = client.index(INDEX)
            while not self._ended.wait(self._pause_s):
                began_s = time.monotonic()
                try:
                    mode = chosen.choice(MODES)
                    hits = index.search(chosen.choice(questions), k=10, mode=mode)
                    if not hits and mode != "lexical":  # few episodes may lack all words of a question
                        self.failures.append("a search without hits")
                except scannery.ScanneryError as error:
                    self.failures.append(repr(error)[:200])
                self.searches.append((began_s, time.monotonic() - began_s))

    def _write(self) -> None:
        chosen = random.Random(0)
        with scannery.connect(self._address) as client:
            index = client.index(INDEX)
            while not self._ended.is_set():
                began_s = time.monotonic()
                name = f"note-{chosen.randrange(NOTES + len(self.writes) // 4)}"
                text = f"A note on {chosen.choice(topics())} It is number {len(self.writes)}."
                try:
                    if chosen.random() < 0.2:
                        index.delete(document_ids=[name])
                        self.notes[name] = None
                    else:
                        index.upsert([{"id": name, "text": text}])
                        self.notes[name] = text
                except scannery.ScanneryError as error:
                    self.failures.append(repr(error)[:200])
                self.writes.append((began_s, time.monotonic() - began_s))
                self._ended.wait(max(0.0, 1 / self._rate - (time.monotonic() - began_s)))

    def wrong_notes(self, index: scannery.Index) -> int:
        """Return how many notes an index has that it must not have, or lacks."""
        texts: dict[str, list[tuple[int, str]]] = {}
        for datapoint in index.scan():
            if datapoint.document_id.startswith("note-"):
                texts.setdefault(datapoint.document_id, []).append(
                    (datapoint.text_start or 0, datapoint.text or "")
                )
        stored = {name: " ".join(part for _, part in sorted(parts)).split() for name, parts in texts.items()}
        expected = {name: text.split() for name, text in self.notes.items() if text is not None}
        return sum(stored.get(name) != expected.get(name) for name in stored.keys() | expected.keys())


def migrate(store: Path, kills: int, chosen: random.Random, *arguments: str) -> tuple[int, float, str]:
    """Run the command, killed up to some times, to its end; return how often, the seconds, and what it told."""
    command = [sys.executable, "-m", "scannery.cli.main", "index", "migrate", INDEX, "--store", str(store)]
    began_s = time.monotonic()
    for killed in range(kills + 1):
        process = subprocess.Popen(
            [*command, *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            output, _ = process.communicate(timeout=None if killed == kills else chosen.uniform(3, 40))
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            continue
        if process.returncode:
            raise SystemExit(output.decode())
        return killed, time.monotonic() - began_s, output.decode()
    raise AssertionError


def main() -> None:
    """Run it."""
    arguments = options(
        __doc__,
        episodes=60,
        readers=8,
        pause=0.02,
        kills=20,
        rate=50,
        dimensions=256,
        model=MINILM,
        tokens=200,
        folder=Path,
    )
    print(environment("torch", "scann"), flush=True)
    with folder_of(arguments.folder) as folder:
        report(folder, arguments)


def report(folder: Path, arguments: Namespace) -> None:
    """Build the index, and print the table."""
    store, source = folder / "store", folder / "episodes.jsonl"
    chosen = random.Random(1)
    source.write_text(
        "".join(json.dumps({"id": name, "text": text}) + "\n" for name, text in sampled(arguments.episodes))
    )
    spec = {
        "index": INDEX,
        "source": {"id": "id", "text": "text", "chunk": CHUNK},
        "encoder": {"model": MINILM},
        "lexical": True,
    }
    if not (store / INDEX).exists():
        build(spec, [str(source)], str(store))
    encoder = json.loads(arguments.model) if arguments.model.startswith("{") else {"model": arguments.model}
    if arguments.dimensions:
        encoder["dimensions"] = arguments.dimensions
    changes = ("--encoder", json.dumps(encoder), "--chunk", str(arguments.tokens))
    steps: list[tuple[str, int, float, float, str]] = []
    with served(store, "--http", "127.0.0.1:0") as (_, address, _):
        traffic = Traffic(address, arguments.readers, arguments.pause, arguments.rate)
        with traffic.running():
            time.sleep(10)
            steps.append(("before", 0, time.monotonic() - 10, time.monotonic(), ""))
            for name, kills, line in (
                ("migrate", arguments.kills, changes),
                ("undo", arguments.kills // 4, ("--undo",)),
                ("migrate again", 0, ()),
            ):
                began_s = time.monotonic()
                killed, _, told = migrate(store, kills, chosen, *line)
                steps.append((name, killed, began_s, time.monotonic(), told))
        migrate(store, 0, chosen, "--no-switch")
        time.sleep(2)
        with scannery.connect(address) as client:
            wrong = {name: traffic.wrong_notes(client.index(name)) for name in (INDEX, f"{INDEX}-mirror")}
    rows = [
        [name, killed, f"{end - begin:.0f} s", *latencies(traffic, begin, end), exchanged(told)]
        for name, killed, begin, end, told in steps
    ]
    manifests = [read_manifest(Store.open(store), name) for name in (INDEX, f"{INDEX}-mirror")]
    print(" and ".join(f"{each.rows:,} × {each.dimensions}" for each in manifests), "\n")
    header = (
        "step",
        "kills",
        "time",
        "searches",
        "p50 ms",
        "p99 ms",
        "writes",
        "slowest write ms",
        "exchange s",
    )
    print(table(header, rows))
    print(f"{len(traffic.searches):,} searches and {len(traffic.writes):,} writes, {len(traffic.failures)} failed; "
          f"wrong or lost documents: {wrong}")  # fmt: skip
    for failure in traffic.failures[:5]:
        print(failure)


def sampled(count: int) -> list[tuple[str, str]]:
    """Return some episodes of all shows, evenly; all of them for 0."""
    episodes = [*transcripts()]
    return episodes[:: len(episodes) // count][:count] if count else episodes


def latencies(traffic: Traffic, begin_s: float, end_s: float) -> list[object]:
    """Return counts and latencies of a step."""
    searches, writes = (
        [took_s for at_s, took_s in some if begin_s <= at_s < end_s]
        for some in (traffic.searches, traffic.writes)
    )
    return [
        f"{len(searches):,}",
        f"{milliseconds(searches, 0.5):.1f}",
        f"{milliseconds(searches, 0.99):.0f}",
        f"{len(writes):,}",
        f"{1e3 * max(writes, default=0):.0f}",
    ]


def exchanged(told: str) -> str:
    """Return the seconds of the exchange that a command told."""
    _, found, rest = told.partition("exchanged in ")
    return rest.split()[0] if found else ""


if __name__ == "__main__":
    main()
