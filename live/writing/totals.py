"""The number of rows that a writer may have in an index.

A write that is far from it is let through by bounds alone. Near it, its rows are applied to the state in which it is
resolved, inside the transaction of the log: so writers of any process cannot exceed it together, and rows that are
replaced, deleted or expired do not count.
"""

from __future__ import annotations

from dataclasses import dataclass

from scannery.live.log.records import Mutation, rows_fit
from scannery.live.memtable import LiveState, apply
from scannery.live.writing.write_views import (
    GroupState,
    RowFilter,
    StateMovedError,
    WriteView,
    count_rows,
)
from scannery.runtime.errors import FullError

__all__ = ["RowTotal"]


@dataclass(frozen=True, slots=True, eq=False)
class RowTotal:
    """The rows of a writer, as they were counted before its write."""

    max_rows: int
    """Rows that there may be after the write."""
    seen: RowFilter | None
    """The rows that count; None: all of the index."""
    rows: int
    """Rows that there were in a state."""
    local: LiveState
    """That state, as this process has it."""

    def check(self, mutation: Mutation, view: WriteView, group: GroupState) -> None:
        """Check a write that is next in a group.

        Args:
            mutation: what it would write.
            view: what it reads, all rows of this process or those that it names.
            group: the index before it.

        Raises:
            FullError: it would add rows, and there would be more than `max_rows`.
            StateMovedError: it is not known how many there are now.

        """
        if self._has_room(mutation, group):
            return
        # Of the rows that others have, those that the write does not name.
        elsewhere = self.rows - count_rows(view.state.opened(), self.seen)
        state = view.before(group)
        fitting = rows_fit(mutation, state.manifest, sequence=group.sequence + 1, new=True)
        after = apply(state, [(group.sequence + 1, fitting)])
        before, rows = (elsewhere + count_rows(each.opened(), self.seen) for each in (state, after))
        if rows <= max(self.max_rows, before):
            return
        if elsewhere and group.sequence > view.state.sequence:
            raise StateMovedError  # what was written since may have replaced some of them
        raise FullError(
            f"the limit max_rows of this caller allows {self.max_rows} rows of index {state.manifest.index!r}: it has "
            f"{before}, and would have {rows} after this write, of which nothing was written; delete some before"
        )

    def _has_room(self, mutation: Mutation, group: GroupState) -> bool:
        """Return whether there is room even if no write since the rows were counted has replaced any."""
        local, manifest = self.local.manifest, group.manifest
        if (local.index_id, local.version) != (manifest.index_id, manifest.version):
            return False
        since = group.written_rows - self.local.written_rows
        bound: int = self.rows + since + mutation.rows.num_rows
        return bound <= self.max_rows
