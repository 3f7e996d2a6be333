"""Paths that are given once and used later: absolute from the start, since a process may go to another folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["current_folder", "make_absolute", "overlap", "placed_model"]


def current_folder() -> Path:
    """Return the folder that relative paths start from now."""
    try:
        return Path.cwd()
    except OSError:  # it is gone, and nothing can be found by a relative path
        return Path("/")


def make_absolute(config: Any, *fields: str) -> None:
    """Make some paths of a frozen dataclass absolute, while it is made; URIs and empty ones stay."""
    for field in fields:
        value = getattr(config, field)
        if value and "://" not in value:
            object.__setattr__(config, field, str(Path(value).expanduser().absolute()))


def placed_model(model: str, folder: Path) -> str:
    """Return a model as it is found from any folder: a local one by its absolute path, others by their name."""
    path = folder / Path(model).expanduser()
    return str(path) if model.startswith((".", "~")) or path.is_dir() else model


def overlap(path: str, other_path: str) -> bool:
    """Return whether one of two places is, or is in, the other: paths, with links followed, or URIs.

    An empty one is nowhere.
    """
    if not path or not other_path:
        return False
    first, second = _parts(path), _parts(other_path)
    shared = min(len(first), len(second))
    return first[:shared] == second[:shared]


def _parts(path: str) -> tuple[str, ...]:
    local = unquote(urlsplit(path).path) if path.startswith("file://") else path
    if "://" in local:
        return tuple(part for part in local.split("/") if part)
    return Path(local).expanduser().resolve().parts
