"""Errors for builds that ran to their end without committing a version."""

from __future__ import annotations

from scannery.pipelines.errors import NothingToIndexError, TooManyDeadLettersError
from scannery.pipelines.stages.publish import BuildRecord
from scannery.pipelines.state.job import Job

__all__ = ["check_record"]

MOST_EXAMPLES = 3
"""Reasons of which a message of a failed build gives the first record."""


def check_record(record: BuildRecord, job: Job) -> None:
    """Raise NothingToIndexError or TooManyDeadLettersError if the build committed no version for that reason."""
    dead = ", ".join(f"{count} × {reason}" for reason, count in record.counts.dead_letters.items())
    key = record.statistics["dead_letters_key"]
    first = [f"; first {text}" for text in record.statistics.get("dead_letter_examples", {}).values()]
    where = f"{''.join(first[:MOST_EXAMPLES])}; see {job.store_uri}/{key}" if key else ""
    if record.status == "empty":
        raise NothingToIndexError(f"no record could be indexed ({dead or 'the input is empty'}){where}")
    if record.status == "too_many_dead_letters":
        raise TooManyDeadLettersError(
            f"{sum(record.counts.dead_letters.values())} dead letters ({dead}), more than the {job.max_dead_letters:g} "
            f"allowed{where}",
            field="max_dead_letters",
        )
