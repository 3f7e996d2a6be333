"""Phrases in quotes in the texts of queries: a query with phrases is one without quotes that has a filter of its own.

`volcano "plate boundary"` is the query `volcano plate boundary` among the rows that have the phrase, and `"…"~2` lets
two other words stand between those of the phrase. Quotes count where words are searched: in modes lexical and hybrid,
in a text or in `words`. Requests are changed before they are parsed, so that phrases go the way of filters, also to
leaves.

Questions quote names that texts spell otherwise, and pasted texts quote anything: phrases that no row has together, and
quotes in a text of more than MAX_PHRASED_WORDS words or MAX_PHRASES phrases, select nothing (docs/benchmarks/lexical.md
has the figures).

A quote opens a phrase before a character that is no space, and not inside or at the end of a word: `5" pipe` has none,
nor has `צה"ל`. Words of scripts without spaces, and Korean ones with their particles, touch quotes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from typing import TypeAlias

import regex

from scannery.indexer import IndexSpec, LexicalSpec, Phrase, analyser_of
from scannery.runtime.errors import InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving.limits import (
    MAX_PHRASE_SLOP,
    MAX_PHRASE_WORDS,
    MAX_PHRASED_WORDS,
    MAX_PHRASES,
    MAX_QUERIES,
    MAX_QUERY_TEXT_BYTES,
)
from scannery.serving.request.filter import TEXT_FIELD
from scannery.serving.request.options import Options
from scannery.v1 import search_pb2 as pb
from scannery.v1.types_pb2 import OPERATOR_PHRASE, Condition, Filter, FilterList, Value

__all__ = ["each_with_phrases", "may_have_phrases", "with_phrases", "without_quotes", "written_phrases"]

HasRows: TypeAlias = Callable[[str, Filter], bool]
"""Function that returns whether any row of the index has the phrases of the query at a path, which a filter selects."""

_UNSPACED = (
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\u3005-\u3007\u30fc]"
)
_SPACED = rf"[\w--{_UNSPACED}]"
_QUOTED = regex.compile(
    rf"(?V1)(?:(?<!{_SPACED})\"(?=\S)(?P<text>[^\"]+)(?<=\S)\"(?!{_SPACED})"
    rf"|“(?P<text>[^“”]+)”|„(?P<text>[^„“”]+)[“”])(?:~(?P<slop>\d{{1,9}})(?!\w))?"
)
_CHARACTERS = regex.compile(rf"(?V1){_UNSPACED}{{3}}")
"""About a word, where spaces do not tell."""
_SIGN = "[.,:;'’·&@#+]"
_PARTING = regex.compile(rf"(?V1){_SPACED}{_SIGN}?\"{_SIGN}?{_SPACED}")
"""Letters and digits with a quote between, and signs that without it may make one word of them."""
_QUOTES = '"“„'
_SIGNS = dict.fromkeys(map(ord, _QUOTES), "”")


def may_have_phrases(query: pb.Query) -> bool:
    """Return whether a query has quotes, as few have."""
    text = query.words or query.text
    return any(quote in text for quote in _QUOTES)


def without_quotes(text: str) -> str:
    """Return a text with a sign that opens no phrase in place of those that do: for APIs in which quotes are signs."""
    return text.translate(_SIGNS)


def written_phrases(phrases: Filter) -> list[str]:
    """Return the phrases that a filter of `HasRows` selects, in quotes."""
    parts = phrases.all_of.filters if phrases.WhichOneof("kind") == "all_of" else [phrases]
    pairs = (part.condition.values for part in parts)
    return [
        f'"{text.string_value}"' + (f"~{slop.int_value}" if slop.int_value else "") for text, slop in pairs
    ]


def with_phrases(
    request: pb.SearchRequest, spec: IndexSpec, options: Options, has_rows: HasRows
) -> pb.SearchRequest:
    """Return a search whose query has no phrases in quotes, and whose filter has them; most are returned as they are.

    Args:
        request: the search.
        spec: of the index.
        options: of the search.
        has_rows: tells whether any row has the phrases of a query.

    Raises:
        InvalidRequestError: the slop of a phrase is too large.

    """
    query, phrases = _unquoted(request.query, "query", spec.lexical, options)
    if not phrases:
        return request
    changed = pb.SearchRequest(index=request.index, query=query, options=request.options)
    if has_rows("query", _all_of(phrases)):
        changed.options.where.CopyFrom(_with(request.options.where, phrases))
    return changed


def each_with_phrases(
    request: pb.SearchManyRequest, spec: IndexSpec, options: Options, has_rows: HasRows, deadline: Deadline
) -> pb.SearchManyRequest:
    """Return a batch whose queries have no phrases in quotes, and whose filters have them; as `with_phrases`.

    The deadline, too, is checked before each query, which may have as long a text as any.
    """
    if not any(map(may_have_phrases, request.queries)):
        return request
    where_each = request.where_each or [Filter()] * len(request.queries)
    if len(where_each) != len(request.queries) or len(request.queries) > MAX_QUERIES:
        return request  # is refused
    changed = pb.SearchManyRequest(index=request.index, options=request.options)
    for i, (query, where) in enumerate(zip(request.queries, where_each, strict=True)):
        deadline.check()
        plain, phrases = _unquoted(query, f"queries[{i}]", spec.lexical, options)
        is_required = bool(phrases) and has_rows(f"queries[{i}]", _all_of(phrases))
        changed.queries.append(plain)
        changed.where_each.append(_with(where, phrases) if is_required else where)
    return changed


def _unquoted(
    query: pb.Query, path: str, lexical: LexicalSpec | None, options: Options
) -> tuple[pb.Query, list[Filter]]:
    """Return a query without the signs of its phrases, and a condition for each: the same query if it has none."""
    if lexical is None or not may_have_phrases(query) or not _is_by_words(query, options):
        return query, []
    text = query.words or query.text
    plain, filters = _without_quotes(text, lexical)
    if not filters:
        return query, []
    slop = max(each.condition.values[1].int_value for each in filters)
    if slop > MAX_PHRASE_SLOP:
        what = f"the slop of a phrase must be 0 to {MAX_PHRASE_SLOP}, got ~{slop}"
        raise InvalidRequestError.at(path, what)
    changed = pb.Query()
    changed.CopyFrom(query)
    if query.words:
        changed.words = plain
    else:
        changed.text = plain
    return changed, filters


def _is_by_words(query: pb.Query, options: Options) -> bool:
    """Return whether the words of a query by text are searched."""
    if query.HasField("sparse_vector"):
        return False
    if query.words:
        return bool(options.by_mode) or options.mode != "dense"
    return options.by_text.mode != "dense"


def _without_quotes(text: str, lexical: LexicalSpec) -> tuple[str, list[Filter]]:
    """Return a text without the signs of its phrases, and a condition for each.

    Quotes around signs, stop words alone, or many words are plain characters.
    """
    analyser = analyser_of(lexical)
    plain, filters, end = "", [], 0
    for match in _quoted(text):
        phrase = Phrase.of(analyser, match["text"], int(match["slop"] or 0))
        if phrase is not None and phrase.length <= MAX_PHRASE_WORDS:
            plain = _joined(_joined(plain, text[end : match.start()]), match["text"])
            end = match.end()
            filters.append(_condition(match["text"], phrase))
    return _joined(plain, text[end:]), filters


def _quoted(text: str) -> list[regex.Match[str]]:
    """Return where a text has quotes that may be phrases; none in prose, and in a text that is too long for a query."""
    if len(text) > MAX_QUERY_TEXT_BYTES:
        return []
    if len(text.split()) + len(_CHARACTERS.findall(text)) > MAX_PHRASED_WORDS:
        return []
    quoted = [*islice(_QUOTED.finditer(text), MAX_PHRASES + 1)]
    return quoted if len(quoted) <= MAX_PHRASES else []


def _joined(text: str, following: str) -> str:
    """Return two parts of a text that a quote parted, with a space where their words could become one."""
    is_parting = _PARTING.search(f'{text[-2:]}"{following[:2]}') is not None
    return f"{text} {following}" if is_parting else text + following


def _condition(text: str, phrase: Phrase) -> Filter:
    values = [Value(string_value=text), Value(int_value=phrase.slop)]
    return Filter(condition=Condition(field=TEXT_FIELD, operator=OPERATOR_PHRASE, values=values))


def _with(where: Filter, phrases: Sequence[Filter]) -> Filter:
    """Return the filter by another one, which may allow all, and by phrases."""
    return _all_of([where, *phrases] if where.WhichOneof("kind") else phrases)


def _all_of(filters: Sequence[Filter]) -> Filter:
    return filters[0] if len(filters) == 1 else Filter(all_of=FilterList(filters=filters))
