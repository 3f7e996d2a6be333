"""`scannery index create | alter | alias`: indexes without a build, on a server or in a store."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.table import Table

from scannery.cli.commands.indexes.live import index_app
from scannery.cli.options import (
    JsonOption,
    StoreOption,
    TargetOption,
    TimeoutOption,
    connected,
    parsed_json,
)
from scannery.cli.output import console, print_json
from scannery.client import IndexInfo

__all__ = ["index_app"]

NameArgument = Annotated[str, typer.Argument(metavar="INDEX", help="Name of the index.")]
AttributeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--attribute",
        "-a",
        metavar="NAME=TYPE",
        help="A typed attribute, such as year=int; may be given several times.",
    ),
]
NamedOption = Annotated[
    list[str] | None,
    typer.Option(
        "--named-vector",
        metavar="NAME=MODEL|N|JSON",
        help="A further vector of datapoints: its model, its number of dimensions, or JSON as in SPEC.yaml; may be "
        "given several times.",
    ),
]
DynamicOption = Annotated[
    bool, typer.Option("--dynamic", help="Allow attributes that are not declared, of any types.")
]
RecallOption = Annotated[
    float | None, typer.Option("--target-recall", help="Share of the true nearest neighbours to find.")
]
RerankerOption = Annotated[
    str | None, typer.Option("--reranker", metavar="MODEL", help="A cross-encoder for `rerank`.")
]
SearchOption = Annotated[
    str | None, typer.Option("--search", metavar="JSON", help="Defaults of searches, as in SPEC.yaml.")
]
LiveOption = Annotated[
    str | None, typer.Option("--live", metavar="JSON", help="Thresholds of live updates, as in SPEC.yaml.")
]


@index_app.command("create", no_args_is_help=True)
def create_command(
    name: Annotated[str | None, typer.Argument(metavar="[INDEX]", help="Name; not with --spec.")] = None,
    target: TargetOption = None,
    store: StoreOption = None,
    encoder: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model that turns texts into vectors.")
    ] = None,
    dimensions: Annotated[
        int | None, typer.Option(min=1, help="Components of a vector; needed without an encoder.")
    ] = None,
    distance: Annotated[
        str | None, typer.Option(metavar="D", help="cosine (default), dot or squared_l2.")
    ] = None,
    attribute: AttributeOption = None,
    dynamic: DynamicOption = False,
    lexical: Annotated[bool, typer.Option("--lexical", help="Also index the words of texts.")] = False,
    sparse: Annotated[bool, typer.Option("--sparse", help="Allow sparse vectors.")] = False,
    vector_model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model of the vectors that you write.")
    ] = None,
    vectors: Annotated[
        str | None,
        typer.Option(
            metavar="optional|required",
            help="Whether a datapoint must have a vector. Default: optional; of a --spec, required.",
        ),
    ] = None,
    named_vector: NamedOption = None,
    chunk_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Cut texts into passages of at most this many tokens.")
    ] = None,
    target_recall: RecallOption = None,
    reranker: RerankerOption = None,
    search: SearchOption = None,
    live: LiveOption = None,
    spec: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A SPEC.yaml; other options complete it.")
    ] = None,
    if_exists: Annotated[
        str, typer.Option(metavar="error|keep", help="keep: an index of this name is no error.")
    ] = "error",
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Create an empty index, which takes writes at once; a store's folder is created if it does not exist."""
    options: dict[str, Any] = {
        "encoder": encoder,
        "distance": distance,
        "vector_model": vector_model,
        "attributes": _attributes(attribute),
        "dynamic": dynamic or None,
        "lexical": lexical or None,
        "sparse": sparse or None,
        "vectors": vectors,
        "named_vectors": _named_vectors(named_vector),
        "chunk": None if chunk_tokens is None else {"max_tokens": chunk_tokens},
        "target_recall": target_recall,
        "reranker": reranker,
        "search": parsed_json(search, "--search"),
        "live": parsed_json(live, "--live"),
    }
    with connected(target, store, timeout_s=timeout, create=True) as client:
        made = client.create_index(
            _spec(name, spec), dimensions=dimensions, if_exists=_if_exists(if_exists), **options
        )
        _print(made.stats(), as_json=as_json)


@index_app.command("alter", no_args_is_help=True)
def alter_command(
    name: NameArgument,
    target: TargetOption = None,
    store: StoreOption = None,
    attribute: AttributeOption = None,
    dynamic: DynamicOption = False,
    optional_vectors: Annotated[
        bool, typer.Option("--optional-vectors", help="Allow datapoints without a vector.")
    ] = False,
    named_vector: NamedOption = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help='A model for queries alone, {"query_model": "NAME"}, or null for none.'
        ),
    ] = None,
    target_recall: RecallOption = None,
    reranker: RerankerOption = None,
    search: SearchOption = None,
    live: LiveOption = None,
    if_version: Annotated[
        int | None, typer.Option(min=1, help="Refuse unless this is the current version.")
    ] = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Add attributes or named vectors, change keys of the spec that do not change what is stored, in a new version."""
    with connected(target, store, timeout_s=timeout) as client:
        info = client.index(name).alter(
            attributes=_attributes(attribute),
            dynamic=True if dynamic else None,
            vectors="optional" if optional_vectors else None,
            named_vectors=_named_vectors(named_vector),
            encoder=parsed_json(encoder, "--encoder"),
            target_recall=target_recall,
            reranker=reranker,
            search=parsed_json(search, "--search"),
            live=parsed_json(live, "--live"),
            if_version=if_version,
        )
    _print(info, as_json=as_json)


@index_app.command("alias", no_args_is_help=True)
def alias_command(
    alias: Annotated[str | None, typer.Argument(metavar="[ALIAS]", help="The alias.")] = None,
    index: Annotated[str | None, typer.Argument(metavar="[INDEX]", help="The index it stands for.")] = None,
    target: TargetOption = None,
    store: StoreOption = None,
    as_list: Annotated[bool, typer.Option("--list", help="List the aliases.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the alias, not its index.")] = False,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Let a name stand for an index, or move it to another one, for all calls at once."""
    if as_list + delete + (index is not None) != 1 or (alias is None) != as_list:
        raise typer.BadParameter("give ALIAS and INDEX, ALIAS with --delete, or --list")
    with connected(target, store, timeout_s=timeout) as client:
        if alias is None:
            _print_aliases(client.aliases(), as_json=as_json)
            return
        if index is None:
            client.delete_alias(alias)
            result, text = {"alias": alias, "deleted": True}, f"Deleted the alias {alias}."
        else:
            previous = client.alias(alias, index)
            result = {"alias": alias, "index": index, "previous": previous}
            before = f", and no longer for {previous}" if previous not in (None, index) else ""
            text = f"{alias} stands for {index}{before}."
    if as_json:
        print_json(result)
    else:
        typer.echo(text)


def _spec(name: str | None, file: Path | None) -> str | dict[str, Any]:
    if (name is None) == (file is None):
        raise typer.BadParameter("give either INDEX or --spec FILE")
    if file is None:
        return str(name)
    from scannery.indexer.spec.spec_files import load_spec

    return load_spec(file).model_dump(mode="json", exclude_defaults=True)


def _attributes(pairs: Iterable[str] | None) -> dict[str, str] | None:
    return _pairs(pairs, "--attribute must be NAME=TYPE")


def _named_vectors(pairs: Iterable[str] | None) -> dict[str, Any] | None:
    vectors = _pairs(pairs, "--named-vector must be NAME=MODEL, NAME=DIMENSIONS or NAME=JSON")
    return vectors and {name: _named_vector(name, value) for name, value in vectors.items()}


def _named_vector(name: str, value: str) -> Any:
    if value.isdecimal() and value.isascii():
        return int(value)
    return parsed_json(value, f"--named-vector {name}") if value.startswith("{") else value


def _pairs(items: Iterable[str] | None, what: str) -> dict[str, str] | None:
    pairs: dict[str, str] = {}
    for item in items or ():
        name, equals, value = item.partition("=")
        if not name or not equals or not value or name in pairs:
            raise typer.BadParameter(f"{what}, each name once, got {item!r}")
        pairs[name] = value
    return pairs or None


def _if_exists(text: str) -> Literal["error", "keep"]:
    if text == "error":
        return "error"
    if text == "keep":
        return "keep"
    raise typer.BadParameter(f"--if-exists must be error or keep, got {text!r}")


def _print(info: IndexInfo, *, as_json: bool) -> None:
    if as_json:
        print_json({"index": info.name, "version": info.version, "rows": info.rows, "spec": info.spec})
    else:
        typer.echo(f"{info.name} is at version {info.version}, with {info.rows:,} datapoints.")


def _print_aliases(aliases: dict[str, str], *, as_json: bool) -> None:
    if as_json:
        print_json(aliases)
        return
    table = Table("alias", "index")
    for alias, index in aliases.items():
        table.add_row(alias, index)
    console().print(table if aliases else "There is no alias.")
