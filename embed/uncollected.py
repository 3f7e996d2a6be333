"""Imports of large libraries without garbage collection."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

__all__ = ["uncollected"]


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage within the context, unless the caller collects none anyway.

    Importing torch or Beam makes hundreds of thousands of objects, hardly any of them garbage; looking for it again and
    again takes up to a quarter of the time.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
