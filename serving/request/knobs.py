"""Settings of ScaNN that a request may have in place of the tuned ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

from scannery.indexer import SearchSettings
from scannery.indexer.tuning.search_settings import TUNED_K
from scannery.runtime.errors import InvalidRequestError
from scannery.serving import limits
from scannery.serving.request.query import check_within
from scannery.v1 import search_pb2 as pb

__all__ = ["Knobs", "parse_knobs"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knobs:
    """ScaNN settings given by the caller; None: the tuned value."""

    leaves: int | None = None
    """Leaves to search."""
    rescore: int | None = None
    """Candidates to rescore with exact distances, for `k + offset` hits."""

    @property
    def given(self) -> bool:
        """Whether any of them is set."""
        return self != _TUNED

    def over(self, tuned: SearchSettings | None, wanted: int) -> SearchSettings | None:
        """Return the tuned settings with these in their place; None (an exact search) stays None.

        Args:
            tuned: settings of the segment.
            wanted: hits of the query, `k + offset`. `rescore` applies to this number of hits; a search for more hits
                rescores proportionally more candidates.

        """
        if tuned is None or not self.given:
            return tuned
        known = tuned.at(wanted)
        rescore = math.ceil((self.rescore or known.rescore) * TUNED_K / max(TUNED_K, wanted))
        return SearchSettings(leaves=self.leaves or known.leaves, rescore=rescore)


_TUNED = Knobs()


def parse_knobs(message: pb.SearchOptions, wanted: int) -> Knobs:
    """Return the settings of a search for `wanted` hits; InvalidRequestError names the field that is wrong."""
    if not message.HasField("knobs"):
        return _TUNED
    if message.HasField("target_recall"):
        raise InvalidRequestError.at("knobs", "cannot be set together with `target_recall`")
    given, leaves, rescore = message.knobs, None, None
    if given.HasField("leaves"):
        leaves = check_within("knobs.leaves", given.leaves, 1, limits.MAX_LEAVES)
    if given.HasField("rescore"):
        rescore = check_within("knobs.rescore", given.rescore, 1, limits.MAX_RESCORE)
        if rescore < wanted:
            raise InvalidRequestError.at(
                "knobs.rescore", f"must be at least k + offset ({wanted}), got {rescore}"
            )
    return Knobs(leaves=leaves, rescore=rescore)
