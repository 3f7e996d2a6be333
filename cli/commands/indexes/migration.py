"""The steps of a migration, each of which goes on where an earlier process ended."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from scannery.cli.commands.models.train import difference_text
from scannery.cli.errors import NO
from scannery.cli.options import connected
from scannery.cli.output import console, map_text, size_text
from scannery.cli.progress import LINE_EVERY_S, counting_bar
from scannery.indexer import (
    IndexerError,
    IndexSpec,
    Manifest,
    NotFoundError,
    Store,
    VectorsInfo,
    read_manifest,
)
from scannery.indexer.models.manifest import Difference
from scannery.indexer.versions.creation import given_vectors
from scannery.indexer.versions.versions import is_dropped
from scannery.live.log.location import LogRoot
from scannery.live.maintenance.drop import drop
from scannery.live.maintenance.goals import (
    Goal,
    Progress,
    goal_of,
    is_reached,
    progress_of,
    set_goal,
    tell,
    tell_problem,
)
from scannery.live.maintenance.mirror_leases import release_source
from scannery.live.migration.errors import (
    MirrorBrokenError,
    MirrorRenewedError,
    UnencodableError,
    not_exchanged,
)
from scannery.live.migration.filling import Filled, convert_base, converted, fill
from scannery.live.migration.following import Follower
from scannery.live.migration.mapping import put_maps
from scannery.live.migration.mirrors import (
    begin_mirror,
    check_followed,
    mirror_of,
    remove_results,
    renew_mirror,
)
from scannery.live.migration.pricing import price_of
from scannery.live.migration.switching import settle, switch
from scannery.runtime.errors import ServingError
from scannery.runtime.mirror_names import mirror_name

if TYPE_CHECKING:
    import numpy as np

    from scannery.client import Client, Index
    from scannery.training.judged import Judged

__all__ = ["Migration"]

ResultT = TypeVar("ResultT")

NICE = 10
"""Priority of what converts: servers of this machine come first."""
RENEWALS = 3
"""How often a mirror begins again in one step, if the index is built each time."""
FOLLOW_S = 1.0
"""Time between two looks at the log with --follow."""
TELL_S = 1.0
"""Time between two tellings of how far a migration is."""


class Migration:
    """The steps of a migration, each of which goes on where an earlier process ended."""

    def __init__(self, store: Store, index: str, log_root: LogRoot | None) -> None:
        from scannery.serving.encoding.encoder_pool import EncoderPool

        self._store, self._index, self._log_root = store, index, log_root
        self._encoders = EncoderPool(store=store.uri)
        self._follower = Follower(
            store, mirror_name(index), self._encoders, self._vectors_of, log_root=log_root
        )

    def _vectors_of(self, spec: IndexSpec) -> Mapping[str, VectorsInfo]:
        vectors = {"": VectorsInfo(dimensions=read_manifest(self._store, self._index).dimensions)}
        for name in spec.named_vectors:
            if name not in spec.encoders:
                vectors[name] = given_vectors(spec, name)
        for name, encoder in spec.encoders.items():
            fingerprint = self._encoders.fingerprint_of(encoder, field="encoder")
            vectors[name] = VectorsInfo(dimensions=fingerprint.dimensions, encoder=fingerprint.to_dict())
        return vectors

    def settle(self) -> None:
        """Finish an exchange whose process was ended, if the index is migrated."""
        try:
            mirror_of(self._store, self._index)
        except NotFoundError:
            return
        settle(self._store, self._index)

    @property
    def is_exchanged(self) -> bool:
        """Whether the index has the new content, and its mirror the former one."""
        mirror = self._mirror.mirror
        return mirror is not None and mirror.former

    def check_exchanged(self) -> None:
        """Refuse to undo an exchange that was not made."""
        if not self.is_exchanged:
            raise not_exchanged(self._index, "index")

    @property
    def _mirror(self) -> Manifest:
        return mirror_of(self._store, self._index)

    def begin(self, changes: Mapping[str, Any]) -> None:
        """Create the mirror; without changes, that of before is gone on with."""
        if changes:
            begin_mirror(self._store, self._index, changes, self._vectors_of, log_root=self._log_root)

    def price(self, changes: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        """Return what a migration with these changes would cost, and sentences of it; nothing is written."""
        from scannery.pipelines.planning.worker_resources import RowSize, segment_bytes

        price = _at_low_priority(
            lambda: price_of(self._store, self._index, changes, self._vectors_of, self._encoders)
        )
        vectors = price.mirror.vectors.values()
        row = RowSize(sum(each.dimensions for each in vectors), price.bytes_per_row)
        mirror_bytes = segment_bytes(price.mirror_datapoints, row)
        result: dict[str, Any] = {
            "index": self._index,
            "datapoints": price.datapoints,
            "mirror": price.mirror.index,
            "mirror_encoder": price.mirror.spec.encoder and price.mirror.spec.encoder.model,
            "mirror_dimensions": price.mirror.dimensions,
            "mirror_datapoints": price.mirror_datapoints,
            "texts": price.texts,
            "sampled": price.sampled,
            "rows_per_s": round(price.rows_per_s, 1),
            "seconds": round(price.seconds, 1),
            "staged_bytes": price.staged_bytes,
            "mirror_bytes": mirror_bytes,
        }
        encoder = _model(price.mirror) or "no encoder"
        passages = (
            ""
            if price.mirror_datapoints == price.datapoints
            else f", of which about {price.mirror_datapoints:,} become"
        )
        text = (
            f"{self._index} has {price.datapoints:,} datapoints{passages}; about {price.texts:,} texts are to be "
            f"encoded by {encoder}.\n"
            f"A sample of {price.sampled:,} was converted at {price.rows_per_s:,.0f}/s here: about "
            f"{_duration(price.seconds)} for all, less where machines share them (--part).\n"
            f"The store gets about {size_text(price.staged_bytes)} until the mirror is filled, and about "
            f"{size_text(mirror_bytes)} for the mirror, until --abandon.\n"
            "Live updates that are not sealed come on top, and so does the building of segments. Nothing was written."
        )
        return result, text

    def convert(self, part: tuple[int, int]) -> None:
        """Convert the datapoints of a part of the base that are not converted."""
        self._renewing(partial(self._convert_shown, part))

    def catch_up(self) -> None:
        """Convert what is not converted, fill the mirror, and have it take over writes made meanwhile."""
        self._renewing(partial(self._caught_up, self._convert_shown))

    def switch(self, goal: Goal = Goal.SWITCH) -> None:
        """Exchange the contents of the index and its mirror, which catches up first; not if that goal is reached."""

        def switch_now() -> None:
            self._caught_up(self._convert_shown)
            self._switch(goal)

        self._renewing(switch_now)

    def _renewing(self, work: Callable[[], None]) -> None:
        """Do work; where the index was built meanwhile, the mirror begins again from its newest version.

        So it does where a datapoint could not be converted that may have a text by now.
        """
        for _ in range(RENEWALS):
            try:
                return work()
            except MirrorRenewedError:
                typer.echo("Another process has had the mirror begin again: going on there", err=True)
            except (MirrorBrokenError, UnencodableError) as error:
                renewed = renew_mirror(self._store, self._index, self._vectors_of, log_root=self._log_root)
                # Another process may have had it begin again, but a text that lacks a vector still does.
                if not renewed and isinstance(error, UnencodableError):
                    raise
                typer.echo(f"The mirror begins again: {error}", err=True)
        return work()

    def _caught_up(self, convert: Callable[[], None]) -> None:
        convert()
        self._fill()
        self._follower.catch_up()

    def _convert_shown(self, part: tuple[int, int] = (0, 1)) -> None:
        with counting_bar("converting") as bar:
            progress = _Rate(bar)
            _at_low_priority(lambda: self._convert(part, progress.show))

    def _convert(self, part: tuple[int, int], progress: Callable[[Filled], object]) -> None:
        mirror = self._mirror
        if not _is_filled(mirror):
            check_followed(read_manifest(self._store, self._index), mirror)
            convert_base(self._store, mirror, self._encoders, part=part, progress=progress)

    def _fill(self) -> None:
        """Publish what was converted as the content of the mirror, with what is measured of searches in it."""
        from scannery.pipelines.planning.planned_encoder import encoder_sources
        from scannery.pipelines.tuning.search_measurement import with_measured_search

        mirror = self._mirror
        if _is_filled(mirror):
            remove_results(self._store, mirror)  # a process that was killed may have left some
            return
        check_followed(read_manifest(self._store, self._index), mirror)
        encoders = encoder_sources(mirror.spec, self._store.uri)
        fill(
            self._store,
            mirror,
            measured=lambda manifest: with_measured_search(manifest, None, self._store, encoders),
            log_root=self._log_root,
        )

    def compare(self, store: str, queries: Path, qrels: Path, timeout: float, *, passages: bool) -> None:
        """Refuse a mirror that does not answer judged queries better."""
        from scannery.training.gate.decision import difference_of, reasons_against
        from scannery.training.judged import judged_queries
        from scannery.training.spec import JudgedQueries

        files = JudgedQueries(queries=str(queries), qrels=str(qrels), passages=passages)
        with connected(None, store, timeout_s=timeout) as client:
            judged = [
                judged_queries(client.index(each), files, Path())
                for each in (self._index, mirror_name(self._index))
            ]
            self._judge_maps(client, judged[0])
        difference: Difference = difference_of(*(each.current_Q for each in judged))
        typer.echo(f"nDCG@10 of judged queries: {difference_text(difference)}", err=True)
        if reasons := reasons_against(difference, {}, earlier=0):
            for reason in reasons:
                console().print(f"[red]✗[/red] {reason}", soft_wrap=True)
            console().print("Nothing was exchanged: `--abandon` removes the mirror.")
            raise typer.Exit(NO)

    def _judge_maps(self, client: Client, judged: Judged) -> None:
        """Measure the maps of unnamed vectors of encoders with judged queries."""
        from scannery.training.judged import searched_gains

        sides = [read_manifest(self._store, self._index), self._mirror]
        maps = list(sides[0].vector_maps)
        for number, each in enumerate(maps):
            target, source = sides if each.is_onto("", sides[0].vectors[""]) else sides[::-1]
            if each.vectors or source.spec.encoder is None:
                continue
            as_vector = partial(_vector_of, client.index(source.index))
            gains = [
                searched_gains(
                    client.index(side.index),
                    judged.texts,
                    judged.judgements,
                    as_vector,
                    passages=judged.passages,
                    mode="dense",
                    vector_model=each.source.digest,
                    map_vectors=True,
                )
                for side in (target, source)
            ]
            ndcg = {"ndcg": float(gains[0].mean()), "source_ndcg": float(gains[1].mean())}
            maps[number] = each.model_copy(update=ndcg)
        put_maps(self._store, sides, maps)

    def _switch(self, goal: Goal) -> None:
        mirror, began_s = self._mirror, time.monotonic()
        assert mirror.mirror is not None
        # Another process may have done it since this one began: doing it again would take it back.
        if is_reached(goal, mirror):
            return
        switches = mirror.mirror.switches
        switch(self._store, self._index, self._follower, switches=switches, log_root=self._log_root)
        typer.echo(f"exchanged in {time.monotonic() - began_s:.2f} s", err=True)

    def aim(self, goal: Goal) -> None:
        """Have servers lead the migration to this goal, too, if they lead it: they would undo what is done here."""
        if goal_of(self._store, self._mirror.index) is not None:
            set_goal(self._store, self._mirror.index, goal)

    def run(self) -> None:
        """Lead the migration to the goal that a client has set, with what was written meanwhile; without one, return.

        At low priority, and until SIGTERM.
        """
        # Servers block these signals, and their children inherit that.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT})
        os.nice(NICE)
        mirror = mirror_name(self._index)
        try:
            while (goal := goal_of(self._store, mirror)) is not None:
                if goal is Goal.ABANDON:
                    # A server ends the processes of an index when that is gone, which a mirror is before its files are.
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    self.abandon()
                    return
                if self._is_led(goal):
                    return
        except (IndexerError, ServingError) as error:
            if goal_of(self._store, mirror) is not None:  # else another process has abandoned it
                tell_problem(self._store, mirror, str(error))
            raise

    def _is_led(self, goal: Goal) -> bool:
        """Lead the migration to a goal, and return whether that is still the goal."""
        mirror = mirror_name(self._index)

        def changed() -> bool:
            return goal_of(self._store, mirror) is not goal

        def lead() -> None:
            self._caught_up(partial(self._convert, (0, 1), _Report(self._store, mirror, changed).show))
            self._switch(goal)
            self._follower.follow()

        self.settle()
        try:
            # A way back that a build has ended is made again when someone wants to go it: that takes time and memory.
            if goal is not Goal.MIRROR and is_reached(goal, self._mirror):
                lead()
            else:
                self._renewing(lead)
        except _GoalChangedError:
            return False
        tell_problem(self._store, mirror, "")
        return not changed()

    def follow(self) -> None:
        """Follow writes until the process is ended."""
        while True:
            self._follower.follow()
            time.sleep(FOLLOW_S)

    def abandon(self) -> None:
        """Remove the mirror with all that it keeps."""
        mirror = mirror_name(self._index)
        # One that was killed while it removed the mirror is gone on with.
        if not is_dropped(self._store, mirror):
            mirror_of(self._store, self._index)
        drop(self._store, mirror, log_root=self._log_root, force=True)
        release_source(self._store, self._index, mirror)  # of a long name, whose end its mirror does not tell

    def status(self) -> tuple[dict[str, Any], str]:
        """Return what the index and its mirror are, and a sentence of it."""
        source, mirror = read_manifest(self._store, self._index), self._mirror
        assert mirror.mirror is not None
        result: dict[str, Any] = {
            "index": self._index,
            "version": source.version,
            "encoder": source.spec.encoder and source.spec.encoder.model,
            "dimensions": source.dimensions,
            "rows": source.rows,
            "switches": source.switches,
            "mirror": mirror.index,
            "mirror_encoder": mirror.spec.encoder and mirror.spec.encoder.model,
            "mirror_dimensions": mirror.dimensions,
            "mirror_rows": mirror.rows,
            "filled": _is_filled(mirror),
            "exchanged": mirror.mirror.former,
        }
        filled = None if _is_filled(mirror) else converted(self._store, mirror)
        if filled is not None:
            result |= {"converted": filled.done, "to_convert": filled.total}
        state = "follows it"
        if filled is not None:
            state = f"is being filled, {filled.done:,} of {filled.total:,} datapoints are converted"
        elif mirror.mirror.former:
            state = "has the former content and follows it"
        text = (
            f"{self._index} is at version {source.version}, with vectors of {_model(source) or 'callers'}; its mirror "
            f"{mirror.index}, with vectors of {_model(mirror) or 'callers'}, {state}."
        )
        goal, report = goal_of(self._store, mirror.index), progress_of(self._store, mirror.index)
        if goal is not None:
            result |= {"goal": goal.value, "error": report.error}
            text += f" Servers lead it to the goal {goal.value!r}."
            if filled is not None and report.seconds_left is not None:
                result |= {"rows_per_s": report.rows_per_s, "seconds_left": report.seconds_left}
                text += (
                    f" They convert {report.rows_per_s:,.0f}/s: about {_duration(report.seconds_left)} left."
                )
            text += f" The last process ended with: {report.error}" if report.error else ""
        if maps := source.vector_maps:
            figures = {"rows", "overlap", "ndcg", "source_ndcg"}
            result["maps"] = [
                {"vectors": each.vectors, "from": each.source.name, "to": each.target.name}
                | each.model_dump(include=figures)
                for each in maps
            ]
            for each in maps:
                loss = map_text(each.source.name, each.target.name, each.overlap, each.ndcg, each.source_ndcg)
                text += f"\nMap {loss}."
        return result, text


class _GoalChangedError(Exception):
    """A client wants something else of the migration."""


class _Report:
    """Tells in the store how far a conversion is."""

    def __init__(self, store: Store, mirror: str, changed: Callable[[], bool]) -> None:
        self._store, self._mirror, self._changed = store, mirror, changed
        self._began_s, self._told_s = time.monotonic(), -math.inf

    def show(self, filled: Filled) -> None:
        """Tell it, at most once in TELL_S; raises _GoalChangedError if there is another goal."""
        now_s = time.monotonic()
        if now_s - self._told_s < TELL_S and filled.done < filled.total:
            return
        self._told_s = now_s
        if self._changed():
            raise _GoalChangedError
        rate = filled.encoded / (now_s - self._began_s)
        progress = Progress(converted=filled.done, to_convert=filled.total, rows_per_s=rate)
        tell(self._store, self._mirror, progress)


class _Rate:
    """Shows the progress of a conversion: a bar on a terminal, lines elsewhere."""

    def __init__(self, bar: Callable[[int, int], None] | None) -> None:
        self._bar, self._began_s = bar, time.monotonic()
        self._told_s = self._began_s

    def show(self, filled: Filled) -> None:
        """Show how far it is, and when it will end."""
        now_s = time.monotonic()
        if self._bar is not None:
            self._bar(filled.done, filled.total)
        elif filled.encoded and now_s - self._told_s >= LINE_EVERY_S:
            self._told_s = now_s
            rate = filled.encoded / (now_s - self._began_s)
            remaining = _duration((filled.total - filled.done) / rate)
            typer.echo(
                f"{filled.done:,} of {filled.total:,} datapoints, {rate:,.0f}/s, about {remaining} left",
                err=True,
            )


def _vector_of(index: Index, text: str) -> np.ndarray:
    vector_D: np.ndarray = index.embed([text])[0]
    return vector_D


def _duration(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    for unit, unit_s in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * unit_s:
            return f"{seconds / unit_s:,.0f} {unit}"
    return f"{seconds:,.0f} s"


def _is_filled(mirror: Manifest) -> bool:
    return mirror.mirror is not None and mirror.mirror.filled


def _model(manifest: Manifest) -> str | None:
    encoder = manifest.spec.encoder
    return None if encoder is None else f"{encoder.model} ({manifest.dimensions} dimensions)"


def _at_low_priority(work: Callable[[], ResultT]) -> ResultT:
    """Return what work gives that runs in a thread of low priority, with the threads that it starts."""

    def lowered() -> None:
        # On Linux a priority belongs to a thread.
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)

    with ThreadPoolExecutor(1, initializer=lowered) as pool:
        return pool.submit(work).result()
