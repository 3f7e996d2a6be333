"""One connection of the native protocol: bytes in and out, in the clear or by TLS."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from scannery.serving.native.frames import Frame, Frames

__all__ = ["READ", "Connection"]

READ = select.EPOLLIN | select.EPOLLRDHUP
"""What epoll tells of a connection unless it is told otherwise."""

AT_ONCE = 1 << 16
"""Bytes that are read at a time."""
MAX_CALLS = 64
"""Requests of a connection that are not answered yet: then no more are read."""
MAX_UNSENT_BYTES = 1 << 20
"""Likewise while so much of its answers waits to be sent."""
WELCOME_WITHIN_S = 10.0
"""A connection has so long to say who it is, from its beginning: one byte now and then is no hello."""
IDLE_S = 30 * 60.0
_LATER = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

After = Callable[[], object] | None
"""Called when all of an answer is sent, or never will be."""


class Connection:
    """A caller. Read and released by its loop alone; answers come from several threads.

    Python's TLS sockets must not be read and written at once: both are done under the lock. Nobody but the loop lets go
    of the descriptor, since another file might get its number while the loop reads from it.
    """

    def __init__(self, connected: socket.socket, watch: Callable[[int, int], None]) -> None:
        """Take a socket that does not block; `watch` changes what epoll tells of a descriptor."""
        self._socket = connected
        self._tls = isinstance(connected, ssl.SSLSocket)
        self._shaken = not self._tls
        self._watch, self._watched = watch, READ
        self._frames = Frames()
        self._lock = threading.Lock()
        self._less_unsent = threading.Condition(self._lock)
        self._unsent: deque[tuple[memoryview, After]] = deque()
        self._unsent_bytes = 0
        self._began_at_s = self._read_at_s = time.monotonic()
        """When the frame began that is on its way; when its caller last took as much of the answers as they must."""
        self._taken_bytes = 0
        self._last = False
        self._held = False
        """Whether there is more of it here than could be taken on."""
        self.number = connected.fileno()
        """Its descriptor."""
        self.is_open = True
        self.calls = 0
        """Requests that were read and not answered."""
        self.metadata: tuple[tuple[str, str], ...] | None = None
        """What it said with its hello; None: it has not."""
        self.client = ""
        """Whose share of the server its requests take."""

    def admit(self, metadata: tuple[tuple[str, str], ...], client: str, longest: int) -> list[Frame]:
        """Take note of who this is, and that bodies may have `longest` bytes; return the frames that came already.

        Raises:
            BrokenFrameError: what came is no frame.

        """
        self.metadata, self.client = metadata, client
        self._frames.longest = longest
        self._began_at_s = time.monotonic()
        return self.received(readable=False)

    def received(self, *, readable: bool, most: int = MAX_CALLS) -> list[Frame]:
        """Return the frames that are whole, as many as may be under way; without a hello, it is the first.

        Args:
            readable: there is something to read.
            most: so many frames, and the others with the next call.

        Raises:
            BrokenFrameError: what came is no frame.

        """
        frames = self._taken(b"", most) if self._held and self._room > 0 else []
        while not self._held and min(self._room, most - len(frames)) > 0 and (readable or self._decrypted()):
            readable = False
            data = self._read()
            if not data:
                break
            frames += self._taken(data, most - len(frames))
        return frames

    def send(self, data: bytes, *, after: After = None) -> None:
        """Answer a call."""
        with self._lock:
            self.calls -= 1
            sent = len(data) if not self.is_open else 0 if self._unsent else self._write(data)
            if sent < len(data):
                if not self._unsent:
                    self._read_at_s, self._taken_bytes = time.monotonic(), 0
                self._unsent.append((memoryview(data)[sent:], after))
                self._unsent_bytes += len(data) - sent
                after = None
            self._rethink()
        if after is not None:
            after()

    def flush(self) -> None:
        """Send what waits, as far as it goes."""
        done: list[After] = []
        with self._lock:
            while self._unsent and self.is_open:
                data, after = self._unsent[0]
                sent = self._write(data)
                self._unsent_bytes -= sent
                self._note_taken(sent)
                if sent < len(data):
                    self._unsent[0] = (data[sent:], after)
                    break
                self._unsent.popleft()
                done.append(after)
            self._less_unsent.notify_all()
            self._rethink()
        _call(done)

    @property
    def is_full(self) -> bool:
        """Whether so much of its answers waits to be sent that no further ones should be made."""
        return self.is_open and self._unsent_bytes > MAX_UNSENT_BYTES

    def await_reader(self, within_s: float) -> None:
        """Wait until it is not full, or so long."""
        with self._lock:
            self._less_unsent.wait_for(lambda: not self.is_full, within_s)

    def end(self) -> None:
        """Read no more, and close when what was read is answered."""
        with self._lock:
            self._last = True
            self._rethink()

    def close(self) -> None:
        """Send and receive nothing any more."""
        with self._lock:
            self._close()
            unsent = [after for _, after in self._unsent]
            self._unsent.clear()
            self._less_unsent.notify_all()
        _call(unsent)

    def release(self) -> None:
        """Close, and let go of the descriptor; for the loop."""
        self.close()
        with self._lock, suppress(OSError):
            self._socket.close()

    def overdue(self, now_s: float, within_s: float) -> bool:
        """Return whether its caller takes longer than they may to say what they began to say, or to read."""
        if self.metadata is None:
            return now_s - self._began_at_s > WELCOME_WITHIN_S
        if self._unsent and now_s - self._read_at_s > within_s:
            return True
        if self._frames and self._watched & select.EPOLLIN:
            return now_s - self._began_at_s > within_s
        return self.calls == 0 and now_s - self._began_at_s > IDLE_S

    @property
    def _room(self) -> int:
        """How many more requests may be under way."""
        return 0 if self._last or self._unsent_bytes > MAX_UNSENT_BYTES else MAX_CALLS - self.calls

    def _taken(self, data: bytes, most: int) -> list[Frame]:
        frames, began = [], not self._frames
        # A hello decides on how long the others may be, and is answered before they are.
        most = 1 if self.metadata is None else min(self._room, most)
        frame = self._frames.add(data)
        while frame is not None:
            frames.append(frame)
            frame = self._frames.take() if len(frames) < most else None
        if self.metadata is not None and (began or frames):
            self._began_at_s = time.monotonic()
        with self._lock:
            self.calls += len(frames)
            self._held = len(frames) == most and (bool(self._frames) or self._has_decrypted())
            self._rethink()
        return frames

    def _decrypted(self) -> bool:
        """Return whether a part of what TLS has read is still there: epoll knows nothing of it."""
        if not self._tls:
            return False
        with self._lock:
            return self._has_decrypted()

    def _has_decrypted(self) -> bool:
        return isinstance(self._socket, ssl.SSLSocket) and self.is_open and self._socket.pending() > 0

    def _note_taken(self, sent: int) -> None:
        # Whoever reads byte by byte keeps their answers here as long as one who does not read.
        self._taken_bytes += sent
        if self._taken_bytes >= AT_ONCE:
            self._read_at_s, self._taken_bytes = time.monotonic(), 0

    def _read(self) -> bytes:
        if not self._tls:
            return self._receive()
        with self._lock:
            return self._receive()

    def _receive(self) -> bytes:
        if not self.is_open:
            return b""
        try:
            if not self._shaken:
                self._shake()
            data = self._socket.recv(AT_ONCE)
        except _LATER:
            return b""
        except OSError:
            data = b""
        if not data:
            self._close()
        return data

    def _shake(self) -> None:
        assert isinstance(self._socket, ssl.SSLSocket)
        self._socket.do_handshake()
        self._shaken = True

    def _write(self, data: bytes | memoryview) -> int:
        try:
            sent = self._socket.send(data)
        except _LATER:
            return 0
        except OSError:
            self._close()
            return len(data)
        return sent

    def _rethink(self) -> None:
        """Decide what to wait for. A caller who does not read is not read either."""
        if self._last and self.calls <= 0 and not self._unsent:
            self._close()
        if not self.is_open:
            return
        room = self._room > 0
        wanted = READ if room else select.EPOLLRDHUP
        if self._unsent or (self._held and room):
            wanted |= select.EPOLLOUT
        if wanted != self._watched:
            if wanted & ~self._watched & select.EPOLLIN:
                # It was not read; its time counts from now on.
                self._began_at_s = time.monotonic()
            self._watched = wanted
            self._watch(self.number, wanted)

    def _close(self) -> None:
        if self.is_open:
            self.is_open = False
            # The loop hears of it, and releases it.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _call(callbacks: list[After]) -> None:
    for after in callbacks:
        if after is not None:
            after()
