"""Print hits and datapoints: as JSON, as a table on a terminal, or as plain text elsewhere."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from scannery.client import Context, Datapoint, Explanation, Hit, Hits, RankExplanation, Snippet

__all__ = [
    "console",
    "hit_json",
    "hits_json",
    "json_text",
    "map_text",
    "point_json",
    "print_explanation",
    "print_hits",
    "print_json",
    "print_points",
    "print_rank",
    "size_text",
]

WIDE = 200
"""Width in characters without a terminal, so that files and pipes get whole names."""

PASSAGE_LINES = 3
"""Lines of a passage in the table; `--json` and plain text print the whole passage."""


def console() -> Console:
    """Return the console for text: as wide as the terminal, and `WIDE` elsewhere."""
    from rich.console import Console

    stream = Console(highlight=False)
    if stream.is_terminal or "COLUMNS" in os.environ:
        return stream
    return Console(highlight=False, width=WIDE)


def print_json(value: object) -> None:
    """Print indented JSON, with escapes for control characters only."""
    typer.echo(json_text(value, indent=2))


def json_text(value: object, *, indent: int | None = None) -> str:
    """Return a value as JSON; what controls a terminal is escaped, other characters are as they are."""
    text = json.dumps(_as_json(value), indent=indent, ensure_ascii=False, allow_nan=False)
    return _CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _as_json(value: Any) -> Any:
    """Return a value with texts in place of times, and of infinite numbers, as exports have them: JSON has neither."""
    if isinstance(value, dt.datetime):
        return value.isoformat()
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {name: _as_json(item) for name, item in value.items()}
    return [_as_json(item) for item in value] if isinstance(value, (list, tuple)) else value


_CONTROLS = re.compile("[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")
"""Control characters that JSON allows in strings, and those that change the direction of text."""


def size_text(size_bytes: int) -> str:
    """Return a size as text, such as 5.2 MiB."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def hits_json(hits: Hits) -> dict[str, Any]:
    """Return hits as JSON values, and whether there is none of the relevance of the search."""
    nothing = {"nothing_relevant": True} if hits.nothing_relevant else {}
    bound = {} if hits.unseen_bound is None else {"unseen_bound": hits.unseen_bound}
    return {"hits": [hit_json(hit) for hit in hits], **nothing, **bound}


def hit_json(hit: Hit) -> dict[str, Any]:
    """Return a hit as JSON values."""
    group = {} if hit.group is None else {"group": hit.group}
    sides = {
        "dense_score": hit.dense_score,
        "lexical_score": hit.lexical_score,
        "rerank_score": hit.rerank_score,
        "relevance": hit.relevance,
        "base_score": hit.base_score,
    }
    scores: dict[str, Any] = {
        "score": hit.score,
        **{name: score for name, score in sides.items() if score is not None},
    }
    if hit.vector_scores:
        scores["vector_scores"] = hit.vector_scores
    snippet = {} if hit.snippet is None else {"snippet": _snippet_json(hit.snippet)}
    context = {} if hit.context is None else {"context": _context_json(hit.context)}
    features = {"features": hit.features} if hit.features else {}
    return {
        "id": hit.id,
        "document_id": hit.document_id,
        **scores,
        **_content(hit),
        **group,
        **snippet,
        **context,
        **features,
    }


def _context_json(context: Context) -> dict[str, Any]:
    return {name: value for name, value in asdict(context).items() if value not in (None, (), "", False)}


def _snippet_json(snippet: Snippet) -> dict[str, Any]:
    values = {
        "text": snippet.text,
        "start": snippet.start,
        "end": snippet.end,
        "score": snippet.score,
        "words": [list(word) for word in snippet.words],
    }
    return {name: value for name, value in values.items() if value is not None}


def point_json(point: Datapoint) -> dict[str, Any]:
    """Return a datapoint as JSON values."""
    vectors: dict[str, Any] = {} if point.vector is None else {"vector": point.vector.tolist()}
    if point.vectors:
        vectors["vectors"] = {name: vector.tolist() for name, vector in point.vectors.items()}
    return {"id": point.id, "document_id": point.document_id, **_content(point), **vectors}


def print_hits(hits: Hits, min_relevance: float | None = None) -> None:
    """Print hits: a table on a terminal, else a block of plain text for each; `min_relevance` is that of the search."""
    out = console()
    if hits.nothing_relevant:
        typer.echo(f"Nothing relevant: no hit has a relevance of {min_relevance:g}.")
    elif not hits:
        typer.echo("No hits.")
    elif out.is_terminal:
        out.print(_table(hits, out.width))
    else:
        for rank, hit in enumerate(hits, 1):
            score, *sides = _scores(hit)
            of_sides = f" ({', '.join(sides)})" if sides else ""
            typer.echo(f"{rank}. {score}{of_sides}  " + "\n   ".join(_lines(hit)))


def map_text(source: str, target: str, overlap: float, ndcg: float | None, source_ndcg: float | None) -> str:
    """Return from which model to which one a map of vectors leads, and its loss."""
    text = f"from {source or 'callers'} onto {target or 'callers'}: keeps {overlap:.0%} of the ten nearest of a vector"
    if ndcg is not None and source_ndcg is not None:
        text += f"; nDCG@10 {ndcg:.3f}, without it {source_ndcg:.3f}"
    return text


def print_explanation(explanation: Explanation) -> None:
    """Print how a query was answered: a line per segment, then the times and the expected recall."""
    typer.echo("\nHow it was answered")
    if explanation.fusion is not None:
        typer.echo(f"  {explanation.mode}, by {explanation.fusion} with alpha {explanation.alpha:g}")
    elif explanation.mode is not None:
        typer.echo(f"  {explanation.mode}")
    for word, pattern in explanation.expanded_words.items():
        typer.echo(f"  {word}: searched as {pattern}")
    if (ranking := explanation.ranking) is not None:
        stopped = "" if ranking.unseen_bound is None else f"; no other is above {ranking.unseen_bound:.3f}"
        typer.echo(f"  ordered by {ranking.expression}, computed for {ranking.rows} datapoints{stopped}")
    if (ranker := explanation.ranker) is not None:
        typer.echo(f"  ordered by {ranker.model}")
        for name, weight in ranker.weights.items():
            typer.echo(f"    {weight:+.3f} × {name}")
    for model in explanation.query_models:
        typer.echo(f"  a text is encoded by {model}")
    for each in explanation.maps:
        loss = map_text(each.from_model, each.to_model, each.overlap, each.ndcg, each.source_ndcg)
        typer.echo(f"  the vector was mapped {loss}")
    for warning in explanation.warnings:
        typer.echo(f"  warning: {warning}")
    if explanation.phrases:
        typer.echo(f"  all hits have {', '.join(explanation.phrases)}")
    for plan in explanation.segments:
        leaves = f", {plan.leaves_searched:,} leaves" if plan.leaves_searched else ""
        typer.echo(
            f"  segment {plan.segment} (shard {plan.shard}): {plan.plan}; {plan.rows_allowed:,} of "
            f"{plan.rows:,} rows allowed{leaves}, {plan.candidates:,} rows compared"
        )
    times = " · ".join(f"{name} {spent / 1000:.2f} ms" for name, spent in explanation.stages_us.items())
    typer.echo(f"  {times}\n  expected recall {explanation.expected_recall:.3f}")
    if explanation.recall_steps:
        typer.echo(
            f"  settings for {explanation.effective_target_recall:.4f}, since live queries reach the target "
            f"{explanation.target_recall:.3f} only so"
        )


def print_rank(report: RankExplanation, *, with_search: bool, as_json: bool) -> None:
    """Print why a datapoint is at its rank, or is no hit; `with_search`: also how the search was answered."""
    if not as_json:
        typer.echo("\n".join(map(_inline, str(report).split("\n"))))
        if with_search:
            print_explanation(report.search)
        return
    body = asdict(replace(report, hit=None))
    if report.hit is not None:
        body["hit"] = hit_json(report.hit)
    if not with_search:
        del body["search"]
    print_json(body)


def print_points(points: Iterable[Datapoint]) -> None:
    """Print datapoints as text, one block each."""
    for point in points:
        typer.echo("\n   ".join(_lines(point)))


def _table(hits: Hits, columns: int) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(show_lines=True, pad_edge=False)
    table.add_column("#", justify="right", no_wrap=True)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("from", ratio=2, overflow="fold")
    table.add_column("passage", ratio=3)
    width = max(20, (columns - 16) * 3 // 5)
    for rank, hit in enumerate(hits, 1):
        source = Text(_heading(hit), style="bold")
        if details := _inline(_details(hit)):
            source.append(f"\n{details}", style="dim")
        if hit.snippet is not None and hit.snippet.text is not None:
            passage = _marked(hit.snippet.text, hit.snippet)
        else:
            shown = "\n".join(_passage(hit.text or "")[:PASSAGE_LINES])
            passage = Text(_shortened(shown, PASSAGE_LINES * width))
        table.add_row(str(rank), "\n".join(_scores(hit)), source, passage)
    return table


def _marked(sentence: str, snippet: Snippet) -> Text:
    """Return a sentence on one line, with the words that match in bold."""
    from rich.text import Text

    text, position = Text(), 0
    for start, end in snippet.words_within(snippet.start, snippet.end):
        text.append(_inline(sentence[position:start]))
        text.append(_inline(sentence[start:end]), style="bold reverse")
        position = end
    return text.append(_inline(sentence[position:]))


def _inline(text: str) -> str:
    """Return a part of a line, without control characters; its spaces stay."""
    return "".join(char if char.isprintable() else " " for char in text)


def _scores(hit: Hit) -> list[str]:
    """Return the score, the relevance, the scores that order hybrid and reranked hits, and those of several vectors."""
    sides = {"rerank": hit.rerank_score, "dense": hit.dense_score, "lexical": hit.lexical_score}
    return [
        f"{hit.score:.4f}",
        *([] if hit.relevance is None else [f"relevance {hit.relevance:.0%}"]),
        *([] if hit.base_score is None else [f"before ranking {hit.base_score:.3f}"]),
        *(f"{name} {score:.4f}" for name, score in sides.items() if score is not None),
        *(
            f"{name or 'vector'} {score:.4f}"
            for name, score in hit.vector_scores.items()
            if len(hit.vector_scores) > 1
        ),
    ]


def _lines(point: Datapoint) -> list[str]:
    snippet: Snippet | None = getattr(point, "snippet", None)
    if snippet is not None and snippet.text is not None:
        passage = [_one_line(_starred(snippet.text, snippet.words_within(snippet.start, snippet.end)))]
    elif (context := getattr(point, "context", None)) is not None:
        passage = _passage(context.text) or [_without_context(context)]
    else:
        passage = _passage(point.text or "")
    lines = [_heading(point), f"id: {_inline(point.id)}", _inline(_details(point)), *passage]
    return [line for line in lines if line]


def _without_context(context: Context) -> str:
    """Return why a hit has no text in its context."""
    return (
        "(beyond the budget)" if context.within is None else f"(in the context of {_inline(context.within)})"
    )


def _starred(text: str, words: Iterable[tuple[int, int]]) -> str:
    """Return a text with asterisks around words, which are in order."""
    pieces, position = [], 0
    for start, end in words:
        pieces += [text[position:start], f"*{text[start:end]}*"]
        position = end
    return "".join([*pieces, text[position:]])


def _heading(point: Datapoint) -> str:
    title = _one_line(point.title or point.document_id)
    return title if point.time_start_s is None else f"{title} at {_clock(point.time_start_s)}"


def _details(point: Datapoint) -> str:
    return " · ".join(f"{name}: {_shown(value)}" for name, value in point.attributes.items())


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dt.datetime):
        midnight = (value.hour, value.minute, value.second, value.microsecond) == (0, 0, 0, 0)
        return value.date().isoformat() if midnight else value.isoformat(" ", "seconds")
    return f"{value:g}" if isinstance(value, float) else str(value)


def _content(point: Datapoint) -> dict[str, Any]:
    optional = {
        "title": point.title,
        "text": point.text,
        "text_start": point.text_start,
        "text_end": point.text_end,
        "time_start_s": point.time_start_s,
        "time_end_s": point.time_end_s,
        "payload": point.payload,
    }
    present = {name: value for name, value in optional.items() if value is not None}
    return present | {"attributes": point.attributes}


def _passage(text: str) -> list[str]:
    """Return a passage as lines: each row of a table is one, and the text around tables is one."""
    rows = itertools.groupby(text.splitlines(), lambda line: line.lstrip().startswith("|"))
    lines: list[str] = []
    for is_table, group in rows:
        lines += group if is_table else [" ".join(group)]
    return [shown for line in lines if (shown := _one_line(line))]


def _one_line(text: str) -> str:
    # Control characters of indexed text must not reach the terminal.
    return "".join(char if char.isprintable() else " " for char in " ".join(text.split()))


def _shortened(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1].rsplit(" ", 1)[0] + "…"


def _clock(seconds: float) -> str:
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
