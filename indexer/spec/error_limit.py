"""The limit of refused records: a number, or a share of all records."""

from __future__ import annotations

__all__ = ["check_limit", "error_limit", "exceeds_limit"]


def error_limit(value: str | float) -> float:
    """Return a limit of refused records as a number: from 1 (or 0) a count, below 1 a share of all records.

    Raises:
        ValueError: it is neither a count nor a share such as `1%` or 0.01.

    """
    text = str(value).strip()
    try:
        limit = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        limit = -1.0
    is_share = text.endswith("%")
    if not 0 <= limit < float("inf") or (limit > 1 and (is_share or not limit.is_integer())):
        raise ValueError(f"must be a number or a share such as 1%, got {value!r}")
    return float("inf") if is_share and limit == 1 else limit  # the number 1 is a count


def exceeds_limit(refused: int, records: int, limit: float) -> bool:
    """Return whether more of all `records` were refused than a limit, as `error_limit` returns it, allows."""
    return refused > (limit if limit >= 1 or limit == 0 else limit * records)


def check_limit(value: object) -> object:
    """Return a value of `source.max_errors` unchanged, after checking it; ValueError as `error_limit`."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float, type(None))):
        raise ValueError(f"must be a number or a share such as 1%, got {value!r}")
    if value is not None:
        error_limit(value)
    return value
