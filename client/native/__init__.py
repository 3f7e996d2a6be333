"""Searches without gRPC: the native protocol (proto/scannery/v1/native.proto), for threads and for coroutines."""

from scannery.client.native.aio import AsyncNativeCalls
from scannery.client.native.calls import NativeCalls

__all__ = ["AsyncNativeCalls", "NativeCalls"]
