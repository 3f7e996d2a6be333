"""`scannery search`: search an index."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from scannery.cli.options import (
    BoostOption,
    FieldsOption,
    IndexOption,
    JsonOption,
    PrefixOption,
    RankingOption,
    StoreOption,
    TargetOption,
    TimeoutOption,
    TyposOption,
    VectorModelOption,
    VectorsOption,
    connected,
    parsed_json,
    vector_choices,
)
from scannery.cli.output import hits_json, print_explanation, print_hits, print_json, print_rank
from scannery.cli.uploads import answer_queries
from scannery.client import Blend, Examples, Fusion, Like, Mode, QueryLike, SearchOptions, Sparse

__all__ = ["search"]


def search(
    index: IndexOption,
    query: Annotated[str | None, typer.Argument(help="Query text.")] = None,
    target: TargetOption = None,
    store: StoreOption = None,
    queries: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Answer the queries of a file (JSON lines, CSV, Parquet; - is standard input), with id and text or "
            "vector, instead of one. Prints JSON lines in their order.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Hits wanted, 1 to 10000.")] = 10,
    where: Annotated[
        str | None,
        typer.Option(metavar="JSON", help='Filter: \'{"show": "x", "year": {"$gte": 2020}}\''),
    ] = None,
    mode: Annotated[
        Mode | None,
        typer.Option(
            "--mode", "-m", help="By vectors, by words, or by both. Default: both, where words are indexed."
        ),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(help="Hybrid: weight of dense search, 0 to 1. Default: measured by the build."),
    ] = None,
    fusion: Annotated[
        Fusion | None,
        typer.Option(help="Hybrid: method of combining two rankings. Default: weighted_score."),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT", help="Further query text, blended with the query; may be given several times."
        ),
    ] = None,
    like: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID", help="Id of a datapoint, whose vector is the query or is blended with it."
        ),
    ] = None,
    unlike: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="Id of a datapoint that hits are not to be like, beside --like.",
        ),
    ] = None,
    vector: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="A vector (list of numbers), which is the query or is blended with it."
        ),
    ] = None,
    sparse: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="Sparse weights instead of words, for lexical and hybrid: '{\"7\": 0.5}'."
        ),
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="Weights of blended queries, in the order QUERY, --also, --like, --vector. Default: equal.",
        ),
    ] = None,
    vectors: VectorsOption = None,
    vector_model: VectorModelOption = None,
    map_vectors: Annotated[
        bool,
        typer.Option(
            "--map-vectors",
            help="Map the vector where the index has those of another model than --vector-model, at a loss.",
        ),
    ] = False,
    max_per_group: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HITS",
            help="Most hits per group; NAME=HITS: per value of an attribute, may be given several times.",
        ),
    ] = None,
    group_by: Annotated[
        str | None, typer.Option(help="Attribute to group by. Default: the document.")
    ] = None,
    diversity: Annotated[
        float | None,
        typer.Option(help="Weight of novelty in the choice of hits, 0 to 1: 0.3 is a good start."),
    ] = None,
    offset: Annotated[int, typer.Option(help="Number of best hits to skip.")] = 0,
    min_score: Annotated[float | None, typer.Option(help="Least score of a hit.")] = None,
    min_relevance: Annotated[
        float | None,
        typer.Option(help="Least probability that a hit answers the question, 0 to 1, where it is measured."),
    ] = None,
    ranking: RankingOption = None,
    boost: BoostOption = None,
    exact: Annotated[bool, typer.Option("--exact", help="Compare with every allowed datapoint.")] = False,
    target_recall: Annotated[
        float | None, typer.Option(help="Share of the true neighbours to find, 0 to 1.")
    ] = None,
    leaves: Annotated[int | None, typer.Option(help="Leaves to search, instead of a target recall.")] = None,
    rescore: Annotated[
        int | None, typer.Option(help="Candidates to rescore, instead of a target recall.")
    ] = None,
    rerank: Annotated[
        int | None,
        typer.Option(metavar="HITS", help="Rerank this number of best hits with the cross-encoder."),
    ] = None,
    rerank_budget: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Stop reranking after this time.")
    ] = None,
    highlight: Annotated[
        bool,
        typer.Option("--highlight", help="Print the best sentence of each hit, with the words that match."),
    ] = False,
    context: Annotated[
        int | None,
        typer.Option(
            metavar="PASSAGES",
            help="Print each hit with the passages before and after it, at most this many each.",
        ),
    ] = None,
    token_budget: Annotated[
        int | None,
        typer.Option(
            metavar="TOKENS",
            help="Most tokens of all hits and their context together; the best hits go first.",
        ),
    ] = None,
    typos: TyposOption = None,
    prefix: PrefixOption = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also print how the query was answered.")
    ] = False,
    why: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="Print why this datapoint is at its rank, or is no hit and what would make it one, instead of hits.",
        ),
    ] = None,
    fields: FieldsOption = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Search an index by text, vector, or datapoint."""
    options: SearchOptions = {
        "where": parsed_json(where, "--where"),
        "mode": mode,
        "alpha": alpha,
        "fusion": fusion,
        "max_per_group": _group_limits(max_per_group),
        "group_by": group_by,
        "diversity": diversity,
        "offset": offset,
        "min_score": min_score,
        "min_relevance": min_relevance,
        "ranking": ranking,
        "boost": parsed_json(boost, "--boost"),
        "exact": exact,
        "target_recall": target_recall,
        "leaves": leaves,
        "rescore": rescore,
        "rerank": rerank,
        "rerank_budget_s": rerank_budget,
        "highlight": highlight,
        "context": context,
        "token_budget": token_budget,
        "typos": typos,
        "prefix": prefix,
        "explain": explain,
        "fields": fields or None,
        "vector_model": vector_model,
        "map_vectors": map_vectors,
    }
    if vectors is not None:
        options["vectors"] = vector_choices(vectors)
    if queries is not None:
        if any(value is not None for value in (query, also, like, unlike, vector, sparse, weights, why)):
            raise typer.BadParameter(
                "--queries cannot be combined with QUERY, --also, --like, --unlike, --vector, --sparse, --weights, "
                "--why"
            )
        with connected(target, store, timeout_s=timeout) as client:
            answer_queries(client.index(index), queries, k, options)
        return
    what = (
        _examples(like or [], unlike, [query, also, vector, sparse, weights])
        if unlike
        else _query(
            [*([query] if query is not None else []), *(also or [])],
            like or [],
            parsed_json(vector, "--vector"),
            parsed_json(weights, "--weights"),
            parsed_json(sparse, "--sparse"),
        )
    )
    with connected(target, store, timeout_s=timeout) as client:
        handle = client.index(index)
        if why is not None:
            report = handle.explain(what, why, k, **options)
            print_rank(report, with_search=explain, as_json=as_json)
            return
        hits = handle.search(what, k, **options)
    if as_json:
        explained = {"explanation": asdict(hits.explanation)} if hits.explanation else {}
        body = {
            "index": index,
            "version": hits.version,
            "mode": hits.mode,
            **hits_json(hits),
        }
        print_json(body | explained)
    else:
        print_hits(hits, min_relevance)
        if hits.explanation:
            print_explanation(hits.explanation)


def _group_limits(values: list[str] | None) -> int | dict[str, int] | None:
    """Return a single `HITS` as a number, others by the name of their attribute."""
    if not values:
        return None
    try:
        if len(values) == 1 and "=" not in values[0]:
            return int(values[0])
        parts = [value.rpartition("=") for value in values]
        return {name or "document_id": int(hits) for name, _, hits in parts}
    except ValueError as error:
        raise typer.BadParameter(
            f"--max-per-group must be HITS or NAME=HITS, got {' '.join(values)}"
        ) from error


def _query(texts: list[str], like: list[str], vector: object, weights: object, sparse: object) -> QueryLike:
    parts: list[QueryLike] = [*texts, *map(Like, like)]
    if vector is not None:
        if not isinstance(vector, list) or not vector:
            raise typer.BadParameter("--vector must be a list of numbers")
        parts.append(vector)
    if sparse is not None:
        return Sparse(_dimensions(sparse), _blend(parts, weights) if parts else None)
    if not parts:
        raise typer.BadParameter("give QUERY, --like, --vector or --sparse")
    return _blend(parts, weights)


def _examples(like: list[str], unlike: list[str], further: list[object]) -> Examples:
    if not like or any(value is not None for value in further):
        raise typer.BadParameter("--unlike needs --like, and no query of another kind")
    return Examples(like, unlike)


def _blend(parts: list[QueryLike], weights: object) -> QueryLike:
    if weights is None:
        return parts[0] if len(parts) == 1 else Blend(parts)
    if not isinstance(weights, list) or len(weights) != len(parts):
        raise typer.BadParameter(f"--weights must be a list of {len(parts)} numbers")
    return Blend(parts, weights)


def _dimensions(sparse: object) -> dict[int, float]:
    # In JSON the dimensions are strings, because keys must be strings.
    if not isinstance(sparse, dict) or not all(key.isdecimal() for key in sparse):
        raise typer.BadParameter("--sparse must be an object of dimensions and weights")
    return {int(key): weight for key, weight in sparse.items()}
