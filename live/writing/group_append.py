"""Append a group of writes to the log, inside its transaction."""

from __future__ import annotations

from collections.abc import Sequence

from scannery.live.log.mutation_log import Answer, LogGapError, LogReplacedError, LogTransaction
from scannery.live.log.records import rows_fit
from scannery.live.memtable import LiveState
from scannery.live.writing.group_commit import Write
from scannery.live.writing.group_state import GroupState
from scannery.runtime.errors import OtherVersionError

__all__ = ["append_group"]

RETRY_S = 0.1


def append_group(
    own: LiveState,
    transaction: LogTransaction,
    group: Sequence[Write],
    answers: dict[int, Answer | Exception],
) -> LiveState:
    """Append the writes of a group, add the response to each to `answers`, and return the state after them.

    Args:
        own: the state that readers see.
        transaction: of the log.
        group: the writes.
        answers: to be filled, by the place in the group.

    Raises:
        LogGapError: the log does not reach the version, or goes on with rows for a later one.
        LogReplacedError: it has lost entries.
        CorruptError, FormatError: its entries cannot be read.

    """
    if transaction.position < own.manifest.log_sequence:
        raise LogGapError("the index has moved to a version that the log does not reach")
    if transaction.position < own.sequence:
        raise LogReplacedError(
            f"the log ends at sequence {transaction.position}, and had {own.sequence} before: it was replaced"
        )
    views = [write.view for write in group if write.view is not None]
    after = min([own.sequence, *(view.after(own) for view in views)])
    state = GroupState(own, transaction.read(after))
    transaction.expect([write.request for write in group if write.request.id])
    for number, write in enumerate(group):
        try:
            known = transaction.answer_of(write.request) if write.request.id else None
            if known is not None:
                answers[number] = known
                continue
            if write.columns_version not in (None, own.manifest.columns_version):
                raise OtherVersionError("the index has just got other columns", retry_after_s=RETRY_S)
            resolved = write.resolve(state)
            if resolved is None:
                answers[number] = Answer(transaction.position, 0)
                continue
            mutation, data, count = resolved
            # The index may have moved to another version with these columns since it was prepared.
            mutation = rows_fit(mutation, state.manifest, sequence=transaction.position + 1, new=True)
        except Exception as error:  # noqa: BLE001  fails this request only
            answers[number] = error
            continue
        sequence = transaction.append(data, request=write.request, count=count)
        state.add(sequence, mutation, len(data))
        answers[number] = Answer(sequence, count)
    return state.own
