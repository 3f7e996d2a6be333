"""From clicks to judgements: pairs of a question and a document that users found right, or passed over.

A document is right for a text where users who asked it clicked the document, or asked it without a click and clicked
the document in the answer to another question within two minutes. It is wrong where they rejected it, or passed it
over: it was above one that they clicked (Joachims 2002). What a user does counts once per text and document, however
often it is done, and a text counts only if enough distinct users have asked it: neither one user alone makes a pair,
nor does a rare text, which may say who asked it, leave the log. More elaborate models of clicks need more sessions than
most indexes have, and are then no better (arXiv 2404.03707).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from scannery.evaluation.judgements import query_id_of
from scannery.indexer.traffic.rows import CLICK, LoggedEvent, LoggedQuery
from scannery.indexer.traffic.texts import same_text

__all__ = ["MIN_ASKERS", "REFORMULATED_WITHIN", "JudgedText", "judged_texts"]

MIN_ASKERS = 5
REFORMULATED_WITHIN = timedelta(minutes=2)


@dataclass(frozen=True, kw_only=True)
class JudgedText:
    """A text with the hits that users judged."""

    query_id: str
    """Id of the text, as files of queries give one to a text that has none."""
    text: str
    """The text as it was written most often."""
    askers: int
    """Distinct users who asked it."""
    right: dict[str, int]
    """Users who found a hit right, by id of the hit."""
    reformulated: frozenset[str]
    """Ids of right hits that nobody clicked in an answer to this text, only in one to a later text."""
    wrong: dict[str, int]
    """Users who rejected a hit or passed it over, by id of the hit; without those that more users found right."""
    rejected: frozenset[str]
    """Ids of wrong hits that a user rejected; the others were passed over only."""


@dataclass
class _Votes:
    """What was seen of one text."""

    texts: Counter[str] = field(default_factory=Counter)
    askers: set[str] = field(default_factory=set)
    clicked: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    reformulated: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    passed: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    rejected: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))


def judged_texts(
    queries: Iterable[LoggedQuery], events: Iterable[LoggedEvent], *, min_askers: int = MIN_ASKERS
) -> list[JudgedText]:
    """Return the texts that enough users have asked, with their judged hits, by text; those without any are left out.

    Args:
        queries: rows of the log, each once. Those without a text count as no question.
        events: on their answers, each once.
        min_askers: least number of distinct users who asked a text, over all days.

    """
    by_query: dict[str, list[LoggedEvent]] = defaultdict(list)
    for event in events:
        by_query[event.query_id].append(event)
    votes: dict[str, _Votes] = defaultdict(_Votes)
    sessions: dict[str, list[LoggedQuery]] = defaultdict(list)
    for row in queries:
        if row.user_query and row.asker:
            text = votes[same_text(row.user_query)]
            text.texts[row.user_query] += 1
            text.askers.add(row.asker)
            sessions[row.client_id].append(row)
    for session in sessions.values():
        _count(sorted(session, key=lambda row: row.timestamp), by_query, votes)
    judged = [_judged(text) for _, text in sorted(votes.items()) if len(text.askers) >= min_askers]
    return [each for each in judged if each.right or each.wrong]


def _count(
    session: Sequence[LoggedQuery], by_query: Mapping[str, Sequence[LoggedEvent]], votes: Mapping[str, _Votes]
) -> None:
    """Count what one client did on one day, in the order of time."""
    failed: list[LoggedQuery] = []
    for row in session:
        events = by_query.get(row.query_id, ())
        text, asker = votes[same_text(row.user_query or "")], row.asker or ""
        clicks = {event.object_id: event for event in events if event.action_name == CLICK}
        for event in events:
            if event.action_name != CLICK:
                text.rejected[event.object_id].add(asker)
                clicks.pop(event.object_id, None)
        for hit_id in clicks:
            text.clicked[hit_id].add(asker)
        # Not the ordinals of the events: hits may have been forgotten since.
        hits = row.query_response_hit_ids
        last = max((position for position, hit_id in enumerate(hits) if hit_id in clicks), default=0)
        for hit_id in hits[:last]:
            if hit_id not in clicks:
                text.passed[hit_id].add(asker)
        if not clicks:
            failed.append(row)
            continue
        for before in failed:
            for hit_id, event in clicks.items():
                if event.timestamp - before.timestamp <= REFORMULATED_WITHIN:
                    votes[same_text(before.user_query or "")].reformulated[hit_id].add(before.asker or "")
        failed = []


def _judged(votes: _Votes) -> JudgedText:
    right: dict[str, int] = {}
    wrong: dict[str, int] = {}
    for hit_id in sorted({*votes.clicked, *votes.reformulated, *votes.passed, *votes.rejected}):
        rejecting = votes.rejected.get(hit_id, set())
        clicking = (votes.clicked.get(hit_id, set()) | votes.reformulated.get(hit_id, set())) - rejecting
        # One who came back and clicked has not passed it over.
        against = rejecting | (votes.passed.get(hit_id, set()) - clicking)
        if len(clicking) > len(against):
            right[hit_id] = len(clicking)
        elif len(against) > len(clicking):
            wrong[hit_id] = len(against)
    [(text, _)] = votes.texts.most_common(1)
    return JudgedText(
        query_id=query_id_of(text),
        text=text,
        askers=len(votes.askers),
        right=right,
        reformulated=frozenset(right.keys() - votes.clicked.keys()),
        wrong=wrong,
        rejected=frozenset(wrong.keys() & votes.rejected.keys()),
    )
