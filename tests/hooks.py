"""Points at which a test stops a build, and lets something happen there before the build goes on."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from scannery.indexer import Store

__all__ = ["before_call", "make_old"]


def before_call(
    monkeypatch: pytest.MonkeyPatch, method: str, pattern: str, first: Callable[[], object], *, times: int = 1
) -> None:
    """Call `first` right before a method of any store is called with a key that the pattern matches; `times` times."""
    original, left = getattr(Store, method), list(range(times))

    def hooked(self: Store, key: str = "", *arguments: Any) -> Any:
        if left and re.match(pattern, key):
            left.pop()
            first()
        return original(self, key, *arguments)

    monkeypatch.setattr(Store, method, hooked)


def make_old(store: Store, *keys: str, age: timedelta = timedelta(days=3)) -> None:
    """Set back the time of files of a folder store; without keys, of all that there are."""
    assert store.local_root is not None
    for key in keys or [item.key for item in store.list()]:
        path = store.local_root / key
        then_s = path.stat().st_mtime - age.total_seconds()
        os.utime(path, (then_s, then_s))
