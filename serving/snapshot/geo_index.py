"""An index of places: sorted by latitude, so that an area is looked for between two parallels only.

Distances are those on a sphere of the mean radius of the Earth (haversine formula, R. W. Sinnott, "Virtues of the
Haversine", 1984), exact to 1 µm but for places near the antipode of the centre, where rounding costs up to 0.1 m. The
true figure of the Earth makes distances differ by up to 0.6 %.

Shapes: G places, A places between two parallels, N rows of a segment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from scannery.indexer.datapoints.places import GEO_TYPE
from scannery.serving.request.filter import Area, Box, Circle
from scannery.serving.snapshot.attribute_index import Field, ValueRuns
from scannery.serving.snapshot.row_sets import OtherRows, RowSet

__all__ = ["EARTH_RADIUS_M", "GeoIndex", "distances_m"]

EARTH_RADIUS_M = 6_371_008.8
"""Mean radius of the ellipsoid WGS 84."""
_SLACK = 1e-6
"""Degrees added to the band of a circle, far more than rounding costs: the distance decides."""

_UNSURE = 1e-6
"""More than what rounding to float32 changes of a chord, in radii of the Earth: 6 m."""


class GeoIndex(Field):
    """The places of a column. Immutable; safe to use from several threads."""

    def __init__(self, column: pa.ChunkedArray) -> None:
        array = column.combine_chunks()
        array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
        super().__init__(len(array))
        valid_N = np.asarray(array.is_valid().to_numpy(zero_copy_only=False), bool)
        rows_G = np.flatnonzero(valid_N)
        self._missing = np.flatnonzero(~valid_N)
        lat_G, lon_G = (array.field(name).to_numpy(zero_copy_only=False)[rows_G] for name in ("lat", "lon"))
        order_G = np.argsort(lat_G, kind="stable")
        self._lat_G, self._lon_G = lat_G[order_G], lon_G[order_G]
        self._rows_G = rows_G[order_G].astype(np.int32)
        # Half the memory of float64; the distance decides where it is not precise enough.
        self._xyz_3G = _on_unit_sphere(self._lat_G, self._lon_G).astype(np.float32)

    @property
    def size_bytes(self) -> int:
        """Memory that this takes."""
        arrays = (self._lat_G, self._lon_G, self._xyz_3G, self._rows_G, self._missing)
        return sum(int(array.nbytes) for array in arrays)

    def within(self, area: Area) -> RowSet:
        """As `Field.within`."""
        in_area = (
            self._in_box(area) if isinstance(area, Box) else self._in_circle(area, *self._candidates(area))
        )
        return self._listed(in_area)

    def exists(self) -> RowSet:
        """As `Field.exists`."""
        return OtherRows(self._listed(self._missing))

    def runs(self) -> Sequence[ValueRuns]:
        """Return the distinct places with their rows, by latitude and longitude."""
        if not len(self._rows_G):
            return ()
        order_G = np.lexsort((self._lon_G, self._lat_G))
        lat_G, lon_G = self._lat_G[order_G], self._lon_G[order_G]
        is_new_G = np.append(True, (np.diff(lat_G) != 0) | (np.diff(lon_G) != 0))
        starts = np.append(np.flatnonzero(is_new_G), len(order_G))
        values = pa.StructArray.from_arrays([lat_G[is_new_G], lon_G[is_new_G]], fields=list(GEO_TYPE))
        return (ValueRuns("geo", values, starts, self._rows_G[order_G]),)

    def _candidates(self, area: Circle) -> tuple[np.ndarray, np.ndarray]:
        """Return the places between the parallels and meridians around a circle, and how far east or west they are."""
        reach = math.degrees(area.radius_m / EARTH_RADIUS_M) + _SLACK
        band = self._band(area.latitude - reach, area.latitude + reach)
        apart_A = np.abs(self._lon_G[band] - area.longitude)
        np.minimum(apart_A, 360 - apart_A, out=apart_A)
        near = np.flatnonzero(apart_A <= _widest(area.latitude, reach))
        return near + band.start, apart_A[near]

    def _in_circle(self, area: Circle, positions: np.ndarray, apart: np.ndarray) -> np.ndarray:
        """Return the rows of those of some places that are in a circle."""
        # By the straight line through the Earth, which takes no sine for each place, and grows with the distance.
        chords = self._chords(area, positions)
        max_chord = 2 * math.sin(min(area.radius_m / EARTH_RADIUS_M, math.pi) / 2)
        inside = chords <= max_chord
        unsure = np.flatnonzero(np.abs(chords - max_chord) <= _UNSURE)
        metres = distances_m(area.latitude, self._lat_G[positions[unsure]], apart[unsure])
        inside[unsure] = metres <= area.radius_m
        rows: np.ndarray = self._rows_G[positions[inside]]
        return rows

    def _chords(self, area: Circle, positions: np.ndarray) -> np.ndarray:
        """Return how far places are from the centre in a straight line, in radii of the Earth, to within _UNSURE."""
        centre_3 = _on_unit_sphere(np.array([area.latitude]), np.array([area.longitude]))[:, 0]
        squares = np.zeros(len(positions), np.float32)
        for axis_G, at in zip(self._xyz_3G, centre_3.astype(np.float32), strict=True):
            squares += np.square(axis_G[positions] - at)
        return np.sqrt(squares)

    def _in_box(self, area: Box) -> np.ndarray:
        band = self._band(area.south, area.north)
        lat_A, lon_A = self._lat_G[band], self._lon_G[band]
        if area.west <= area.east:
            inside_A = (lon_A >= area.west) & (lon_A <= area.east)
        else:
            inside_A = (lon_A >= area.west) | (lon_A <= area.east)
        # 180 and -180 are one meridian, and all meridians meet at a pole.
        if -180 in (area.west, area.east) or 180 in (area.west, area.east):
            inside_A |= np.abs(lon_A) == 180
        inside_A |= np.abs(lat_A) == 90
        rows: np.ndarray = self._rows_G[band][inside_A]
        return rows

    def _band(self, south: float, north: float) -> slice:
        """Return where the places between two parallels are, both included."""
        start = np.searchsorted(self._lat_G, south)
        stop = np.searchsorted(self._lat_G, north, "right")
        return slice(int(start), int(stop))


def distances_m(latitude: float, lat_A: np.ndarray, apart_A: np.ndarray) -> np.ndarray:
    """Return distances from a place, float64 metres.

    Args:
        latitude: of the place, in degrees.
        lat_A: latitudes of the others.
        apart_A: differences of their longitudes from that of the place, 0 to 180 degrees.

    """
    # sin(90° - x) is exactly 0 at a pole, where cos(x) is not.
    colatitude, colatitude_A = math.radians(90 - abs(latitude)), np.radians(90 - np.abs(lat_A))
    half_A = np.sin(np.radians(lat_A - latitude) / 2) ** 2
    half_A += math.sin(colatitude) * np.sin(colatitude_A) * np.sin(np.radians(apart_A) / 2) ** 2
    metres: np.ndarray = 2 * EARTH_RADIUS_M * np.arcsin(np.sqrt(np.minimum(half_A, 1)))
    return metres


def _on_unit_sphere(lat_G: np.ndarray, lon_G: np.ndarray) -> np.ndarray:
    lat_G, lon_G = np.radians(lat_G), np.radians(lon_G)
    return np.stack([np.cos(lat_G) * np.cos(lon_G), np.cos(lat_G) * np.sin(lon_G), np.sin(lat_G)])


def _widest(latitude: float, reach: float) -> float:
    """Return how far the longitudes of a circle are from its centre at most, in degrees; all angles in degrees."""
    if abs(latitude) + reach >= 90 - _SLACK:  # a pole is in it, and with it all meridians
        return 180.0
    share = math.sin(math.radians(reach)) / math.cos(math.radians(latitude))
    return math.degrees(math.asin(min(share, 1))) + _SLACK
