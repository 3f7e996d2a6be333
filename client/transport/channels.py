"""gRPC channels to a server: several, each to one of its workers; a call goes where the fewest are under way."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import grpc
import grpc.aio

from scannery.client.request.calls import Method
from scannery.client.transport.credentials import Credentials

__all__ = [
    "CHANNELS",
    "CHANNEL_OPTIONS",
    "Channels",
    "Lane",
    "ask",
    "async_ask",
    "async_channel",
    "async_close",
    "channel",
    "close",
]

ChannelT = TypeVar("ChannelT")

CHANNELS = 4
"""Channels of a client, unless it asks for another number."""

# Answers hold up to 100,000 hits with their texts; what a request may hold is the server's to limit.
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_receive_message_length", 1 << 30),
    ("grpc.max_send_message_length", 1 << 30),
    # Clients share no connections: a connection is one worker process of the server.
    ("grpc.use_local_subchannel_pool", 1),
    # A server that restarts is back within seconds; the default waits up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # A peer that vanished without a word is noticed within 30 s.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # Retries are ours (retries.py): two layers would multiply.
    ("grpc.enable_retries", 0),
]


class Lane(Generic[ChannelT]):
    """One channel, and how many calls are under way on it."""

    __slots__ = ("calls", "channel", "under_way")

    def __init__(self, channel: ChannelT) -> None:
        self.channel = channel
        self.under_way = 0
        self.calls: dict[str, Any] = {}
        """Callables by method, made once: making one costs as much as half a call."""

    def rpc(self, method: Method[Any, Any]) -> Any:
        """Return the callable for a method."""
        return self.calls.get(method.path) or self._prepared(method)

    def _prepared(self, method: Method[Any, Any]) -> Any:
        # Of any of grpc's kinds of channels, which share no class.
        channel: Any = self.channel
        rpc = self.calls[method.path] = channel.unary_unary(
            method.path,
            request_serializer=method.request.SerializeToString,
            response_deserializer=method.response.FromString,
        )
        return rpc


class Channels(Generic[ChannelT]):
    """Lanes that are made when first needed, and made anew in a forked child. Safe to use from several threads.

    Pickled or copied, it is only the recipe.
    """

    def __init__(
        self, target: str, credentials: Credentials, count: int, make: Callable[[str, Any], ChannelT]
    ) -> None:
        self.target = target
        self._credentials = credentials
        self._count = count
        self._make = make
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._lanes: list[Lane[ChannelT]] = []
        self._turn = 0
        self._closed = False

    def take(self) -> Lane[ChannelT]:
        """Return the lane for a call; give it back with `done`. Raises ValueError if they are closed."""
        if self._pid != os.getpid():
            # gRPC's connections do not survive a fork; neither does a lock that another thread held.
            self._reset()
        with self._lock:
            if self._closed:
                raise ValueError("the channels are closed")
            if not self._lanes:
                credentials = self._credentials.channel_credentials(self.target)
                self._lanes = [Lane(self._make(self.target, credentials)) for _ in range(self._count)]
            self._turn += 1
            count = len(self._lanes)
            lane = min(
                (self._lanes[(self._turn + i) % count] for i in range(count)), key=lambda lane: lane.under_way
            )
            lane.under_way += 1
            return lane

    def done(self, lane: Lane[ChannelT]) -> None:
        """Say that a call on the lane has ended."""
        with self._lock:
            lane.under_way -= 1

    def close(self) -> list[ChannelT]:
        """Return the channels, for closing; there are no others from now on."""
        with self._lock:
            lanes, self._lanes, self._closed = self._lanes, [], True
            return [lane.channel for lane in lanes]

    def __getstate__(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "_credentials": self._credentials,
            "_count": self._count,
            "_make": self._make,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()


def channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    """Return a blocking channel."""
    if credentials is None:
        return grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
    return grpc.secure_channel(target, credentials, options=CHANNEL_OPTIONS)


def async_channel(target: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """Return a channel for coroutines."""
    if credentials is None:
        return grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(target, credentials, options=CHANNEL_OPTIONS)


def ask(rpc: Any, request: Any, timeout_s: float, metadata: Any) -> tuple[Any, Any]:
    """Return the response of a call, and its trailing metadata."""
    response, call = rpc.with_call(request, timeout=timeout_s, metadata=metadata)
    return response, call.trailing_metadata()


async def async_ask(rpc: Any, request: Any, timeout_s: float, metadata: Any) -> tuple[Any, Any]:
    """Return the response of a call, and its trailing metadata."""
    call = rpc(request, timeout=timeout_s, metadata=metadata)
    return await call, await call.trailing_metadata()


def close(channels: list[grpc.Channel]) -> None:
    """Close channels."""
    for channel in channels:
        channel.close()


async def async_close(channels: list[grpc.aio.Channel]) -> None:
    """Close channels."""
    for channel in channels:
        await channel.close(grace=None)
