"""Logs for machines: one JSON object per line."""

from __future__ import annotations

import datetime as dt
import json
import logging

__all__ = ["JsonFormatter"]


class JsonFormatter(logging.Formatter):
    """Writes `time` (UTC), `level`, `logger`, `process`, `message`, and for an exception `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        moment = dt.datetime.fromtimestamp(record.created, dt.timezone.utc)
        fields = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)
