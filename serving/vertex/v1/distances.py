"""Distance measures: what the service reports, from the scores of this server, of which a higher one is better.

| measure of the service | distance here | what is reported |
| --- | --- | --- |
| DOT_PRODUCT_DISTANCE | dot | the dot product, falling: a higher one is nearer, as the service answers |
| DOT_PRODUCT_DISTANCE, UNIT_L2_NORM | cosine | the cosine, falling |
| COSINE_DISTANCE | cosine | 1 - cosine, rising |
| SQUARED_L2_DISTANCE | squared_l2 | the squared distance, rising |
| SQUARED_L2_DISTANCE, UNIT_L2_NORM | cosine | 2 - 2 · cosine, rising |

A query of zeros has the cosine 0 with everything: it finds what its filter allows, by id.
"""

from __future__ import annotations

from dataclasses import dataclass

from scannery.indexer.spec.spec import Distance
from scannery.runtime.errors import InvalidRequestError, UnsupportedError

__all__ = ["DEFAULT_MEASURE", "Measure", "measure_of"]

DEFAULT_MEASURE = "DOT_PRODUCT_DISTANCE"
_NORMS = ("NONE", "UNIT_L2_NORM")
_MEASURES = ("DOT_PRODUCT_DISTANCE", "COSINE_DISTANCE", "SQUARED_L2_DISTANCE", "L1_DISTANCE")
_OWN: dict[Distance, str] = {
    "dot": "DOT_PRODUCT_DISTANCE",
    "cosine": "COSINE_DISTANCE",
    "squared_l2": "SQUARED_L2_DISTANCE",
}


@dataclass(frozen=True, slots=True)
class Measure:
    """A distance measure, with the normalization of vectors."""

    name: str = DEFAULT_MEASURE
    norm: str = "NONE"

    def __post_init__(self) -> None:
        for field, value, known in (
            ("distanceMeasureType", self.name, _MEASURES),
            ("featureNormType", self.norm, _NORMS),
        ):
            if value not in known:
                raise InvalidRequestError.at(
                    f"index.metadata.config.{field}", f"must be one of {', '.join(known)}, got {value!r:.80}"
                )
        if self.name == "L1_DISTANCE":
            raise UnsupportedError(
                "index.metadata.config.distanceMeasureType: L1_DISTANCE is not supported; use SQUARED_L2_DISTANCE",
                field="index.metadata.config.distanceMeasureType",
            )

    @property
    def distance(self) -> Distance:
        """The distance of the index here."""
        if self.name == "COSINE_DISTANCE" or self.norm == "UNIT_L2_NORM":
            return "cosine"
        return "dot" if self.name == DEFAULT_MEASURE else "squared_l2"

    def reported(self, score: float) -> float:
        """Return the distance that the service reports for a score of this server."""
        if self.name == DEFAULT_MEASURE:
            return score
        if self.name == "COSINE_DISTANCE":
            return 1.0 - score
        return 2.0 - 2.0 * score if self.norm == "UNIT_L2_NORM" else -score


def measure_of(distance: Distance) -> Measure:
    """Return the measure of an index that was not made through the service's API."""
    return Measure(_OWN[distance])
