"""A fault that is put into one of the processes on purpose, to see that the model notices it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from scannery.indexer import Manifest
from scannery.live import memtable
from scannery.live.log.records import Mutation, rows_fit
from scannery.live.writing import group_commit
from scannery.serving.catalog.published_versions import ON_ACCESS

__all__ = ["new_columns_dropped"]

LOOK_EVERY_S = 10.0


@contextmanager
def new_columns_dropped() -> Iterator[None]:
    """Have this process, that of embedded clients, take rows that were made for a later version than it has open.

    It drops the columns that it does not know, and a partial update of such a row writes it back without them. It looks
    for versions later than it should, so that there are such rows; servers are other processes, and do as they should.
    """

    def any_version(mutation: Mutation, manifest: Manifest, **options: Any) -> Mutation:
        known = min(mutation.columns_version, manifest.version)
        return rows_fit(replace(mutation, columns_version=known), manifest, **options)

    with pytest.MonkeyPatch.context() as patch:
        for module in (memtable, group_commit):
            patch.setattr(module, "rows_fit", any_version)
        patch.setattr("scannery.serving.catalog.roles.ON_ACCESS", replace(ON_ACCESS, every_s=LOOK_EVERY_S))
        yield
