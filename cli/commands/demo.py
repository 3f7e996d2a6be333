"""`scannery demo`: build, serve and query the sample corpus, in under a minute."""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import shlex
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table

from scannery.cli.commands.build import quiet_beam
from scannery.cli.commands.servers.console import console as open_console
from scannery.cli.options import JsonOption
from scannery.cli.output import hit_json, print_json
from scannery.cli.sample import EPISODES_PATH, SPEC_PATH, Question, questions, shared_words

if TYPE_CHECKING:  # Torch and Beam take seconds to import, which `scannery --help` should not wait for.
    from scannery.client import Hit, Index
    from scannery.pipelines import BuildReport

__all__ = ["demo"]

SNIPPET_CHARS, SHORT_CHARS = 200, 64
"""Characters shown of the first hit's text, and of the others' (one line of a narrow terminal)."""

_console = Console(highlight=False)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One question, its hits, and the time of the call in seconds, server and transport included."""

    question: Question
    hits: list[Hit]
    milliseconds: float
    """Time of the call, server and transport included."""


def demo(
    ask: Annotated[
        list[str] | None,
        typer.Argument(metavar="[QUESTION]...", help="Questions to ask instead of the bundled ones."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("--store", help="Build into this folder and keep it. Default: a temporary folder."),
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary store.")] = False,
    k: Annotated[int, typer.Option("-k", min=1, max=50, help="Hits to show for each question.")] = 3,
    as_json: JsonOption = False,
    console: Annotated[
        bool, typer.Option("--console", help="Then open a web page on the sample, until Ctrl-C.")
    ] = False,
) -> None:
    """Build a bundled sample corpus of 300 podcast episodes, serve it, and ask it questions."""
    chosen = [Question(question=text, expect=(), within=k) for text in ask or ()]
    with _store(store, keep=keep) as folder:
        report = _build(folder, quiet=as_json)
        if not as_json:
            _print_report(report)
        with _served(folder, report.index) as (index, address):
            answers = _ask(index, chosen or [item for item in questions() if item.demo], k)
            if as_json:
                print_json(_as_json(report, answers))
            else:
                _print_answers(answers, address, folder if store or keep else None, report.index)
            if console:
                open_console(target=address, listen="127.0.0.1:0")


@contextlib.contextmanager
def _store(chosen: Path | None, *, keep: bool) -> Iterator[Path]:
    if chosen is not None:
        yield chosen
    elif keep:
        yield Path(tempfile.mkdtemp(prefix="scannery-demo-"))
    else:
        from scannery.indexer.local.files import scratch_folder

        with scratch_folder("demo") as folder:
            yield folder


def _build(store: Path, *, quiet: bool) -> BuildReport:
    waiting = (
        contextlib.nullcontext()
        if quiet
        else _console.status("Building: reading, embedding and indexing the sample, some ten seconds …")
    )
    with waiting, quiet_beam():
        from scannery.indexer.spec.spec_files import load_spec
        from scannery.pipelines import build

        return build(load_spec(SPEC_PATH), [str(EPISODES_PATH)], str(store))


@contextlib.contextmanager
def _served(store: Path, name: str) -> Iterator[tuple[Index, str]]:
    """Serve the store on a free loopback port until the context ends."""
    import scannery
    from scannery.serving import Server, ServerConfig

    with (
        Server(ServerConfig(store=str(store), listen="127.0.0.1:0")) as server,
        scannery.connect(server.address) as client,
    ):
        yield client.index(name), server.address


def _ask(index: Index, chosen: Sequence[Question], k: int) -> list[Answer]:
    # The first query loads the encoder, and the first filter compiles a kernel. Both happen once per server, so they
    # are left out of the questions' times.
    index.search("warm up", k=1, where={"minutes": {"$gte": 30}})
    return [_answer(index, question, k) for question in chosen]


def _answer(index: Index, question: Question, k: int) -> Answer:
    started = time.perf_counter()
    ranking = question.ranking or None
    hits = index.search(question.question, k=k, where=question.where or None, ranking=ranking)
    return Answer(question=question, hits=list(hits), milliseconds=(time.perf_counter() - started) * 1000)


def _print_answers(answers: Sequence[Answer], address: str, kept: Path | None, index: str) -> None:
    _console.print(f"[bold]Serve[/bold]  gRPC on {address}, asked through the Python SDK\n")
    for answer in answers:
        _print_answer(answer)
    _print_lesson(answers)
    _print_next_steps(kept, index)


def _print_report(report: BuildReport) -> None:
    done = "already built" if report.up_to_date else f"in {report.seconds['wall']:.1f} s"
    _console.print(
        f"[bold]Build[/bold]  {report.documents} podcast episodes → {report.passages} vectors of "
        f"{report.dimensions} dimensions, {done}"
    )


def _print_answer(answer: Answer) -> None:
    question = answer.question
    where = f"  where {json.dumps(question.where)}" if question.where else ""
    where += f"  by the ranking {question.ranking}" if question.ranking else ""
    _console.print(
        f"[bold cyan]{escape(question.question)}[/bold cyan]{escape(where)}  "
        f"[dim]{answer.milliseconds:.0f} ms[/dim]"
    )
    table = Table(box=None, show_header=False, padding=(0, 1), pad_edge=False)
    table.add_column(justify="right", style="dim")
    table.add_column(style="green")
    table.add_column()
    for rank, hit in enumerate(answer.hits, start=1):
        table.add_row(str(rank), _score(hit), _described(hit, SNIPPET_CHARS if rank == 1 else SHORT_CHARS))
    _console.print(Padding(table, (0, 0, 0, 1)) if answer.hits else "   no hits")
    if answer.hits:
        words = ", ".join(_shared(question, answer.hits[0])) or "[bold]none[/bold]"
        _console.print(f"   [dim]words shared by the question and hit 1:[/dim] {words}")
    _console.print()


def _score(hit: Hit) -> str:
    """Return the score; with a ranking also what its signals add to it."""
    if hit.base_score is None:
        return f"{hit.score:.2f}"
    return f"{hit.score:.2f} = {hit.base_score:.2f} {hit.score - hit.base_score:+.2f}"


def _described(hit: Hit, snippet_chars: int) -> str:
    title, show = escape(hit.title or hit.id), escape(str(hit.attributes.get("show", "")))
    published = hit.attributes.get("published")
    date = f", {published:%Y-%m-%d}" if isinstance(published, dt.datetime) else ""
    return (
        f"[bold]{title}[/bold]  [dim]{show}{date}[/dim]\n{escape(_shortened(hit.text or '', snippet_chars))}"
    )


def _shortened(text: str, chars: int) -> str:
    return text if len(text) <= chars else text[: chars - 1].rsplit(" ", 1)[0] + " …"


def _shared(question: Question, hit: Hit) -> list[str]:
    return shared_words(question.question, f"{hit.title or ''} {hit.text or ''}")


def _print_lesson(answers: Sequence[Answer]) -> None:
    answered = [answer for answer in answers if answer.hits]
    unmatched = sum(not _shared(answer.question, answer.hits[0]) for answer in answered)
    if unmatched:
        _console.print(
            f"{unmatched} of {len(answered)} first hits have no word in common with their question: they were found by "
            "meaning,\nand a search for the words alone would have missed them.\n",
            soft_wrap=True,
        )


def _print_next_steps(kept: Path | None, index: str) -> None:
    store = shlex.quote(str(kept or "./demo-store"))
    search = f"scannery search --index {index}"
    steps = [
        *([] if kept else [f"scannery demo --store {store}    # the same, and keeps the store"]),
        f'{search} --store {store} "overcoming a fear of flying"',
        f"""{search} --store {store} "something quick to cook" --where '{{"minutes": {{"$lte": 30}}}}'""",
        f'{search} --store {store} "fixing a slow database" --ranking recent    # newer episodes first',
        f"scannery console --store {store}    # a web page on it",
        f"scannery serve --store {store}    # and, in another terminal:",
        f'{search} --target 127.0.0.1:7077 "why do whales sing"',
        f"cp {shlex.quote(str(SPEC_PATH))} my-spec.yaml    # adapt it to your data, then:",
        f"scannery build my-spec.yaml --input my-data.jsonl --store {store}",
    ]
    _console.print("[bold]Next[/bold]")
    for step in steps:
        # Not wrapped, so that commands can be copied.
        _console.print(f"  {escape(step)}", soft_wrap=True)


def _as_json(report: BuildReport, answers: Sequence[Answer]) -> dict[str, Any]:
    return {
        "build": report.to_dict(),
        "answers": [
            {
                "question": answer.question.question,
                "where": answer.question.where,
                "ranking": answer.question.ranking,
                "milliseconds": round(answer.milliseconds, 3),
                "hits": [
                    {**hit_json(hit), "shared_words": _shared(answer.question, hit)} for hit in answer.hits
                ],
            }
            for answer in answers
        ],
    }
