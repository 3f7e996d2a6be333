"""Options of the log of queries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from scannery.runtime.errors import ConfigError
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

    shadow: tuple[str, ...] = _option(
        (),
        "Ask each logged query of an index also of another one, when cores are idle: `scannery log shadow` says how "
        "their answers differ. May be given several times, for several indexes.",
        metavar="INDEX=OTHER",
    )

    interleave: float = _option(
        0.0,
        "Answer this share of the texts asked of an index with a shadow with hits of both, drawn in turns, so that "
        "clicks tell which one people prefer.",
        "--shadow-interleave",
        maximum=1,
    )

    def __post_init__(self) -> None:
        check_ranges(self)
        if (self.shadow or self.interleave) and not self.is_on:
            raise ConfigError("shadow: needs the log of queries (--traffic-share)", field="shadow")
        if self.interleave and not self.shadow:
            raise ConfigError("interleave: needs a shadow (--shadow)", field="interleave")
        if self.shadow:  # options are read without the engine
            from scannery.indexer.spec.model import INDEX_NAME
        for pair in self.shadow:
            index, _, shadow = pair.partition("=")
            names = INDEX_NAME.fullmatch(index) and INDEX_NAME.fullmatch(shadow)
            if not names or index == shadow or (index in self.shadows and self.shadows[index] != shadow):
                raise ConfigError(
                    f"shadow: must be INDEX=OTHER, one for an index, got {pair!r:.200}", field="shadow"
                )

    @property
    def shadows(self) -> dict[str, str]:
        """The shadow of each index that has one."""
        return dict(pair.split("=", 1) for pair in self.shadow if "=" in pair)

    @property
    def is_on(self) -> bool:
        """Whether answers have ids."""
        return self.share > 0
