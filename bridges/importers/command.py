"""`scannery import`: import a collection of another vector database."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from scannery.cli.errors import PARTIAL
from scannery.cli.options import (
    IndexOption,
    JsonOption,
    StoreOption,
    TargetOption,
    TimeoutOption,
    connected,
)
from scannery.cli.output import console, print_json
from scannery.cli.progress import counting_bar

if TYPE_CHECKING:
    from scannery.bridges.importers.writing import ImportReport

__all__ = ["import_"]


def import_(
    index: IndexOption,
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder (Qdrant, Chroma, LanceDB), a URL (Qdrant), a file (FAISS), a connection string (pgvector).",
        ),
    ],
    peer: Annotated[
        Literal["qdrant", "chroma", "lancedb", "pgvector", "faiss"],
        typer.Option("--from", help="The system that wrote the source."),
    ],
    target: TargetOption = None,
    store: StoreOption = None,
    collection: Annotated[
        str | None, typer.Option(metavar="NAME", help="Collection or table. Default: the only one.")
    ] = None,
    vector: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Named vector, or its column. Default: all; several become named vectors."
        ),
    ] = None,
    id: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Column of the ids. Default: `id` (LanceDB), the primary key (pgvector)."
        ),
    ] = None,
    ids: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="FAISS: .npy, or text with an id on each line. Default: the index's own."
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Field of the payload that is the text. Default: Chroma's documents."
        ),
    ] = None,
    distance: Annotated[
        Literal["cosine", "dot", "squared_l2"] | None, typer.Option(help="Default: the source's own.")
    ] = None,
    payload: Annotated[
        Literal["attributes", "payload"],
        typer.Option(
            "--fields",
            help="What payloads become: attributes for filters, or a payload that is only returned.",
        ),
    ] = "attributes",
    encoder: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL|NAME=MODEL",
            help="The model that made the vectors, for text queries; of named vectors, several times.",
        ),
    ] = None,
    lexical: Annotated[bool, typer.Option("--lexical", help="Also index the words of the texts.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Write rows again that the index has.")
    ] = False,
    skip_invalid: Annotated[
        bool, typer.Option("--skip-invalid", help="Leave out rows without a valid vector, rather than end.")
    ] = False,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Import a collection of Qdrant, Chroma, LanceDB, pgvector or FAISS into an index.

    The index is created with the dimensions and the distance of the source, if there is none. Repeating the command
    goes on where an earlier one ended: rows that are there are not written again.
    """
    # Imported late: `scannery --help` should not wait for these.
    from scannery.bridges.importers.collection import PeerOptions, open_peer
    from scannery.bridges.importers.writing import ImportSettings, import_collection

    options = PeerOptions(collection=collection, vector=vector, id=id, ids=ids, distance=distance)
    models = _models(encoder or [])
    settings = ImportSettings(
        text=text,
        payload=payload,
        encoder=models.pop("", None),
        encoders=models,
        lexical=lexical,
        overwrite=overwrite,
        skip_invalid=skip_invalid,
        timeout_s=timeout,
    )
    with (
        connected(target, store, timeout_s=timeout, create=True) as client,
        open_peer(peer, source, options) as peer_collection,
        counting_bar("importing") as bar,
    ):
        total = peer_collection.rows or 0
        progress = None if bar is None else lambda read: bar(read, total)
        report = import_collection(client, index, peer_collection, settings, progress)
    print_json(asdict(report)) if as_json else _print(report)
    if report.left_out:
        raise typer.Exit(PARTIAL)


def _models(items: list[str]) -> dict[str, str]:
    """Return the models by the names of vectors; "" is the unnamed one."""
    models: dict[str, str] = {}
    for item in items:
        # A model may be a path, which may have a `=`.
        name, equals, model = item.partition("=")
        key, value = (name, model) if equals and "/" not in name else ("", item)
        if key in models:
            raise typer.BadParameter(f"--encoder is given twice for one vector: {item!r}")
        models[key] = value
    return models


def _print(report: ImportReport) -> None:
    out = console()
    present = f", {report.present:,} were there already" if report.present else ""
    out.print(
        f"[green]✓[/green] {report.index}: {report.written:,} of {report.read:,} rows of {report.source} "
        f"written{present}, {report.seconds:.1f} s",
        soft_wrap=True,
    )
    for note in report.notes:
        out.print(f"  {note}", soft_wrap=True, markup=False)
    if report.left_out:
        out.print(f"  {report.left_out:,} rows were left out:", soft_wrap=True)
        for example in report.examples:
            out.print(f"    {example}", soft_wrap=True, markup=False)
