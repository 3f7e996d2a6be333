"""Log records as JSON, one object per line."""

from __future__ import annotations

import datetime as dt
import json
import logging

__all__ = ["JsonFormatter"]


class JsonFormatter(logging.Formatter):
    """Writes `time` (UTC, ISO 8601), `level`, `logger`, `process` (pid), `message`, and `exception` if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line."""
        created = dt.datetime.fromtimestamp(record.created, dt.timezone.utc)
        fields = {
            "time": created.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)
