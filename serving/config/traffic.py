"""Options of the log of queries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from scannery.runtime.options import check_ranges, option

__all__ = ["TrafficConfig"]

_option = partial(option, panel="Log of queries")


@dataclass(frozen=True, kw_only=True)
class TrafficConfig:
    """What a server writes down of the queries that it answers. Raises ConfigError, which names the field."""

    share: float = _option(
        0.0,
        "Give each answer an id, take feedback on it, and log this share of the queries in the store; 0: none of it.",
        "--traffic-share",
        maximum=1,
    )

    text: bool = _option(
        False,
        "Log texts and filters of queries, too, with e-mail addresses and long numbers masked.",
        "--traffic-text",
    )

    vectors: bool = _option(
        False,
        "Log the vectors of queries, too; much of a text can be guessed from its vector.",
        "--traffic-vectors",
    )

    days: int = _option(
        30, "Remove the log of a day when it is this old.", "--traffic-days", metavar="DAYS", minimum=1
    )

    client_ids: bool = _option(
        True,
        "Let callers say for whom they ask (`client_id`). Not where they are the users themselves: one user could "
        "then pass as many.",
        "--traffic-client-ids",
    )

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def is_on(self) -> bool:
        """Whether answers have ids."""
        return self.share > 0
