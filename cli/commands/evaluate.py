"""`scannery evaluate`: measure the retrieval quality of an index, and compare configurations of the search."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from scannery.cli.evaluation_report import EvaluationReport, evaluation_json, print_evaluation
from scannery.cli.index_samples import (
    Searcher,
    derived_queries,
    existing_documents,
    existing_ids,
    possible_modes,
)
from scannery.cli.options import (
    IndexOption,
    JsonOption,
    PrefixOption,
    StoreOption,
    TargetOption,
    TimeoutOption,
    TyposOption,
    VectorsOption,
    connected,
    parsed_json,
    vector_choices,
)
from scannery.cli.output import print_json
from scannery.client import Fusion, Index, Mode

if TYPE_CHECKING:
    from scannery.evaluation.evaluate import Configuration
    from scannery.evaluation.judgements import Judgement, Judgements, Query, Source
    from scannery.evaluation.measures import Measure

__all__ = ["evaluate"]


def evaluate(
    index: IndexOption,
    queries: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="JSON lines with _id and text (BEIR), .tsv, or a .txt with one per line."
        ),
    ] = None,
    qrels: Annotated[
        str | None, typer.Option(metavar="FILE", help="Judgements in BEIR's or TREC's format, or JSON lines.")
    ] = None,
    derive: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=10_000, help="In place of files: N queries from the index's own texts."
        ),
    ] = None,
    target: TargetOption = None,
    store: StoreOption = None,
    mode: Annotated[
        str | None,
        typer.Option(
            "--mode", "-m", help="Comma-separated: dense, lexical, hybrid. Default: all that the index has."
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Hits per query, and the k of recall@k.")] = 100,
    vectors: VectorsOption = None,
    alpha: Annotated[float | None, typer.Option(help="Hybrid: weight of dense search.")] = None,
    fusion: Annotated[Fusion | None, typer.Option(help="Hybrid: method of combining two rankings.")] = None,
    typos: TyposOption = None,
    prefix: PrefixOption = False,
    rerank: Annotated[
        int | None, typer.Option(metavar="HITS", help="Rerank this number of best hits.")
    ] = None,
    target_recall: Annotated[float | None, typer.Option(help="Search with this target recall.")] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUES",
            help="Try several values of mode, vectors, fusion, alpha, typos, prefix, rerank, k, target_recall or "
            "index: alpha=0.1..0.9:0.2, rerank=0,20,50, vectors=title,title+body. May be given several times.",
        ),
    ] = None,
    measure: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated, the main one first: nDCG@10, MRR@10, MAP, recall@100, success@5, precision@10, "
            "judged@10."
        ),
    ] = None,
    where: Annotated[str | None, typer.Option(metavar="JSON", help="Filter, as in search.")] = None,
    passages: Annotated[
        bool, typer.Option("--passages", help="Judgements name datapoints, not documents.")
    ] = False,
    baseline: Annotated[
        str | None, typer.Option(metavar="NAME", help="Configuration to compare the others with.")
    ] = None,
    differences: Annotated[
        int, typer.Option(min=0, help="Number of queries to show whose results differ most between modes.")
    ] = 5,
    run: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the hits as a TREC run; several configurations: files."),
    ] = None,
    per_query: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the values of each query: .jsonl or .csv.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the main measure: .png, .svg or .pdf.")
    ] = None,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Measure nDCG, MRR, MAP, recall and success of an index against relevance judgements."""
    from scannery.evaluation.collection_check import check_collection
    from scannery.evaluation.evaluate import evaluate as evaluated

    files = OutputFiles(run=run, per_query=per_query, plot=plot)
    files.check()
    filtered = parsed_json(where, "--where")
    with connected(target, store, timeout_s=timeout) as client:
        handle = client.index(index)
        collection = _collection(handle, queries, qrels, derive, filtered, passages=passages)
        fixed = {
            "vectors": vectors,
            "fusion": fusion,
            "alpha": alpha,
            "typos": typos,
            "prefix": prefix or None,
            "rerank": rerank,
            "k": k,
            "target_recall": target_recall,
        }
        configurations = _configurations(handle, collection.queries, mode, fixed, sweep or [])
        _check_baseline(baseline, configurations)
        searcher = Searcher(client, index, passages=passages, where=filtered)
        existing = existing_ids if passages else existing_documents
        check = check_collection(collection.queries, collection.lines, lambda ids: existing(handle, ids))
        results = evaluated(
            {configuration.name: searcher.search_of(configuration) for configuration in configurations},
            collection.queries,
            collection.judgements,
            k=k,
            measures=_measures(measure, configurations),
        )
    report = EvaluationReport(
        index=index,
        configurations=configurations,
        results=results,
        queries=collection.queries,
        derived=collection.derived,
        check=check,
        snapshots=sorted(searcher.snapshots),
        baseline=baseline,
        differences=differences,
    )
    paths = files.write(report)
    if as_json:
        print_json({**evaluation_json(report), "files": paths})
    else:
        print_evaluation(report)
        for path in paths:
            typer.echo(f"wrote {path}")


@dataclass(frozen=True, kw_only=True)
class OutputFiles:
    """Files that an evaluation writes."""

    run: Path | None
    per_query: Path | None
    plot: Path | None

    def check(self) -> None:
        """Refuse what cannot be written before anything is searched."""
        for option, path in (("--run", self.run), ("--per-query", self.per_query), ("--plot", self.plot)):
            if path is not None and not path.resolve().parent.is_dir():
                raise typer.BadParameter(f"there is no folder {path.parent}", param_hint=option)
        if self.per_query is not None and self.per_query.suffix not in (".jsonl", ".csv"):
            raise typer.BadParameter("must end with .jsonl or .csv", param_hint="--per-query")
        if self.plot is not None:
            from scannery.cli.evaluation_report import check_plot

            check_plot(self.plot)

    def write(self, report: EvaluationReport) -> list[str]:
        """Write the files, and return their names."""
        from scannery.evaluation.evaluate import run_paths, write_per_query, write_run

        outputs: list[Path] = []
        if self.run is not None:
            paths = run_paths(self.run, [result.name for result in report.results])
            changed = max(write_run(paths[result.name], result) for result in report.results)
            if changed:
                typer.echo(f"warning: {changed:,} ids have blanks, which are %20 in the run", err=True)
            outputs += paths.values()
        if self.per_query is not None:
            texts = {name: str(query) for name, query in report.queries.items()}
            write_per_query(self.per_query, report.results, texts)
            outputs.append(self.per_query)
        if self.plot is not None:
            from scannery.cli.evaluation_report import plot_evaluation

            plot_evaluation(report, self.plot)
            outputs.append(self.plot)
        return list(map(str, outputs))


@dataclass(frozen=True, kw_only=True)
class JudgedQueries:
    """What is asked, and what should be found."""

    queries: Mapping[str, Query]
    lines: Sequence[Judgement]
    """Judgements, in the order of their file."""
    derived: Source | None = None
    """What the queries are taken from; None: they are the user's."""

    @property
    def judgements(self) -> Judgements:
        """The judgements by query and document."""
        from scannery.evaluation.judgements import judgements_of

        return judgements_of(self.lines)


def _collection(
    index: Index, queries: str | None, qrels: str | None, derive: int | None, where: Any, *, passages: bool
) -> JudgedQueries:
    from scannery.evaluation.judgements import read_judgement_lines, read_queries

    if derive is not None:
        if queries is not None or qrels is not None:
            raise typer.BadParameter("give either --derive, or --queries and --qrels")
        return _derived(index, derive, where, passages=passages)
    if queries is None or qrels is None:
        raise typer.BadParameter(
            "give --queries and --qrels, or --derive N, which needs no files; `scannery judge` writes judgements"
        )
    return JudgedQueries(queries=read_queries(queries), lines=read_judgement_lines(qrels))


def _derived(index: Index, count: int, where: Any, *, passages: bool) -> JudgedQueries:
    from scannery.evaluation.judgements import Judgement, Query

    derived = derived_queries(index, count, where)
    return JudgedQueries(
        queries={query.query_id: Query(query.text) for query in derived},
        lines=[
            Judgement(query.query_id, query.passage_id if passages else query.document_id, 1)
            for query in derived
        ],
        derived=derived[0].source,
    )


def _configurations(
    index: Index, queries: Mapping[str, Query], mode: str | None, fixed: dict[str, Any], sweep: Sequence[str]
) -> list[Configuration]:
    from scannery.evaluation.evaluate import combine, parse_sweep

    try:
        sweeps = dict(map(parse_sweep, sweep))
        if mode is not None and "mode" in sweeps:
            raise ValueError("give either --mode or --sweep mode=…")
        if twice := [name for name in sweeps if name != "k" and fixed.get(name) is not None]:
            raise ValueError(f"{twice[0]} is given twice: fixed, and as a sweep")
        choices = sweeps.get("vectors", [fixed["vectors"]])
        names = {name for text in choices if text is not None for name in vector_choices(text)}
        sweeps["mode"] = _modes(index, queries, names, mode, sweeps.get("mode"))
        _check_names("fusion", sweeps.get("fusion", ()), get_args(Fusion))
        return combine({name: value for name, value in fixed.items() if name not in sweeps}, sweeps)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--sweep") from error


def _modes(
    index: Index,
    queries: Mapping[str, Query],
    vectors: Collection[str],
    mode: str | None,
    swept: Sequence[str] | None,
) -> list[str]:
    if mode is None and swept is None:
        return possible_modes(index, queries, vectors)
    names = swept if mode is None else list(dict.fromkeys(name.strip() for name in (mode or "").split(",")))
    modes = get_args(Mode)
    for name in names or ():
        if name not in modes:
            raise typer.BadParameter(f"--mode must be one or more of {', '.join(modes)}, got {name!r}")
    return [name for name in modes if name in (names or ())]


def _check_names(option: str, names: Sequence[str], allowed: Sequence[str]) -> None:
    for name in names:
        if name not in allowed:
            raise ValueError(f"{option} must be one or more of {', '.join(allowed)}, got {name!r}")


def _check_baseline(baseline: str | None, configurations: Sequence[Configuration]) -> None:
    names = [configuration.name for configuration in configurations]
    if baseline is not None and baseline not in names:
        raise typer.BadParameter(
            f"must be one of {'; '.join(names)}, got {baseline!r}", param_hint="--baseline"
        )


def _measures(text: str | None, configurations: Sequence[Configuration]) -> list[Measure]:
    from scannery.evaluation.measures import default_measures, parse_measures

    if text is not None:
        return parse_measures([name for name in text.split(",") if name.strip()])
    depths = {configuration.options["k"] for configuration in configurations}
    # Where k is swept, the hits beyond a fixed cutoff are what the sweep is about.
    return (
        default_measures(depths.pop())
        if len(depths) == 1
        else parse_measures(["nDCG", "MRR", "MAP", "recall", "success", "judged"])
    )
