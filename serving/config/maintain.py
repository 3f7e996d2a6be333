"""Options of a process that maintains indexes."""

from __future__ import annotations

from dataclasses import dataclass, field

from scannery.live.log.location import log_root_of
from scannery.runtime.errors import ConfigError
from scannery.runtime.paths import make_absolute
from scannery.serving.config.addresses import split_address

__all__ = ["MaintainConfig"]


@dataclass(frozen=True, kw_only=True)
class MaintainConfig:
    """The options of a process that maintains indexes. Raises ConfigError, which names the field."""

    store: str
    """Folder or URI of the store."""

    indexes: tuple[str, ...] = ()
    """Names of the indexes; empty: all."""

    log: str = field(default="", repr=False)
    """Local folder with the mutation logs, or the URL of a database of PostgreSQL, which may have a password; empty:
    inside the store, if it is a local folder."""

    fill_cache: bool | None = None
    """Whether new segments are unpacked into the cache of this machine, for servers on it; None: if the store is a
    local folder."""

    metrics_listen: str = ""
    """`host:port` of the metrics over HTTP; empty: none."""

    check_every_s: float = 1.0
    """Seconds between two looks at the indexes."""

    def __post_init__(self) -> None:
        if self.metrics_listen:
            split_address(self.metrics_listen, field="metrics_listen")
        if self.check_every_s <= 0:
            raise ConfigError(
                f"check_every_s: must be greater than 0, got {self.check_every_s}", field="check_every_s"
            )
        log_root_of(self.log)  # checks it, before it becomes an absolute path
        make_absolute(self, "store", "log")
