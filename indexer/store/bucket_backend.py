"""A bucket as a place for objects, through obstore.

A request for a large object is many for its parts, several on their way at once. A request ends some time after its
start, and obstore resumes one that was cut at most ten times within three minutes: a segment of some gigabytes that
many machines read at once would take longer than that as one request, and no part does.

The outcome of a conditional put may be unknown. It may be done although its answer is an error, or is lost. The put
that is then repeated finds its own object, and must not take it for that of another writer. obstore repeats puts itself
and does not tell, so these are repeated here.
"""

from __future__ import annotations

import contextlib
import io
import os
import random
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import obstore
from obstore.exceptions import AlreadyExistsError as ObjectExistsError
from obstore.exceptions import BaseError, GenericError, PreconditionError

from scannery.indexer.errors import AlreadyExistsError, NotFoundError, StoreError, StoreUriError
from scannery.indexer.store.backend import StoredObject, check_size
from scannery.indexer.store.changes import CHANGES_FOLDER, Changes, ObjectChanges

if TYPE_CHECKING:
    from obstore import GetOptions, UpdateVersion
    from obstore.store import BackoffConfig, ClientConfig, RetryConfig

__all__ = ["MOST_PARTS", "PARALLEL", "PART_BYTES", "RETRY_S", "BucketBackend", "ordered_parts"]


PART_BYTES = 2**23
"""Most bytes of a part. In the 120 s of a request, a connection must carry 70 kB/s."""

PARALLEL = 8
"""Most parts of one object at once. Eight streams of S3 carry 640 MB/s; a core unpacks 60 MB/s."""

MOST_PARTS = 32
"""Most parts of all objects in this process at once: 256 MiB of memory, and as many connections."""


class _Room:
    """Counts the parts of this process."""

    def __init__(self) -> None:
        self.renew()
        # A thread that is in the midst of a download does not survive a fork, and would never give back its room.
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.free = threading.BoundedSemaphore(MOST_PARTS)


_ROOM = _Room()


def ordered_parts(
    fetch: Callable[[int, int], memoryview], start: int, end: int
) -> Iterator[tuple[int, memoryview]]:
    """Yield the parts of a range of bytes in order, each with its offset.

    Args:
        fetch: returns the bytes from an offset up to another; called in several threads.
        start: of the range.
        end: of the range, exclusive.

    """
    free, pending = _ROOM.free, deque[tuple[int, Future[memoryview]]]()
    with ThreadPoolExecutor(PARALLEL, "scannery-parts") as pool:
        try:
            while pending or start < end:
                # An object waits for room for its first part only: so it never waits while it holds some.
                while start < end and len(pending) < PARALLEL and free.acquire(blocking=not pending):
                    pending.append((start, pool.submit(fetch, start, min(start + PART_BYTES, end))))
                    start += PART_BYTES
                offset, part = pending.popleft()
                try:
                    data = part.result()
                    del part  # the future would keep the bytes
                    yield offset, data
                    del data
                finally:
                    free.release()
        finally:
            for _, part in pending:
                part.cancel()
                free.release()


RETRY_S = 60.0
"""Seconds from the first attempt in which a put is repeated."""
_FIRST_WAIT_S, _MOST_WAIT_S = 0.1, 5.0


def put_once(put: Callable[[], object], is_ours: Callable[[], bool]) -> None:
    """Put an object under a condition; repeat it with growing pauses while the bucket fails.

    Args:
        put: one attempt, which obstore does not repeat.
        is_ours: whether the bucket has the object of this put; called if the condition failed after an attempt of
            unknown outcome.

    Raises:
        obstore's AlreadyExistsError, PreconditionError: the condition does not hold.
        GenericError: the bucket failed for `RETRY_S`; the object may have been put.

    """
    end_s, wait_s, unknown = time.monotonic() + RETRY_S, _FIRST_WAIT_S, False
    while True:
        try:
            put()
            return
        except (ObjectExistsError, PreconditionError):
            if not unknown:
                raise
            # Without an object an attempt is still under way: S3 refuses concurrent puts (409), and asks to repeat.
            with contextlib.suppress(FileNotFoundError):
                if is_ours():
                    return
                raise
            if time.monotonic() + wait_s > end_s:
                raise
        except GenericError:
            unknown = True
            if time.monotonic() + wait_s > end_s:
                raise
        time.sleep(wait_s * random.uniform(0.5, 1))
        wait_s = min(2 * wait_s, _MOST_WAIT_S)


UPLOAD_BYTES = 2**24
"""Bytes of a part of an upload; there may be 10,000. At `TIMEOUT_S` a connection must carry 140 kB/s."""

PARALLEL_UPLOADS = 4
"""Parts of an upload at once."""

TIMEOUT_S = 120.0
"""Most seconds of a request; the environment variable SCANNERY_STORE_TIMEOUT_S replaces it."""

STALL_S = 30.0
"""Seconds without a byte after which the rest of an answer is asked for again."""

MOST_RETRIES = 10
"""Repetitions of a request that fails: with obstore's pauses, which hardly grow, 2 to 7 s."""

MOST_PATIENT_RETRIES = 40
"""Repetitions of a request for a part of a file, which obstore ends after three minutes: many machines that read
segments at once are throttled for longer than seconds."""

PAUSE_FACTOR = 3.0
"""Most growth of a pause before such a repetition, above 1; it is random, from 0.1 to 15 s."""

MOST_TIMEOUT_S = 86_400.0
_CLOUDS = ("AWS", "AZURE", "GOOGLE")
_TRUE = ("1", "true", "on", "yes", "y")


class BucketBackend:
    """A bucket, through obstore."""

    def __init__(
        self,
        store: obstore.store.ObjectStore,
        unrepeated: obstore.store.ObjectStore | None = None,
        patient: obstore.store.ObjectStore | None = None,
    ) -> None:
        """Keep the store.

        Args:
            store: an object store of obstore, of any kind.
            unrepeated: the same, whose failed requests are not repeated; None: `store` is so.
            patient: the same for parts of files, whose failed requests are repeated for long; None: `store` is so.

        """
        self._store, self._unrepeated, self._patient = store, unrepeated or store, patient or store

    @classmethod
    def from_url(cls, url: str) -> BucketBackend:
        """Return the bucket, with credentials from their usual environment variables and files.

        Raises:
            StoreUriError: the URL or a setting is wrong.

        """
        try:
            options = _client_options()
            return cls(
                *(
                    obstore.store.from_url(url, client_options=options, retry_config=retries)
                    for retries in (_repeated(MOST_RETRIES), _repeated(0), _patient())
                )
            )
        except (BaseError, ValueError) as error:
            raise StoreUriError(f"cannot open the store {url}: {_short(error)}") from error

    def read(self, key: str) -> bytes:
        """Return the bytes of an object."""
        with _object_errors(key):
            response = obstore.get(self._store, key)
            size, etag = response.meta["size"], response.meta["e_tag"]
            if size <= PART_BYTES:
                return bytes(response.bytes())
            del response  # ends the request, of which only the size is used
            return self._joined(key, 0, size, etag)

    def read_range(self, key: str, start: int, length: int) -> bytes:
        """Return the bytes of a range; fewer if the object ends before."""
        with _object_errors(key):
            if length > PART_BYTES:
                # The length may come from a damaged file, and that much memory would be taken.
                head = obstore.head(self._store, key)
                length = max(min(length, head["size"] - start), 1)
                if length > PART_BYTES:
                    return self._joined(key, start, length, head["e_tag"])
            return bytes(obstore.get_range(self._store, key, start=start, length=length))

    def map_range(self, key: str, start: int, length: int) -> memoryview:
        """Return a range without a copy where that is possible; fewer bytes if the object ends before."""
        return memoryview(self.read_range(key, start, length))

    def download(
        self,
        key: str,
        path: Path,
        *,
        size_bytes: int | None = None,
        seen: Callable[[memoryview], object] | None = None,
    ) -> None:
        """Write an object to a local file while its parts arrive (`Backend.download`)."""
        etag = None
        if size_bytes is None:
            with _object_errors(key):
                head = obstore.head(self._store, key)
            size_bytes, etag = head["size"], head["e_tag"]
        with path.open("wb") as file:
            for _, data in self._parts(key, 0, size_bytes, etag, whole=True):
                file.write(data)
                if seen is not None:
                    seen(data)

    def write(self, key: str, data: bytes | Path, *, only_if_absent: bool) -> None:
        """Write an object; with `only_if_absent` raise AlreadyExistsError if it exists."""
        with _object_errors(key):
            if only_if_absent:
                self._put_if(key, data, "create")
            else:
                store = self._patient if isinstance(data, Path) else self._store
                obstore.put(store, key, data, chunk_size=UPLOAD_BYTES, max_concurrency=PARALLEL_UPLOADS)

    def replace(self, key: str, data: bytes, stored: bytes | None) -> None:
        """Write an object if its bytes are `stored` (None: it does not exist), else raise AlreadyExistsError."""
        if stored is None:
            self.write(key, data, only_if_absent=True)
            return
        changed = AlreadyExistsError(f"{key} was changed meanwhile")
        try:
            with _object_errors(key):
                response = obstore.get(self._store, key)
                if bytes(response.bytes()) != stored:
                    raise changed
                tag: UpdateVersion = {"e_tag": response.meta["e_tag"]}
                if response.meta["version"] is not None:
                    tag["version"] = response.meta["version"]
                with contextlib.suppress(PreconditionError):
                    self._put_if(key, data, tag)
                    return
        except NotFoundError:
            pass
        raise changed

    def _put_if(self, key: str, data: bytes | Path, mode: Literal["create"] | UpdateVersion) -> None:
        """Put an object under a condition, once also if an answer is lost."""

        def is_ours() -> bool:
            whole = data.read_bytes() if isinstance(data, Path) else data
            return bytes(obstore.get(self._store, key).bytes()) == whole

        put_once(lambda: obstore.put(self._unrepeated, key, data, mode=mode, use_multipart=False), is_ours)

    def _joined(self, key: str, start: int, length: int, etag: str | None) -> bytes:
        """Return a large range; at its end `getvalue` gives the buffer itself, so that there is no second copy."""
        buffer = io.BytesIO()
        buffer.seek(length - 1)
        buffer.write(b"\0")
        for offset, data in self._parts(key, start, length, etag):
            buffer.seek(offset - start)
            buffer.write(data)
        return buffer.getvalue()

    def _parts(
        self, key: str, start: int, length: int, etag: str | None, *, whole: bool = False
    ) -> Iterator[tuple[int, memoryview]]:
        """Yield the parts of a range in order, each with its offset; with `whole` the range is all of the object."""

        def fetch(first: int, end: int) -> memoryview:
            with _object_errors(key):
                return self._part(key, first, end, etag, length if whole else None)

        return ordered_parts(fetch, start, start + length)

    def _part(self, key: str, start: int, end: int, etag: str | None, size_bytes: int | None) -> memoryview:
        # With the tag, parts of two different objects cannot be mixed if another writer replaces the object.
        options: GetOptions = {"range": (start, end)}
        if etag:
            options["if_match"] = etag
        response = obstore.get(self._patient, key, options=options)
        check_size(key, response.meta["size"], size_bytes)
        data = memoryview(response.bytes())
        if len(data) != end - start:
            raise StoreError(f"{key}: wanted bytes {start} to {end}, got {len(data)} of {end - start}")
        return data

    def share(self, key: str, target: str) -> None:
        """Copy the object within the bucket (`Backend.share`); S3 refuses that above 5 GB."""
        with _object_errors(key):
            obstore.copy(self._store, key, target)

    def sync(self, prefix: str) -> None:
        """Do nothing: what a bucket has answered is durable."""

    def turn_into(self, key: str, target: str, data: bytes) -> None:
        """Write an object, and delete another one (`Store.turn_into`)."""
        self.write(target, data, only_if_absent=False)
        self.delete(key)

    def size(self, key: str) -> int:
        """Return the size of an object in bytes."""
        with _object_errors(key):
            return obstore.head(self._store, key)["size"]

    def stamp(self, key: str) -> str:
        """Return a string that changes when the object is replaced."""
        with _object_errors(key):
            meta = obstore.head(self._store, key)
        return f"{meta['e_tag']}-{meta['last_modified'].timestamp()}-{meta['size']}"

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Yield the objects in the folder `prefix` and below."""
        with _object_errors(prefix):
            for page in obstore.list(self._store, prefix or None):
                yield from (StoredObject(item["path"], item["size"], item["last_modified"]) for item in page)

    def folders(self) -> Sequence[str]:
        """Return the names of the top-level folders."""
        with _object_errors("the store"):
            names = map(str, obstore.list_with_delimiter(self._store)["common_prefixes"])
            return [name for name in names if name != CHANGES_FOLDER]

    def delete(self, key: str) -> None:
        """Remove an object, if it exists."""
        with contextlib.suppress(NotFoundError), _object_errors(key):
            obstore.delete(self._store, key)

    def note_change(self, folder: str) -> None:
        """Note that a top-level folder has changed; see Backend."""
        with contextlib.suppress(StoreError):
            # Other bytes each time, so that the tag differs.
            self.write(f"{CHANGES_FOLDER}/{folder}", uuid.uuid4().bytes, only_if_absent=False)

    def changes(self) -> Changes:
        """Return a new reader of the notes."""
        return ObjectChanges(self._noted)

    def _noted(self) -> Mapping[str, object]:
        with _object_errors(CHANGES_FOLDER):
            return {
                item["path"].rpartition("/")[2]: (item["e_tag"], item["last_modified"])
                for page in obstore.list(self._store, CHANGES_FOLDER)
                for item in page
            }


def _repeated(times: int) -> RetryConfig:
    return {"max_retries": times}


def _patient() -> RetryConfig:
    pauses: BackoffConfig = {
        "init_backoff": timedelta(milliseconds=100),
        "max_backoff": timedelta(seconds=15),
        "base": PAUSE_FACTOR,
    }
    return {"max_retries": MOST_PATIENT_RETRIES, "backoff": pauses}


def _client_options() -> ClientConfig:
    timeout_s = _timeout_s(os.environ)
    options: ClientConfig = {
        "timeout": timedelta(seconds=timeout_s),
        "read_timeout": timedelta(seconds=min(timeout_s, STALL_S)),
    }
    # Options that are given replace those of the environment, which are this one.
    if any(os.environ.get(f"{cloud}_ALLOW_HTTP", "").lower() in _TRUE for cloud in _CLOUDS):
        options["allow_http"] = True
    return options


def _timeout_s(environment: Mapping[str, str]) -> float:
    text = environment.get("SCANNERY_STORE_TIMEOUT_S", "")
    try:
        value = float(text) if text else TIMEOUT_S
    except ValueError:
        value = 0.0
    if not 0 < value <= MOST_TIMEOUT_S:
        raise StoreUriError(
            f"SCANNERY_STORE_TIMEOUT_S must be a number of seconds from above 0 to {MOST_TIMEOUT_S:.0f}, got {text!r}"
        )
    return value


@contextlib.contextmanager
def _object_errors(key: str) -> Iterator[None]:
    try:
        yield
    except ObjectExistsError as error:
        raise AlreadyExistsError(f"{key} exists already") from error
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no {key} in the store") from error
    except PreconditionError as error:
        raise StoreError(f"{key} was replaced while it was read; try again") from error
    except (BaseError, OSError) as error:
        raise StoreError(f"{key}: {_short(error)}") from error


def _short(error: Exception) -> str:
    # Without the library's state, hundreds of words of internals; the cause of the error keeps them.
    return str(error).partition("\n\nDebug source")[0]
