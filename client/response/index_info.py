"""Descriptions of indexes, as calls return them: immutable objects, without the messages of the wire."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

__all__ = [
    "Distance",
    "EncoderInfo",
    "IndexInfo",
    "Indexes",
    "Migration",
    "NamedVectorInfo",
    "RecallCurve",
    "RecallInfo",
    "RecallPoint",
    "SegmentInfo",
    "VersionInfo",
]

Distance: TypeAlias = Literal["cosine", "dot", "squared_l2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderInfo:
    """The model that encodes texts."""

    model: str
    fingerprint: str
    """Hash over everything that decides on its vectors; empty where that is not known."""
    query_model: str | None = None
    """The model that encodes queries of an index in its place; None where it encodes them, too."""
    query_fingerprint: str | None = None
    """Hash over everything that decides on vectors of that model."""
    dimensions: int | None = None
    """Components of a vector; None in the description of an index, which has them itself, and where the machine of the
    server has never loaded the model."""
    max_tokens: int | None = None
    """Tokens after which a text is cut off; None where the server that was asked has not loaded it."""
    device: str | None = None
    """What it runs on, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallInfo:
    """What was measured after the build."""

    k: int
    target: float
    measured: float
    reached: bool
    """False: in some segment no setting reaches the target, and it is searched exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentInfo:
    """One segment file."""

    key: str
    shard: int
    rows: int
    size_bytes: int
    kind: str
    """`exact` or `scann`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedVectorInfo:
    """The vectors of one name."""

    dimensions: int
    distance: Distance
    encoder: EncoderInfo | None
    """None: the vectors are given with the datapoints."""
    from_: str | None
    """Which text of a datapoint the encoder gets: `title`, `text` or an attribute."""
    rows: int
    """Datapoints in segments that have the vector, deleted ones included."""
    recall: RecallInfo | None
    """None where nothing was measured: segments that are searched exactly have recall 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexInfo:
    """What an index is, as it is being served."""

    name: str
    version: int
    created_at: dt.datetime
    rows: int
    dimensions: int
    distance: Distance
    attributes: dict[str, str]
    """Name → `string`, `string_list`, `int`, `float`, `bool`, `timestamp` or `geo`."""
    lexical: bool
    encoder: EncoderInfo | None
    shards: int
    size_bytes: int
    sequence: int
    """Mutations up to this one are visible."""
    memory_rows: int
    """Datapoints, among `rows`, that are in no segment yet."""
    recall: RecallInfo | None
    """None where nothing was measured: segments that are searched exactly have recall 1."""
    segments: tuple[SegmentInfo, ...]
    """Empty in a list of indexes."""
    spec: dict[str, Any]
    """Empty in a list of indexes."""
    problem: str = ""
    """What is wrong while the index answers: a later version that cannot be opened, say. Empty: nothing."""
    aliases: tuple[str, ...] = ()
    """Other names that stand for it, in order."""
    dynamic: bool = False
    """Whether datapoints may have attributes that are not declared."""
    named_vectors: dict[str, NamedVectorInfo] = field(default_factory=dict)
    """Further vectors of the datapoints, by name."""

    def _repr_html_(self) -> str:
        from scannery.client.response.notebook import index_view

        return index_view(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """How far the change of an index to another encoder or other passages is."""

    index: str
    version: int
    """Version of the index that is served."""
    model: str | None
    """Model of the encoder of the index; None without one."""
    dimensions: int
    mirror: str
    """Name of the mirror: an index with the other content, which can be searched."""
    mirror_model: str | None
    mirror_dimensions: int
    goal: Literal["switch", "mirror", "undo", "abandon"] | None
    """Where it shall end; None: a command leads it, no server."""
    filled: bool
    """Whether the mirror has all datapoints, and follows the index."""
    exchanged: bool
    """Whether the index has the new content, and the mirror the former one."""
    reached: bool
    """Whether the goal is reached; the mirror goes on following the index."""
    converted: int
    to_convert: int
    """Datapoints that are converted, of how many in all; 0: it is not known yet."""
    rows_per_s: float
    """Datapoints that are converted a second; 0: none are."""
    seconds_left: float | None
    """Time until all are converted at this rate; None: it is not known."""
    error: str
    """Error that ended the work last; the server tries again. Empty: none did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallPoint:
    """What searches with a target recall are expected to do."""

    target: float
    """Target recall."""
    recall: float
    """Expected recall."""
    error: float
    """Standard error of `recall`."""
    query_us: float
    """Time of one query in a batch on one core, in microseconds, without segments that are searched exactly."""
    leaves: int
    """Leaves searched, over all segments."""
    exact_rows: int
    """Datapoints in segments that are searched exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallCurve:
    """Recall and cost of searches of the vectors of one name, over all segments of a version."""

    name: str
    """Name of the vectors; empty: the unnamed ones."""
    k: int
    """Hits per query."""
    rows: int
    """Datapoints with such a vector."""
    points: tuple[RecallPoint, ...]
    """Points ascending by target, one of which has the target of the spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionInfo:
    """A version of an index that is kept."""

    version: int
    """Number of the version."""
    current: bool
    """Whether it is the newest, which servers move to."""
    parent: int | None
    """Version that it was made from; None: none."""
    created_at: dt.datetime | None
    """Time of its commit; None: its manifest cannot be read."""
    rows: int
    """Datapoints of its segments."""
    segments: int
    """Number of its segments."""
    size_bytes: int
    """Bytes of its files; versions share files."""
    kind: str
    """`full` and `upsert` are builds, `live` seals live updates, `merge` and `compact` merge segments; `create`,
    `alter`, `tune`, `calibrate`, `rank`, `map`, `migrate`, `replace`, `rollback`; empty: it is not known."""
    content_of: int | None
    """Version whose content a rollback has; None: it is none."""
    recall: RecallInfo | None
    """Expected recall of default searches; None where nothing was measured."""
    problem: str
    """What is wrong with its manifest: only the number is known then. Empty: nothing."""
    spec: dict[str, Any]
    """Empty in a list of versions."""
    curves: tuple[RecallCurve, ...]
    """Empty in a list of versions, and where all segments are searched exactly."""


class Indexes(list[IndexInfo]):
    """The indexes of a server or a store, by name."""

    def _repr_html_(self) -> str:
        from scannery.client.response.notebook import indexes_view

        return indexes_view(self)
