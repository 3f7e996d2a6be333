"""The passages around hits, as one text for each stretch of a document.

1. The budget is filled hit by hit, the best first: the passage of the hit, then those around it, the nearest first.
2. Passages that follow each other in a document are one stretch, which is the context of its best hit. The other hits
   in it name that hit: no passage is in an answer twice.
3. The passages of a stretch are joined by their offsets, without what two of them repeat.

Shapes: P passages.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache

import numpy as np

from scannery.runtime.errors import EncoderUnavailableError, InvalidRequestError
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.engine.hydrator import MAX_ANSWER_BYTES
from scannery.serving.engine.passages import OrderedPassages
from scannery.serving.engine.row_source import RowSource
from scannery.serving.engine.top_k import Ranking, concatenated
from scannery.serving.request.context import Context
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.v1.search_pb2 import HitContext

__all__ = ["contexts"]

TOKENS_PER_WORD = 1.3
"""Tokens of a word of English, about, in the vocabularies of today's models."""
TEXTS_AT_ONCE = 256
"""Texts that are read between two checks of the deadline and of the size of the answer: each may have 1 MiB."""
_WORD = re.compile(r"[\u0e00-\u0eff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]|[^\s\u0e00-\u0eff\u3040-\u9fff]+")
"""A character of a script that is written without spaces, or a word of others."""
_NEW_PASSAGE = "\n\n"
"""What joins two passages that leave out characters between them, or of which that is not known."""


def contexts(
    rows: RowSource,
    rankings: Sequence[Ranking],
    context: Context,
    snapshot: Snapshot,
    deadline: Deadline,
) -> list[list[bytes]]:
    """Return for each query a serialised HitContext for each hit.

    Args:
        rows: where the hits are.
        rankings: the hits of each query, best first.
        context: what is returned around them.
        snapshot: what was searched; it has the encoders.
        deadline: of the request.

    Raises:
        InvalidRequestError: each datapoint is a document of its own, or the texts exceed MAX_ANSWER_BYTES.
        DeadlineError: the deadline passed.

    """
    hits = concatenated(rankings)
    passages = rows.passages(hits, rows.groups(hits, "document_id"))
    if len(hits) and passages.has_only_documents and snapshot.manifest.spec.source.chunk is None:
        raise InvalidRequestError.at(
            "context",
            f"index {snapshot.manifest.index!r} has no documents of several passages: texts are not cut "
            "(`source.chunk`), and no datapoint has a `document_id`",
        )
    deadline.check()
    ordered = OrderedPassages(passages)
    positions = ordered.positions_of(hits)
    needed = sorted(
        {each for at in positions if at is not None for each in ordered.around(at, context.passages)}
    )
    texts = _texts(rows, ordered, needed, deadline)
    joiner = _Joiner(ordered, texts, token_counter(snapshot, context, deadline))
    answers, first = [], 0
    for ranking in rankings:
        end = first + len(ranking)
        answers.append(joiner.contexts(positions[first:end], context))
        first = end
    return answers


def _texts(
    rows: RowSource, ordered: OrderedPassages, needed: Sequence[int], deadline: Deadline
) -> dict[int, str]:
    """Return the texts of some passages by their positions; InvalidRequestError: they exceed MAX_ANSWER_BYTES."""
    texts: dict[int, str] = {}
    size = 0
    for start in range(0, len(needed), TEXTS_AT_ONCE):
        deadline.check()
        part = needed[start : start + TEXTS_AT_ONCE]
        read = rows.texts(ordered.rows.at(np.array(part, np.int64)), limits.MAX_TEXT_BYTES)
        size += sum(len(text.encode()) for text in read)
        if size > MAX_ANSWER_BYTES:
            raise InvalidRequestError.at(
                "context", f"the answer would have more than {MAX_ANSWER_BYTES >> 20} MiB"
            )
        texts.update(zip(part, read, strict=True))
    return texts


def token_counter(snapshot: Snapshot, context: Context, deadline: Deadline) -> Callable[[str], int]:
    """Return what counts the tokens of a text: the encoder of the index, or else TOKENS_PER_WORD.

    It raises DeadlineError once the deadline has passed: the texts of an answer take seconds.
    """
    choice = context.vectors
    encoder = None
    if choice is not None:
        with suppress(EncoderUnavailableError):  # a search by words needs none
            encoder = snapshot.encoder(choice.name)

    @lru_cache(maxsize=limits.MAX_CONTEXT_PASSAGES)
    def count(text: str) -> int:
        deadline.check()
        tokens = 0 if encoder is None or not text else encoder.count_tokens([text])
        return tokens or math.ceil(TOKENS_PER_WORD * len(_WORD.findall(text)))

    return count


class _Joiner:
    """Makes the contexts of the hits of a query."""

    def __init__(
        self, passages: OrderedPassages, texts: dict[int, str], count_tokens: Callable[[str], int]
    ) -> None:
        self._passages, self._texts, self._count_tokens = passages, texts, count_tokens

    def contexts(self, hits: Sequence[int | None], context: Context) -> list[bytes]:
        """Return the context of each hit, by its position among the passages; empty where that is None."""
        chosen, cut = self._chosen(hits, context)
        messages: list[HitContext] = []
        owners: dict[int, int] = {}
        """The hit that has the context with a passage, by the position of the passage."""
        for number, position in enumerate(hits):
            if position not in chosen or position is None:
                messages.append(HitContext(cut=position is not None))
            elif (owner := owners.get(position)) is not None:
                messages[owner].cut |= cut[number]
                best = hits[owner]
                assert best is not None  # it has a context
                messages.append(HitContext(within=self._passages.ids[best]))
            else:
                stretch = self._stretch(position, chosen)
                owners |= dict.fromkeys(stretch, number)
                messages.append(self._message(stretch, cut=cut[number]))
        return [
            b"" if position is None else message.SerializeToString()
            for position, message in zip(hits, messages, strict=True)
        ]

    def _chosen(self, hits: Sequence[int | None], context: Context) -> tuple[set[int], list[bool]]:
        """Return the passages that the budget has room for, and whether passages of a hit were left out."""
        remaining = math.inf if context.token_budget is None else context.token_budget
        chosen: set[int] = set()
        cut = [False] * len(hits)
        for number, hit in enumerate(hits):
            if hit is None:
                continue
            window = self._passages.around(hit, context.passages)
            closed: set[int] = set()
            """Sides of the hit, -1 and 1, on which a passage was left out: those beyond it would leave a gap."""
            for position in sorted(window, key=lambda position: (abs(position - hit), position < hit)):
                side = int(np.sign(position - hit))
                if position in chosen:
                    continue
                if side in closed:
                    continue
                tokens = self._count_tokens(self._part(position, chosen)) if remaining < math.inf else 0
                if tokens > remaining:
                    cut[number] = True
                    if position == hit:
                        break
                    closed.add(side)
                else:
                    chosen.add(position)
                    remaining -= tokens
        return chosen, cut

    def _part(self, position: int, chosen: set[int]) -> str:
        """Return what a passage adds to those beside it."""
        passages, text = self._passages, self._texts[position]
        start, end = passages.starts[position], passages.ends[position]
        if start is None or end is None:
            return text
        document = passages.document_of(position)
        first, last = start, end
        if position - 1 in chosen and position - 1 in document:
            first = max(start, passages.ends[position - 1])
        if position + 1 in chosen and position + 1 in document:
            last = min(end, passages.starts[position + 1])
        return text[first - start : max(last, first) - start]

    def _stretch(self, position: int, chosen: set[int]) -> range:
        """Return the passages of a document around one that are chosen without a gap."""
        document = self._passages.document_of(position)
        first = last = position
        while first - 1 in document and first - 1 in chosen:
            first -= 1
        while last + 1 in document and last + 1 in chosen:
            last += 1
        return range(first, last + 1)

    def _message(self, stretch: range, *, cut: bool) -> HitContext:
        passages = self._passages
        text, end = self._joined(stretch)
        times_start_s = [time for at in stretch if (time := passages.times_start_s[at]) is not None]
        times_end_s = [time for at in stretch if (time := passages.times_end_s[at]) is not None]
        return HitContext(
            text=text,
            start=passages.starts[stretch[0]],
            end=end,
            time_start_s=min(times_start_s, default=None),
            time_end_s=max(times_end_s, default=None),
            ids=[passages.ids[at] for at in stretch],
            tokens=self._count_tokens(text),
            cut=cut,
        )

    def _joined(self, stretch: range) -> tuple[str, int | None]:
        """Return the text of passages that follow each other, and the offset of its end if they have offsets."""
        passages, first = self._passages, stretch[0]
        if passages.starts[first] is None:
            return _NEW_PASSAGE.join(self._texts[at] for at in stretch), None
        parts, end = [self._texts[first]], passages.ends[first]
        for at in stretch[1:]:
            start = passages.starts[at]
            # Passages begin and end without white space, so what lies between them is that.
            parts.append(" " if start == end + 1 else _NEW_PASSAGE if start > end else "")
            parts.append(self._texts[at][max(0, end - start) :])
            end = max(end, passages.ends[at])
        return "".join(parts), end
