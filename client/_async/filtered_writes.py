"""Deletions and changes by filter, batch by batch: each is all or nothing, and is tried again without harm."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from scannery.client.concurrency import async_sleep
from scannery.client.errors import ResourceExhaustedError, ScanneryError
from scannery.client.request.calls import Call
from scannery.client.request.filtered_writes import AsyncSend, BatchCall, FilteredBatch
from scannery.client.response.outcomes import Progress, progress_reporter

__all__ = ["write_batches_where"]

MAX_WAIT_S = 120.0
"""Waited for a batch while the index refuses it: a seal of the most rows that fit in memory takes less."""


async def write_batches_where(
    send: AsyncSend,
    call: BatchCall,
    what: str,
    progress: Progress,
) -> FilteredBatch:
    """Write batches until none is left, and return their sum.

    Args:
        send: sends a call.
        call: makes the call of each batch.
        what: is done, for the progress bar: `deleting` or `changing`.
        progress: told how many datapoints are done.

    Raises:
        ScanneryError: a batch failed; the message says how many datapoints are done and how many are left.

    """
    batch = await _sent(send, call(None, uuid.uuid4().hex))
    rows = batch.rows
    with progress_reporter(progress, what, batch.rows + batch.remaining) as report:
        report(batch.rows)
        while batch.remaining and batch.rows:
            try:
                following = call(batch.until_sequence, uuid.uuid4().hex)
                if batch.index:  # an alias may be moved between batches
                    following.request.index = batch.index
                batch = await _sent(send, following)
            except ScanneryError as error:
                raise _part_way(error, rows, batch.remaining) from error
            rows += batch.rows
            report(batch.rows)
    return replace(batch, rows=rows)


async def _sent(send: AsyncSend, call: Call[Any, Any, FilteredBatch]) -> FilteredBatch:
    """Send a call, and wait while the index is full of new rows, which are being sealed."""
    waited_s = 0.0
    while True:
        try:
            return await send(call)
        except ResourceExhaustedError as error:
            if not error.retry_after_s or waited_s >= MAX_WAIT_S:
                raise
            waited_s += error.retry_after_s
            await async_sleep(error.retry_after_s)


def _part_way(error: ScanneryError, rows: int, remaining: int) -> ScanneryError:
    """Return an error that says how far the batches before it came."""
    message = f"{error.message}; {rows:,} datapoints are done, and {remaining:,} are left"
    return type(error)(message, field=error.field, retry_after_s=error.retry_after_s)
