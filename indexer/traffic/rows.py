"""The rows of the log: queries, and events, as users clicked or rejected hits.

Names are those of User Behavior Insights 1.3 (ubisearch.dev), the others ours.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import Any, ClassVar, Literal, TypeAlias

import pyarrow as pa

__all__ = [
    "CLICK",
    "REJECT",
    "Action",
    "Kind",
    "LoggedEvent",
    "LoggedQuery",
    "LoggedRow",
    "ShadowAnswer",
    "day_of",
]

Action: TypeAlias = Literal["click", "reject"]
CLICK: Action = "click"
REJECT: Action = "reject"

Kind: TypeAlias = "type[LoggedQuery] | type[ShadowAnswer] | type[LoggedEvent]"

_TIME = pa.timestamp("us", tz="UTC")
_REQUIRED = {"nullable": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedQuery:
    """A query that was answered."""

    FOLDER: ClassVar = "traffic"
    SCHEMA: ClassVar = pa.schema(
        [
            pa.field("query_id", pa.string(), **_REQUIRED),
            pa.field("timestamp", _TIME, **_REQUIRED),
            pa.field("client_id", pa.string(), **_REQUIRED),
            pa.field("asker", pa.string()),
            pa.field("user_query", pa.string()),
            pa.field("query_response_hit_ids", pa.list_(pa.string()), **_REQUIRED),
            pa.field("scores", pa.list_(pa.float32()), **_REQUIRED),
            pa.field("query_attributes", pa.string(), **_REQUIRED),
            pa.field("vector", pa.list_(pa.float32())),
            pa.field("latency_us", pa.int64(), **_REQUIRED),
        ]
    )

    query_id: str
    """Id of the answer; the first part of the one that the caller has."""
    timestamp: datetime
    client_id: str
    """Keyed hash of who asked, another one each day."""
    asker: str | None
    """Keyed hash of who asked and the text; None without a text."""
    user_query: str | None
    """The text, masked; None: the query had none, or texts are not logged."""
    query_response_hit_ids: list[str]
    """Ids of the first 100 hits."""
    scores: list[float]
    """Scores of these hits."""
    query_attributes: str
    """JSON object: `version` of the index, `mode`, `k`, `offset`; with texts also the other options, masked."""
    vector: list[float] | None
    """Vector of the query, where vectors are logged and it was at hand."""
    latency_us: int
    """Microseconds from the body of the request to the answer."""

    @property
    def attributes(self) -> dict[str, Any]:
        """`query_attributes`, parsed."""
        parsed: dict[str, Any] = json.loads(self.query_attributes)
        return parsed

    @property
    def key(self) -> tuple[str, ...]:
        """What a row of the log is counted once by."""
        return (self.query_id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedEvent:
    """What a user did with a hit of an answer."""

    FOLDER: ClassVar = "feedback"
    SCHEMA: ClassVar = pa.schema(
        [
            pa.field("query_id", pa.string(), **_REQUIRED),
            pa.field("timestamp", _TIME, **_REQUIRED),
            pa.field("client_id", pa.string(), **_REQUIRED),
            pa.field("action_name", pa.string(), **_REQUIRED),
            pa.field("object_id", pa.string(), **_REQUIRED),
            pa.field("ordinal", pa.int32(), **_REQUIRED),
            pa.field("version", pa.int64(), **_REQUIRED),
        ]
    )

    query_id: str
    """Id of the answer, as in `LoggedQuery`, whether or not the query is in the log."""
    timestamp: datetime
    client_id: str
    """Keyed hash of who gave the feedback, another one each day."""
    action_name: Action
    object_id: str
    """Id of the hit."""
    ordinal: int
    """Position of the hit in the answer, from 1 on."""
    version: int
    """Version of the index that answered."""

    @property
    def key(self) -> tuple[str, ...]:
        """What a row of the log is counted once by."""
        return self.query_id, self.action_name, self.object_id


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowAnswer(LoggedQuery):
    """Answer of another index to a logged query; `attributes` has its name as `shadow`, or an `error`, too."""

    FOLDER: ClassVar = "shadow"


LoggedRow: TypeAlias = LoggedQuery | LoggedEvent


def day_of(row: LoggedRow) -> date:
    """Return the day of a row, UTC."""
    return row.timestamp.astimezone(timezone.utc).date()
