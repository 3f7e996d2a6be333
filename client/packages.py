"""Packages that only some calls need. The package `scannery` has them all, `scannery-client` does not bring them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

__all__ = ["needed_for", "with_extra"]


@contextmanager
def needed_for(purpose: str, requirement: str) -> Iterator[None]:
    """Say what to install if an import fails, since a package is missing.

    Args:
        purpose: what needs the package, as the subject of a sentence.
        requirement: what brings the package, as of `pip install`.

    Raises:
        ModuleNotFoundError: a package is not installed.

    """
    try:
        yield
    except ModuleNotFoundError as error:
        message = f"{purpose} needs {error.name}, which is not installed: pip install '{requirement}'"
        raise ModuleNotFoundError(message, name=error.name) from error


def with_extra(extra: str) -> str:
    """Return the requirement that adds an extra to the package that is installed: the whole one, or the client's."""
    whole = find_spec("scannery.serving") is not None
    return f"{'scannery' if whole else 'scannery-client'}[{extra}]"
