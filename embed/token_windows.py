"""Windows of texts on their way to an encoder: each is tokenised while the one before is computed.

Legend: N texts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Literal, TypeAlias, TypeVar

import numpy as np

from scannery.embed.devices.protocol import Device
from scannery.embed.errors import InvalidTextError
from scannery.embed.tokenization import TokenizedTexts, Tokens, text_problem

__all__ = ["Invalid", "one_ahead", "prepared", "refuse"]

T = TypeVar("T")
Invalid: TypeAlias = Literal["raise", "nan"]
"""Handling of a text that has no vector: raise an error for the call, or return a row of NaN for the text."""


def one_ahead(
    windows: Iterator[Sequence[str]], prepare: Callable[[Sequence[str]], T], *, alone: bool
) -> Iterator[tuple[Sequence[str], T]]:
    """Yield each window with `prepare(window)`, computed in a thread while the caller handles the previous window.

    Args:
        windows: read in this thread, at most one ahead.
        prepare: what the thread computes.
        alone: there is only one window, such as a query: starting a thread would take longer.

    """
    current = next(windows, None)
    if current is None:
        return
    if alone:
        yield current, prepare(current)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="scannery-tokenize") as background:
        ready: Future[T] = background.submit(prepare, current)
        while current is not None:
            following = next(windows, None)
            done = ready.result()
            if following is not None:
                ready = background.submit(prepare, following)
            yield current, done
            current = following


def prepared(
    tokens: Tokens, device: Device, texts: Sequence[str]
) -> tuple[dict[int, str], TokenizedTexts, float]:
    """Return problems by row, the tokens of each text (of "" for a row with a problem), and the seconds it took."""
    started = time.perf_counter()
    problems = _problems(texts)
    batch = tokens.prepare(
        ["" if row in problems else text for row, text in enumerate(texts)] if problems else texts
    )
    items, lengths_N, _ = batch
    longest = device.longest_tokens
    too_long = [] if longest is None else np.flatnonzero(lengths_N > longest).tolist()
    if too_long:
        [empty], [length], _ = tokens.prepare([""])
        for row in too_long:
            problems[row] = (
                f"has {lengths_N[row]} tokens; {device.name} takes at most {longest} (max_tokens cuts texts off)"
            )
            items[row], lengths_N[row] = empty, length
    return problems, batch, time.perf_counter() - started


def _problems(texts: Sequence[str]) -> dict[int, str]:
    """Return why texts cannot be tokenised, by row. Plain ASCII, which most are, costs no call for each text."""
    rows: Sequence[int] = range(len(texts))
    if set(map(type, texts)) <= {str}:
        rows = [row for row, plain in enumerate(map(str.isascii, texts)) if not plain]
    return {row: problem for row in rows if (problem := text_problem(texts[row]))}


def refuse(problems: dict[int, str], at: int, invalid: Invalid) -> None:
    """Raise for the first text with a problem, of a window whose first text has the position `at` in the call."""
    if problems and invalid == "raise":
        row = min(problems)
        raise InvalidTextError(problems[row], index=at + row)
