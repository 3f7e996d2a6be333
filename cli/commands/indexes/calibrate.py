"""`scannery index calibrate`: fit what scores mean to the judgements of people, without a build."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scannery.cli.commands.indexes.tune import index_app
from scannery.cli.commands.indexes.versions import JsonOption, NameArgument, StoreOption, index_of
from scannery.cli.index_samples import asked_of, batched
from scannery.cli.options import TimeoutOption, connected
from scannery.cli.output import print_json
from scannery.client import Hits, Index
from scannery.indexer import Store, read_manifest

if TYPE_CHECKING:
    from scannery.evaluation.judgements import Judgements, Query
    from scannery.indexer.manifest import Manifest, Relevance

__all__ = ["index_app"]


@index_app.command("calibrate", no_args_is_help=True)
def calibrate_command(
    name: NameArgument,
    store: StoreOption,
    queries: Annotated[
        str, typer.Option(metavar="FILE", help="Queries of your users, as `scannery evaluate` reads them.")
    ],
    qrels: Annotated[
        str, typer.Option(metavar="FILE", help="Judgements in BEIR's or TREC's format, or JSON lines.")
    ],
    passages: Annotated[
        bool, typer.Option("--passages", help="Judgements name datapoints, not documents.")
    ] = False,
    timeout: TimeoutOption = 60.0,
    as_json: JsonOption = False,
) -> None:
    """Fit the relevance of hits to judgements, and publish it as a new version of the same segments.

    Servers take it over like any version. A build measures it again once the index has far more or fewer datapoints.
    """
    from scannery.evaluation.judgements import judgements_of, read_judgement_lines, read_queries

    opened = Store.open(store)
    name = index_of(opened, name)
    manifest = read_manifest(opened, name)
    if manifest.relevance is None:
        raise typer.BadParameter(
            f"version {manifest.version} of {name} has no measured relevance to start from; the next build of at "
            "least 200 passages measures it, and `scannery index show` shows it"
        )
    judgements = judgements_of(read_judgement_lines(qrels))
    texts = {key: query for key, query in read_queries(queries).items() if query.text and judgements.get(key)}
    with connected(None, store, timeout_s=timeout) as client:
        relevance = _fitted(
            client.index(name), manifest, manifest.relevance, texts, judgements, passages=passages
        )
    from scannery.indexer.versions.creation import calibrate_index

    version = calibrate_index(opened, manifest, relevance).version
    if as_json:
        print_json({"index": name, "version": version, "relevance": relevance.model_dump(mode="json")})
        return
    typer.echo(f"{name} is at version {version}: relevance fitted to {relevance.questions:,} judged queries.")
    for key, curve in relevance.all_curves.items():
        typer.echo(
            f"{key}: error {curve.error:.3f}, separation from foreign questions {curve.separation:.3f}"
        )


def _fitted(
    index: Index,
    manifest: Manifest,
    relevance: Relevance,
    queries: Mapping[str, Query],
    judgements: Judgements,
    *,
    passages: bool,
) -> Relevance:
    from scannery.evaluation.calibration import calibrated, measured_searches, odds_samples
    from scannery.pipelines.tuning.foreign_questions import foreign_questions
    from scannery.pipelines.tuning.relevance_curves import HITS, Samples

    lexical = manifest.spec.lexical
    foreign = foreign_questions(lexical.language if lexical is not None else "english")
    relevant = [{key for key, level in judgements[query].items() if level > 0} for query in queries]
    common: dict[str, Any] = {"fields": [], **({} if passages else {"max_per_group": 1})}
    judged_samples: dict[str, Samples] = {}
    foreign_samples: dict[str, Samples] = {}
    for key, of_key in measured_searches(manifest).items():
        options = common | of_key
        texts = [asked_of(query, key) for query in queries.values()]
        judged_hits = batched(index, texts, HITS, **options)
        judged_samples[key] = odds_samples(_relevances(judged_hits, passages=passages), relevant)
        foreign_hits = batched(index, foreign, HITS, **options)
        foreign_samples[key] = odds_samples(_relevances(foreign_hits, passages=passages))
    return calibrated(relevance, judged_samples, foreign_samples)


def _relevances(results: Sequence[Hits], *, passages: bool) -> Iterator[list[tuple[str, float]]]:
    for hits in results:
        yield [(hit.id if passages else hit.document_id, hit.relevance or 0.0) for hit in hits]
