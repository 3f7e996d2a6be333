"""Options of the audit log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from scannery.runtime.errors import ConfigError
from scannery.runtime.options import check_ranges, option
from scannery.runtime.paths import make_absolute

__all__ = ["AuditConfig"]

_option = partial(option, panel="Audit log")


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """Where a server writes down who called what. Raises ConfigError, which names the field."""

    folder: str = _option(
        "",
        "Write a record of each call into this folder: who, which method, which index, how many rows, the outcome; no "
        "texts, vectors, ids or filters. Calls are refused while records cannot be written.",
        "--audit",
        metavar="FOLDER",
    )
    """Local folder; empty: no audit log."""

    lenient: bool = _option(
        False,
        "Answer calls also while their records cannot be written; the log then says how many are missing.",
        "--audit-lenient",
    )

    otlp: str = _option(
        "",
        "Send a copy of the records to a collector of OpenTelemetry, by OTLP (Protobuf over HTTP) to this URL, as "
        "http://127.0.0.1:4318/v1/logs. Records that it does not take in time are counted; the folder has all.",
        "--audit-otlp",
        metavar="URL",
    )
    """URL at which a collector takes logs; empty: there is none."""

    file_bytes: int = _option(
        64 << 20,
        "Begin another file when one has this size; there is one a day at least.",
        "--audit-file-size",
        metavar="MIB",
        unit=1 << 20,
        minimum=1,
        maximum=1 << 40,
    )
    """Size of a file from which on there is another one, in bytes."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.lenient and not self.folder:
            raise ConfigError("lenient: needs an audit log (--audit)", field="lenient")
        if self.otlp and not self.folder:
            raise ConfigError("otlp: needs an audit log (--audit), of which it is a copy", field="otlp")
        if self.otlp:
            _check_url(self.otlp)
        if "://" in self.folder:
            raise ConfigError(f"folder: must be a local folder, got {self.folder!r:.200}", field="folder")
        make_absolute(self, "folder")


def _check_url(url: str) -> None:
    """Raise ConfigError unless it is where a collector may take logs."""
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not (is_right and url.isascii() and url.isprintable() and " " not in url):
        raise ConfigError(f"otlp: must be a URL with http or https, got {url!r:.200}", field="otlp")
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "otlp: must have no user or password; headers are in OTEL_EXPORTER_OTLP_HEADERS", field="otlp"
        )
    if parts.path in ("", "/"):
        raise ConfigError("otlp: must have a path, of most collectors /v1/logs", field="otlp")
