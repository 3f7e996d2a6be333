"""Rows of the log as documents of User Behavior Insights 1.3 (https://www.ubisearch.dev), which other tools read."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from scannery.indexer.traffic.rows import LoggedEvent, LoggedQuery

__all__ = ["event_document", "query_document"]


def query_document(row: LoggedQuery, index: str) -> dict[str, Any]:
    """Return a query as a document of `ubi_queries`. A text that is not logged is empty: the schema requires one."""
    attributes = row.attributes | {"scores": row.scores, "latency_us": row.latency_us}
    if row.vector is not None:
        attributes["vector"] = row.vector
    return {
        "application": index,
        "query_id": row.query_id,
        "client_id": row.client_id,
        "timestamp": _time(row.timestamp),
        "user_query": row.user_query or "",
        "query_attributes": attributes,
        "object_id_field": "id",
        "query_response_hit_ids": row.query_response_hit_ids,
    }


def event_document(row: LoggedEvent, index: str) -> dict[str, Any]:
    """Return an event as a document of `ubi_events`."""
    return {
        "application": index,
        "action_name": row.action_name,
        "query_id": row.query_id,
        "client_id": row.client_id,
        "timestamp": _time(row.timestamp),
        "message_type": "FEEDBACK",
        "event_attributes": {
            "object": {"object_id": row.object_id, "object_id_field": "id"},
            "position": {"ordinal": row.ordinal},
            "version": row.version,
        },
    }


def _time(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
