"""`scannery audit`: proof that an audit log is whole, and its records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scannery.cli.errors import NO
from scannery.cli.options import JsonOption
from scannery.cli.output import json_text, print_json
from scannery.runtime.errors import ConfigError

if TYPE_CHECKING:
    from scannery.serving.audit.verification import Anchor, ChainReport

__all__ = ["audit_app"]

audit_app = typer.Typer(no_args_is_help=True, help="Prove that an audit log is whole, and show its records.")

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Folder of the log (serve --audit).", show_default=False)
]


@audit_app.command(no_args_is_help=True)
def verify(
    folder: FolderArgument,
    anchor: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="What this command printed earlier with --json: proves that no record up to then was removed.",
        ),
    ] = None,
    archived: Annotated[
        bool,
        typer.Option("--archived", help="Take it that the first files of a chain are kept somewhere else."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check that no record was changed, removed, inserted or moved; ends with exit code 1 if one was."""
    from scannery.serving.audit.verification import verified

    reports = verified(folder, _anchors(anchor) if anchor else (), archived=archived)
    if as_json:
        print_json({"chains": [asdict(report) for report in reports]})
    else:
        for report in reports:
            _print_report(report)
        if not reports:
            typer.echo(f"there is no audit log in {folder}")
    if any(report.problems for report in reports) or not reports:
        raise typer.Exit(NO)


@audit_app.command(no_args_is_help=True)
def show(
    folder: FolderArgument,
    principal: Annotated[
        str | None, typer.Option(help="Only calls of this caller: NAME, or NAME/ID of a key.")
    ] = None,
    index: Annotated[
        str | None, typer.Option("--index", "-i", help="Only calls for this index, or alias.")
    ] = None,
    method: Annotated[str | None, typer.Option(help="Only calls of this method, such as Search.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Only calls with this outcome, such as OK.")] = None,
    since: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Only later records: a date or time, ISO 8601; UTC by default."),
    ] = None,
    until: Annotated[str | None, typer.Option(metavar="TIME", help="Only earlier records.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the records of all workers by their time; with --json, one a line. It proves nothing: see `verify`."""
    from scannery.serving.audit.verification import audit_records

    bounds = _time(since, "since"), _time(until, "until")
    wanted_values = {"index": index, "method": method, "outcome": outcome}
    for record in audit_records(folder):
        if (bounds[0] and record["time"] < bounds[0]) or (bounds[1] and record["time"] >= bounds[1]):
            continue
        if principal is not None and not _is_of(record, principal):
            continue
        if all(value is None or _has(record, name, value) for name, value in wanted_values.items()):
            typer.echo(json_text(record) if as_json else _text(record))


def _is_of(record: Mapping[str, Any], principal: str) -> bool:
    name = str(record.get("principal", ""))
    return principal in (name, name.rpartition("/")[0], record.get("address"))


def _has(record: Mapping[str, Any], name: str, value: str) -> bool:
    field = str(record.get(name, ""))
    return value in (field, record.get("alias") if name == "index" else field.rpartition("/")[2])


def _text(record: Mapping[str, Any]) -> str:
    """Return a record on one line; what callers chose is escaped, since it could control a terminal."""
    if "event" in record:
        facts = {name: value for name, value in record.items() if name not in _OF_EVERY_RECORD}
        return f"{record['time']}  {record['event']}  {json_text(facts)}"
    outcome = json.dumps(record.get("outcome", ""))[1:-1]
    rows = "" if record.get("rows") is None else f"  {record['rows']} rows"
    named = [
        json.dumps(record.get(name, ""))[1:-1] or "-" for name in ("principal", "address", "method", "index")
    ]
    alias = f" ({json.dumps(record['alias'])[1:-1]})" if record.get("alias") else ""
    return f"{record['time']}  {'  '.join(named)}{alias}  {outcome}{rows}  {record.get('ms')} ms"


_OF_EVERY_RECORD = ("chain", "n", "time", "event", "hash", "server")


def _time(text: str | None, flag: str) -> str:
    """Return a time as records have it; empty: none was given."""
    if text is None:
        return ""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise typer.BadParameter(
            f"--{flag}: must be a date or a time, ISO 8601, got {text!r:.100}"
        ) from error
    moment = moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def _anchors(path: Path) -> list[Anchor]:
    """Return the ends of the chains of an earlier report; raises ConfigError."""
    from scannery.serving.audit.verification import Anchor

    try:
        chains = json.loads(path.read_text())["chains"]
        return [
            Anchor(int(each["chain"]), int(each["last"]), str(each["hash"]))
            for each in chains
            if each["last"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"--anchor: {path} is no report of `scannery audit verify --json`") from error


def _print_report(report: ChainReport) -> None:
    files = f"{report.files:,} file{'' if report.files == 1 else 's'}"
    typer.echo(
        f"chain {report.chain}: records {report.first:,} to {report.last:,} in {files}, "
        f"{report.since} to {report.until}, {_STATES[report.state]}"
    )
    typer.echo(f"  hash of the last one: {report.hash}")
    if report.lost:
        typer.echo(f"  {report.lost:,} calls have no record, since the log could not be written")
    for note in report.notes:
        typer.echo(f"  note: {note}")
    for problem in report.problems:
        typer.echo(f"  NOT WHOLE: {problem}")


_STATES = {
    "closed": "ended by its server",
    "written": "written by a server now",
    "open": "without an end: its server was killed, or records at the end were removed",
}
