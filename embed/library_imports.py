"""Imports of large model libraries: without garbage collection, and without their output."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import warnings
from collections.abc import Iterator
from typing import Any

__all__ = ["quiet", "uncollected"]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars, load reports and deprecation warnings of the model libraries within the context."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # no warning when a server forks later
        import transformers.utils.logging

        bars_of: Any = transformers.utils.logging  # partly untyped
        bars = bars_of.is_progress_bar_enabled()
        loggers = {name: logging.getLogger(name) for name in ("transformers", "sentence_transformers")}
        levels = {name: logger.level for name, logger in loggers.items()}
        bars_of.disable_progress_bar()
        for logger in loggers.values():
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            if bars:
                bars_of.enable_progress_bar()
            for name, logger in loggers.items():
                logger.setLevel(levels[name])


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
