"""Which log an index uses: one object in the store, created before the first write is taken.

A log may lie outside of the store, so two processes that were given different folders would each begin one, and
acknowledge what the other never sees. The first one is registered by a conditional put; a second one is refused.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from scannery.indexer import AlreadyExistsError, CorruptError, NotFoundError, Store
from scannery.live.log.location import log_folder
from scannery.live.log.mutation_log import WrongLogError

__all__ = ["Registration", "forget", "register", "registered", "registration_key"]

REGISTRATION_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Registration:
    """The log of an index."""

    log_id: str
    path: str | None
    """Folder of the log when it was registered, absolute; None: in the store."""
    host: str
    """Name of that machine; for people."""
    created_at: str

    @property
    def where(self) -> str:
        """What a message calls the place of the log."""
        return "in the store" if self.path is None else f"in {self.path} on host {self.host}"

    def folder(self, store: Store, index: str) -> Path | None:
        """Return the folder where this machine had it when it was registered; None: on another machine."""
        if self.path is None:
            return log_folder(store.local_root, index)
        return Path(self.path) if self.host == socket.gethostname() else None

    def is_in(self, store: Store, folder: Path) -> bool:
        """Return whether it is the log of this folder, or was when it was registered."""
        return self.path == _path_of(store, folder) and (
            self.path is None or self.host == socket.gethostname()
        )


def registration_key(index: str) -> str:
    """Return the store key of the registration."""
    return f"{index}/log.json"


def registered(store: Store, index: str) -> Registration | None:
    """Return which log an index uses; None if it was never written to, or only by releases that registered none.

    Raises:
        CorruptError: the object cannot be read.

    """
    key = registration_key(index)
    try:
        data = store.read(key)
    except NotFoundError:
        return None
    try:
        fields = json.loads(data)
        return Registration(**{name: fields[name] for name in ("log_id", "path", "host", "created_at")})
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{key} is damaged: {error!r}") from error


def register(store: Store, index: str, log_id: str, folder: Path | None) -> None:
    """Make a log the one that an index uses; nothing happens where it is that already.

    Args:
        store: of the index.
        index: its name.
        log_id: of the log, which must exist.
        folder: of the log; None: it lies in the store.

    Raises:
        WrongLogError: the index uses another one.

    """
    registration = Registration(
        log_id=log_id,
        path=_path_of(store, folder),
        host=socket.gethostname(),
        created_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )
    known = registered(store, index)
    if known is None:
        try:
            store.create(registration_key(index), _to_json(registration))
            return
        except AlreadyExistsError:
            known = registered(store, index)
    if known is None or known.log_id != log_id:
        where = known.where if known else "elsewhere"
        raise WrongLogError(
            f"index {index!r} has its live updates in another log, {where}: that in {folder or 'the store'} takes none"
        )
    if (known.path, known.host) != (registration.path, registration.host):  # it was moved
        store.write(registration_key(index), _to_json(registration))


def forget(store: Store, index: str) -> None:
    """Let the index begin a new log; what the one before has and no version does is lost."""
    store.delete(registration_key(index))


def _path_of(store: Store, folder: Path | None) -> str | None:
    inside = folder is None or (store.local_root is not None and folder.is_relative_to(store.local_root))
    return None if inside else str(folder)


def _to_json(registration: Registration) -> bytes:
    return json.dumps({"format": REGISTRATION_FORMAT, **asdict(registration)}, indent=2).encode() + b"\n"
