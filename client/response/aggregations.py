"""What questions about all datapoints return: the values of an attribute, and how many datapoints have each."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from scannery.client.response.decoding import parse_value
from scannery.client.response.results import AttributeValue
from scannery.v1 import search_pb2

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["AttributeStats", "Facet", "Facets", "TypeStats", "parse_attribute_stats", "parse_facets"]


class Facet(NamedTuple):
    """A value of an attribute."""

    value: AttributeValue
    count: int  # type: ignore[assignment]  # hides `tuple.count`
    """Datapoints that have it."""


class Facets(list[Facet]):
    """The values of an attribute, the most frequent first; equally frequent ones by value."""

    distinct: int = 0
    """Distinct values in all; a limit leaves the rarest ones out of the list."""
    missing: int = 0
    """Datapoints, of those that the filter allows, without the attribute."""
    version: int = 0
    """Version of the index."""
    sequence: int = 0
    """Mutations up to this sequence were visible."""

    def to_arrow(self) -> pa.Table:
        """Return the columns `value` and `count`; values of several types are written as JSON. Needs `pyarrow`."""
        from scannery.client.response.arrow import facets_table

        return facets_table(self)

    def to_pandas(self) -> pd.DataFrame:
        """Return a data frame with the columns of `to_arrow`.

        Raises:
            ModuleNotFoundError: pandas is not installed: it is the extra `pandas`.

        """
        from scannery.client.response.arrow import frame

        return frame(self.to_arrow())

    def _repr_html_(self) -> str:
        from scannery.client.response.notebook import facets_view

        return facets_view(self, self.distinct, self.missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeStats:
    """The values of one type of an attribute."""

    type: str
    """`string`, `int`, `float`, `bool`, `timestamp`, `geo`; for dynamic attributes also `number` and `other`."""
    values: int
    """Values; a list has several."""
    distinct: int
    min: AttributeValue | None
    """None for types without an order."""
    max: AttributeValue | None
    quantiles: dict[float, AttributeValue]
    """Quantiles by share: the least value that this share of the values does not exceed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributeStats:
    """The values of an attribute."""

    rows: int
    """Datapoints that have it."""
    missing: int
    """Datapoints, of those that the filter allows, without it."""
    distinct: int
    """Distinct values."""
    types: tuple[TypeStats, ...]
    """Statistics by type; a declared attribute has one at most."""
    version: int
    """Version of the index."""
    sequence: int
    """Mutations up to this sequence were visible."""

    @property
    def min(self) -> AttributeValue | None:
        """The least value; None if there is none, or if there are several types."""
        return self.types[0].min if len(self.types) == 1 else None

    @property
    def max(self) -> AttributeValue | None:
        """The greatest value; None if there is none, or if there are several types."""
        return self.types[0].max if len(self.types) == 1 else None

    @property
    def quantiles(self) -> dict[float, AttributeValue]:
        """The quantiles; empty if there are several types, which `types` has one by one."""
        return self.types[0].quantiles if len(self.types) == 1 else {}


def parse_facets(response: search_pb2.FacetsResponse) -> Facets:
    """Return the facets of a response."""
    values = ((parse_value(facet.value), facet.count) for facet in response.facets)
    facets = Facets(Facet(value, count) for value, count in values if value is not None)
    facets.distinct, facets.missing = response.distinct, response.missing
    facets.version, facets.sequence = response.version, response.sequence
    return facets


def parse_attribute_stats(
    shares: Iterable[float], response: search_pb2.AttributeStatsResponse
) -> AttributeStats:
    """Return the description of an attribute; `shares` are those of the request's quantiles."""
    shares = list(shares)
    return AttributeStats(
        rows=response.rows,
        missing=response.missing,
        distinct=response.distinct,
        types=tuple(_type_stats(shares, stats) for stats in response.types),
        version=response.version,
        sequence=response.sequence,
    )


def _type_stats(shares: Iterable[float], message: search_pb2.TypeStats) -> TypeStats:
    values = map(parse_value, message.quantiles)
    return TypeStats(
        type=message.type,
        values=message.values,
        distinct=message.distinct,
        min=parse_value(message.min),
        max=parse_value(message.max),
        quantiles={share: value for share, value in zip(shares, values, strict=False) if value is not None},
    )
