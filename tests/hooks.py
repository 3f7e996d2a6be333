"""Points at which a test lets something happen before a build goes on, and states that it brings about."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from scannery.indexer import Store

__all__ = ["before_call", "make_old", "no_descriptors"]


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


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Leave this process without a free file descriptor, as a flood of connections does."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = [int(path.name) for path in Path("/proc/self/fd").iterdir()]
    taken: list[int] = []
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(used) + 1, limits[1]))
        with suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
