"""The ranking of a request: an expression, or the name of one in the spec."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from scannery.indexer import IndexSpec
from scannery.indexer.ranking.expression import Program
from scannery.indexer.ranking.parsing import RankingSyntaxError, program_of
from scannery.runtime.errors import InvalidRequestError
from scannery.v1 import search_pb2 as pb

__all__ = ["RankingOption", "parse_ranking"]


@dataclass(frozen=True, slots=True)
class RankingOption:
    """What hits are ordered by instead of their score."""

    expression: str
    """Text of the expression."""
    program: Program


def parse_ranking(message: pb.SearchOptions, spec: IndexSpec) -> RankingOption | None:
    """Return the ranking of a request; None: by score.

    Raises:
        InvalidRequestError: the field `ranking` is neither the name of a ranking of the index nor an expression.

    """
    if not message.ranking:
        return None
    text = spec.search.ranking.get(message.ranking, message.ranking)
    try:
        return _option(text, tuple(spec.attributes.items()))
    except RankingSyntaxError as error:
        names = ", ".join(spec.search.ranking)
        hint = f"; the index has the rankings {names}" if names and message.ranking.isidentifier() else ""
        raise InvalidRequestError.at("ranking", f"{error}{hint}") from None


@lru_cache(maxsize=256)
def _option(text: str, attributes: tuple[tuple[str, str], ...]) -> RankingOption:
    return RankingOption(text, program_of(text, dict(attributes)))
