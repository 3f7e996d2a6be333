"""Views of results for notebooks: short tables in HTML, readable on light and on dark pages.

Every text of an index is escaped. Colours come from the page; styles are inline, since notebooks remove style sheets.
"""

from __future__ import annotations

import datetime as dt
import html
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

from scannery.client.errors import ScanneryError

if TYPE_CHECKING:
    from scannery.client.response.aggregations import Facet
    from scannery.client.response.index_info import Distance, IndexInfo, NamedVectorInfo
    from scannery.client.response.results import Datapoint, Hit

__all__ = [
    "datapoint_view",
    "facets_view",
    "handle_view",
    "hits_view",
    "index_view",
    "indexes_view",
    "marked_html",
    "scores_text",
    "vectors_text",
]

SHOWN_HITS = 20
SHOWN_FACETS = 50
TEXT_CHARACTERS = 240
VALUE_CHARACTERS = 80
SHOWN_ATTRIBUTES = 12
HANDLE_TIMEOUT_S = 2.0

_SPACES = re.compile(r"\s+")
_UNSEEN = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]|[\u202a-\u202e\u2066-\u2069]")
"""Control characters, and marks that turn the direction of what follows. Joiners and soft hyphens are part of words."""
_BORDER = "1px solid rgba(128,128,128,.35)"
_CELL = f"text-align:left;vertical-align:top;padding:4px 10px 4px 0;border:0;border-bottom:{_BORDER};background:none"
_NUMBER = f"{_CELL};font-variant-numeric:tabular-nums;white-space:nowrap"
_DIM = "opacity:.65;font-size:90%"
_CHIP = (
    f"display:inline-block;border:{_BORDER};border-radius:3px;padding:0 5px;margin:2px 4px 0 0;font-size:85%"
)


def hits_view(hits: Sequence[Hit], version: int) -> str:
    """Return the hits of a query as a table: rank, score, and what was found."""
    if not hits:
        return _framed("<em>No hits.</em>")
    rows = "".join(
        _row((_NUMBER, str(rank)), (_NUMBER, f"{hit.score:.4f}"), (_CELL, _content(hit)))
        for rank, hit in enumerate(hits[:SHOWN_HITS], 1)
    )
    more = f", {SHOWN_HITS} shown" if len(hits) > SHOWN_HITS else ""
    foot = f"{len(hits):,} hits{more}; version {version}"
    return _framed(f"{_table(rows, ('#', 'score', 'found'))}{_dim(foot)}")


def facets_view(facets: Sequence[Facet], distinct: int, missing: int) -> str:
    """Return the values of an attribute as a table: value, and number of datapoints."""
    rows = "".join(
        _row((_CELL, _text(_value(facet.value))), (_NUMBER, f"{facet.count:,}"))
        for facet in facets[:SHOWN_FACETS]
    )
    more = f", {min(SHOWN_FACETS, len(facets)):,} shown" if distinct > min(SHOWN_FACETS, len(facets)) else ""
    foot = f"{distinct:,} values{more}; {missing:,} datapoints without one"
    return _framed(f"{_table(rows, ('value', 'datapoints'))}{_dim(foot)}")


def datapoint_view(point: Datapoint) -> str:
    """Return a datapoint or a hit."""
    score = getattr(point, "score", None)
    return _framed(_content(point) + ("" if score is None else _dim(f"score {score:.4f}")))


def index_view(info: IndexInfo) -> str:
    """Return the description of an index."""
    encoder = info.encoder.model if info.encoder else "none: it takes vectors" if info.dimensions else "none"
    query_model = info.encoder.query_model if info.encoder else None
    vectors = f"{info.dimensions} dimensions, {info.distance}" if info.dimensions else "none"
    recall = f"{info.recall.measured:.3f} of the {info.recall.k} nearest" if info.recall else "exact search"
    memory = f" ({info.memory_rows:,} in memory)" if info.memory_rows else ""
    facts = [
        ("datapoints", f"{info.rows:,}{memory}"),
        ("vectors", vectors),
        ("encoder", encoder),
        *([("queries", query_model)] if query_model else []),
        *((f"vectors {name}", _named_text(named)) for name, named in info.named_vectors.items()),
        ("words", "indexed" if info.lexical else "not indexed"),
        ("version", f"{info.version}, of {info.created_at:%Y-%m-%d %H:%M} UTC"),
        ("recall", recall),
        (
            "size",
            f"{info.size_bytes / 2**20:,.1f} MiB in {info.shards} shard{'s' if info.shards > 1 else ''}",
        ),
        *([("aliases", ", ".join(info.aliases))] if info.aliases else []),
        *([("problem", info.problem)] if info.problem else []),
    ]
    rows = "".join(_row((f"{_CELL};{_DIM}", _text(name)), (_CELL, _text(value))) for name, value in facts)
    return _framed(f"<strong>{_text(info.name)}</strong>{_table(rows)}{_chips(info.attributes)}")


def indexes_view(infos: Sequence[IndexInfo]) -> str:
    """Return a list of indexes as a table."""
    if not infos:
        return _framed("<em>No indexes.</em>")
    rows = "".join(
        _row(
            (_CELL, f"<strong>{_text(info.name)}</strong>"),
            (_NUMBER, f"{info.rows:,}"),
            (_NUMBER, str(info.dimensions)),
            (_CELL, _text(info.encoder.model if info.encoder else "")),
            (_NUMBER, str(info.version)),
        )
        for info in infos
    )
    return _framed(_table(rows, ("index", "datapoints", "dimensions", "encoder", "version")))


def handle_view(name: str, stats: Callable[..., Any]) -> str:
    """Return the view of a handle on an index: its description, if it can be had at once."""
    if iscoroutinefunction(stats):
        return _framed(f"<strong>{_text(name)}</strong>{_dim('await index.stats() describes it')}")
    try:
        return index_view(stats(timeout_s=HANDLE_TIMEOUT_S))
    except ScanneryError as error:
        return _framed(f"<strong>{_text(name)}</strong>{_dim(error.message)}")


def _content(point: Datapoint) -> str:
    heading = (
        f"<strong>{_text(point.title or point.document_id or point.id)}</strong> {_dim(point.id, 'span')}"
    )
    snippet = getattr(point, "snippet", None)
    if snippet is not None and snippet.text is not None:
        text = f"<div>{snippet.html()}</div>"
    else:
        text = f"<div>{_text(_shortened(point.text, TEXT_CHARACTERS))}</div>" if point.text else ""
    scores = getattr(point, "vector_scores", None)
    return heading + text + _chips(point.attributes) + (_dim(scores_text(scores)) if scores else "")


def _named_text(named: NamedVectorInfo) -> str:
    """Return what is known of named vectors as text."""
    model = named.encoder.model if named.encoder else None
    return vectors_text(named.dimensions, named.distance, named.rows, model=model, field=named.from_)


def vectors_text(
    dimensions: int, distance: Distance, rows: int, *, model: str | None, field: str | None
) -> str:
    """Return what vectors are as text.

    Args:
        dimensions: of each.
        distance: how they are compared.
        rows: how many are in segments.
        model: of the encoder; None: they are given.
        field: of which the encoder gets the text.

    """
    made = f"by {model} from {field}" if model else "given"
    return f"{dimensions} dimensions, {distance}, {made}; {rows:,} in segments"


def scores_text(scores: Mapping[str, float]) -> str:
    """Return the scores of a hit by its vectors as text, the best first; the unnamed one is called `vector`."""
    best_first = sorted(scores.items(), key=lambda each: -each[1])
    return " · ".join(f"{name or 'vector'} {score:.4f}" for name, score in best_first)


def marked_html(text: str, words: Iterable[tuple[int, int]], tag: str) -> str:
    """Return a text as HTML on one line, with words, in order and apart, in elements of a name."""
    if not (tag.isascii() and tag.isalnum()):
        raise ValueError(f"tag: must be the name of an element, such as mark, got {tag!r:.80}")
    pieces, position = [], 0
    for start, end in words:
        pieces += [_inline(text[position:start]), f"<{tag}>{_inline(text[start:end])}</{tag}>"]
        position = end
    return "".join([*pieces, _inline(text[position:])]).strip()


def _inline(text: str) -> str:
    """Return a part of a line, escaped, without control characters; a break of the line is a space."""
    return html.escape(_seen(_SPACES.sub(" ", text)))


def _chips(values: dict[str, Any]) -> str:
    shown = list(values.items())[:SHOWN_ATTRIBUTES]
    more = f' <span style="{_DIM}">+{len(values) - len(shown)}</span>' if len(values) > len(shown) else ""
    chips = (
        f'<span style="{_CHIP}"><span style="opacity:.65">{_text(name)}</span> {_text(_value(value))}</span>'
        for name, value in shown
    )
    return f"<div>{''.join(chips)}{more}</div>" if values else ""


def _value(value: object) -> str:
    if isinstance(value, dt.datetime):
        text = value.isoformat(" ", "minutes").removesuffix("+00:00").removesuffix(" 00:00")
    else:
        text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return _shortened(text, VALUE_CHARACTERS)


def _framed(content: str) -> str:
    # MathJax would take what stands between two dollar signs for a formula.
    return f'<div class="tex2jax_ignore mathjax_ignore" style="max-width:60em">{content}</div>'


def _table(rows: str, names: Iterable[str] = ()) -> str:
    head = "".join(f'<th style="{_CELL};{_DIM}">{name}</th>' for name in names)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return (
        f'<table style="border-collapse:collapse;border:0;margin:4px 0">{head}<tbody>{rows}</tbody></table>'
    )


def _row(*cells: tuple[str, str]) -> str:
    inner = "".join(f'<td style="{style}">{content}</td>' for style, content in cells)
    return f'<tr style="background:none">{inner}</tr>'


def _dim(text: str, tag: str = "div") -> str:
    return f'<{tag} style="{_DIM}">{_text(text)}</{tag}>'


def _text(text: str) -> str:
    """Return a text on one line, escaped, without control characters."""
    return html.escape(_seen(" ".join(text.split())))


def _seen(text: str) -> str:
    return _UNSEEN.sub(lambda match: "" if match[0] >= "\u2000" and match[0] < "\ud800" else " ", text)


def _shortened(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1].rstrip()}…"
