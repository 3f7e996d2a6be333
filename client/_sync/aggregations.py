# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""What an index says about itself, and about all of its datapoints or those that a filter allows: number and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from scannery.client.request import aggregations, calls
from scannery.client.request.filters import Where
from scannery.client.response.aggregations import AttributeStats, Facets
from scannery.client.response.index_info import IndexInfo

if TYPE_CHECKING:
    from scannery.client._sync.client import Client

__all__ = ["Aggregations"]


class Aggregations:
    """The part of a handle on an index that describes and counts."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def stats(self, *, timeout_s: float | None = None) -> IndexInfo:
        """Return what the index is: version, rows, dimensions, attributes, encoder, recall, segments, spec."""
        return self._client._run(calls.get_index(self.name, timeout_s=timeout_s))

    def count(self, where: Where | None = None, *, timeout_s: float | None = None) -> int:
        """Return the number of datapoints that a filter allows; without one, of all of them."""
        return self._client._run(
            aggregations.count(self.name, where, min_sequence=self._seen(), timeout_s=timeout_s)
        )

    def facets(
        self,
        attribute: str,
        where: Where | None = None,
        *,
        limit: int = 100,
        timeout_s: float | None = None,
    ) -> Facets:
        """Return the values of an attribute with their numbers of datapoints, the most frequent first.

        Args:
            attribute: its name, or `document_id`.
            where: which datapoints are counted; default: all.
            limit: most values to return, 1 to 10,000.
            timeout_s: of the call.

        """
        return self._client._run(
            aggregations.facets(
                self.name, attribute, where, limit, min_sequence=self._seen(), timeout_s=timeout_s
            )
        )

    def attribute_stats(
        self,
        attribute: str,
        where: Where | None = None,
        *,
        quantiles: Sequence[float] = (0.5,),
        timeout_s: float | None = None,
    ) -> AttributeStats:
        """Return the number of distinct values of an attribute, the least, the greatest, and quantiles.

        Args:
            attribute: its name, or `document_id`.
            where: of which datapoints; default: of all.
            quantiles: shares, each 0 to 1, at most 100; default: the median.
            timeout_s: of the call.

        """
        return self._client._run(
            aggregations.attribute_stats(
                self.name, attribute, where, quantiles, min_sequence=self._seen(), timeout_s=timeout_s
            )
        )

    def _seen(self) -> int:
        """Return the sequence of the last write of this client, which its reads wait for."""
        return self._client._sequences.get(self.name, 0)
