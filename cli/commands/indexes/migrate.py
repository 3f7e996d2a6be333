"""`scannery index migrate`: another encoder, or texts cut anew, while an index is served."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from scannery.cli.commands.indexes.lifecycle import index_app
from scannery.cli.commands.indexes.versions import NameArgument, index_of
from scannery.cli.commands.models.train import difference_text
from scannery.cli.errors import NO
from scannery.cli.options import JsonOption, LogOption, connected, given_log_root, parsed_json
from scannery.cli.output import console, print_json
from scannery.cli.progress import LINE_EVERY_S, counting_bar
from scannery.indexer import IndexSpec, Manifest, NotFoundError, Store, VectorsInfo, read_manifest
from scannery.indexer.models.manifest import Difference
from scannery.live.log.location import LogRoot
from scannery.live.maintenance.drop import drop
from scannery.live.migration.errors import MigrationError
from scannery.live.migration.filling import Filled, convert_base, converted, fill
from scannery.live.migration.following import Follower, Position
from scannery.live.migration.mirrors import begin_mirror, mirror_name, mirror_of, release_source
from scannery.live.migration.switching import settle, switch

__all__ = ["index_app"]

ServedStore = Annotated[
    str, typer.Option("--store", "-s", metavar="URI", help="Folder or bucket with the index.")
]
ResultT = TypeVar("ResultT")

NICE = 10
"""Priority of what converts: servers of this machine come first."""
FOLLOW_S = 1.0
"""Time between two looks at the log with --follow."""


@index_app.command("migrate", no_args_is_help=True)
def migrate_command(
    name: NameArgument,
    store: ServedStore,
    log: LogOption = "",
    encoder: Annotated[
        str | None,
        typer.Option(metavar="MODEL|JSON", help="Model of the new vectors, or its options as in SPEC.yaml."),
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Components that are kept of a vector of the model.")
    ] = None,
    chunk: Annotated[
        str | None,
        typer.Option(
            metavar="N|JSON",
            help="Cut texts anew, into passages of at most N tokens, or as `source.chunk` of SPEC.yaml.",
        ),
    ] = None,
    spec: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Other keys of SPEC.yaml that change: named_vectors, lexical, vectors."
        ),
    ] = None,
    part: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Only convert the I-th of N parts: machines share the work."),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judged queries that must be answered better.")
    ] = None,
    qrels: Annotated[Path | None, typer.Option(metavar="FILE", help="Their judgements.")] = None,
    passages: Annotated[
        bool, typer.Option("--passages", help="Judgements name datapoints, not documents.")
    ] = False,
    no_switch: Annotated[
        bool, typer.Option("--no-switch", help="End before the index changes: INDEX-mirror can be searched.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on following writes until ended, so that --undo is quick.")
    ] = False,
    undo: Annotated[
        bool, typer.Option("--undo", help="Exchange both contents again; no write is lost.")
    ] = False,
    abandon: Annotated[
        bool, typer.Option("--abandon", help="Remove the mirror: the migration, or afterwards the way back.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Only tell how far it is.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="Deadline of a query.")
    ] = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Change the encoder or the passages of an index while it is served; the same command goes on if it was ended.

    A mirror, INDEX-mirror, gets all datapoints with the new vectors and follows all writes. Then both exchange their
    contents at one moment, and the mirror keeps the former one for the way back.
    """
    opened, log_root = Store.open(store), given_log_root(log)
    index = index_of(opened, name)
    migration = _Migration(opened, index, log_root)
    if abandon:
        migration.abandon()
        _print({"index": index, "abandoned": True}, f"{index} has no mirror any more.", as_json=as_json)
        return
    if status:
        migration.print_status(as_json=as_json)
        return
    migration.settle()
    if undo:
        migration.check_exchanged()
    else:
        migration.begin(_changes(encoder, dimensions, chunk, spec))
        no_switch = no_switch or migration.is_exchanged
        migration.convert(_part(part))
        if part is not None:
            migration.print_status(as_json=as_json)
            return
        migration.fill()
        migration.catch_up()
        if queries is not None and qrels is not None:
            migration.compare(store, queries, qrels, timeout, passages=passages)
    if not no_switch:
        migration.switch()
    migration.print_status(as_json=as_json)
    if follow:
        migration.follow()


class _Migration:
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
        for name, named in spec.named_vectors.items():
            if named.dimensions is not None:
                vectors[name] = VectorsInfo(dimensions=named.dimensions)
        for name, encoder in spec.encoders.items():
            fingerprint = self._encoders.fingerprint_of(encoder, field="encoder")
            vectors[name] = VectorsInfo(dimensions=fingerprint.dimensions, encoder=fingerprint.to_dict())
        return vectors

    def settle(self) -> None:
        """Finish an exchange whose process was ended."""
        with suppress(NotFoundError):
            settle(self._store, self._index)

    @property
    def is_exchanged(self) -> bool:
        """Whether the index has the new content, and its mirror the former one."""
        mirror = self._mirror.mirror
        return mirror is not None and mirror.former

    def check_exchanged(self) -> None:
        """Refuse to undo an exchange that was not made."""
        if not self.is_exchanged:
            raise MigrationError(
                f"the contents of index {self._index!r} and its mirror are not exchanged: nothing to undo",
                field="index",
            )

    @property
    def _mirror(self) -> Manifest:
        return mirror_of(self._store, self._index)

    def begin(self, changes: Mapping[str, Any]) -> None:
        """Create the mirror; without changes, that of before is gone on with."""
        if changes:
            begin_mirror(self._store, self._index, changes, self._vectors_of, log_root=self._log_root)

    def convert(self, part: tuple[int, int]) -> None:
        """Convert the datapoints of the base that are not converted."""
        mirror = self._mirror
        if _is_filled(mirror):
            return
        with counting_bar("converting") as bar:
            progress = _Progress(bar)
            _at_low_priority(
                lambda: convert_base(self._store, mirror, self._encoders, part=part, progress=progress.show)
            )

    def fill(self) -> None:
        """Publish what was converted as the content of the mirror, with what is measured of searches in it."""
        from scannery.pipelines.planning.planned_encoder import encoder_sources
        from scannery.pipelines.tuning.search_measurement import with_measured_search

        mirror = self._mirror
        if _is_filled(mirror):
            return
        encoders = encoder_sources(mirror.spec, self._store.uri)
        fill(
            self._store,
            mirror,
            measured=lambda manifest: with_measured_search(manifest, None, self._store, encoders),
            log_root=self._log_root,
        )

    def catch_up(self) -> Position:
        """Take over writes made meanwhile."""
        return self._follower.catch_up()

    def compare(self, store: str, queries: Path, qrels: Path, timeout: float, *, passages: bool) -> None:
        """Refuse a mirror that does not answer judged queries better."""
        from scannery.training.gate.decision import difference_of, reasons_against
        from scannery.training.judged import judged_queries
        from scannery.training.spec import JudgedQueries

        files = JudgedQueries(queries=str(queries), qrels=str(qrels), passages=passages)
        with connected(None, store, timeout_s=timeout) as client:
            gains = [
                judged_queries(client.index(each), files, Path()).current_Q
                for each in (self._index, mirror_name(self._index))
            ]
        difference: Difference = difference_of(*gains)
        typer.echo(f"nDCG@10 of judged queries: {difference_text(difference)}", err=True)
        if reasons := reasons_against(difference, {}, earlier=0):
            for reason in reasons:
                console().print(f"[red]✗[/red] {reason}", soft_wrap=True)
            console().print("Nothing was exchanged: `--abandon` removes the mirror.")
            raise typer.Exit(NO)

    def switch(self) -> None:
        """Exchange the contents of the index and its mirror."""
        mirror = self._mirror
        if not _is_filled(mirror):
            raise NotFoundError(f"the mirror of index {self._index!r} is not filled yet", field="index")
        began_s = time.monotonic()
        switch(self._store, self._index, self._follower, log_root=self._log_root)
        typer.echo(f"exchanged in {time.monotonic() - began_s:.2f} s", err=True)

    def follow(self) -> None:
        """Follow writes until the process is ended."""
        while True:
            self._follower.follow()
            time.sleep(FOLLOW_S)

    def abandon(self) -> None:
        """Remove the mirror with all that it keeps."""
        mirror = self._mirror
        drop(self._store, mirror.index, log_root=self._log_root, force=True)
        release_source(self._store, self._index, mirror.index)

    def print_status(self, *, as_json: bool) -> None:
        """Print what the index and its mirror are."""
        source, mirror = read_manifest(self._store, self._index), self._mirror
        assert mirror.mirror is not None
        result = {
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
        state = "has the former content and follows it" if mirror.mirror.former else state
        text = (
            f"{self._index} is at version {source.version}, with vectors of {_model(source) or 'callers'}; its mirror "
            f"{mirror.index}, with vectors of {_model(mirror) or 'callers'}, {state}."
        )
        _print(result, text, as_json=as_json)


class _Progress:
    """Progress of a conversion: a bar on a terminal, lines elsewhere."""

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
            minutes = (filled.total - filled.done) / rate / 60
            typer.echo(
                f"{filled.done:,} of {filled.total:,} datapoints, {rate:,.0f}/s, about {minutes:,.0f} minutes left",
                err=True,
            )


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


def _changes(
    encoder: str | None, dimensions: int | None, chunk: str | None, spec: str | None
) -> dict[str, Any]:
    changes: dict[str, Any] = parsed_json(spec, "--spec") or {}
    if encoder is not None:
        options = parsed_json(encoder, "--encoder") if encoder.startswith("{") else {"model": encoder}
        changes["encoder"] = options | ({} if dimensions is None else {"dimensions": dimensions})
    elif dimensions is not None:
        raise typer.BadParameter("--dimensions goes with --encoder")
    if chunk is not None:
        changes["chunk"] = {"max_tokens": int(chunk)} if chunk.isdecimal() else parsed_json(chunk, "--chunk")
    return changes


def _part(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 1
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise typer.BadParameter(f"--part must be I/N, such as 2/4, got {text!r}")
    return int(number) - 1, int(count)


def _print(result: Mapping[str, object], text: str, *, as_json: bool) -> None:
    if as_json:
        print_json(result)
    else:
        typer.echo(text)
