"""The native protocol: searches over a connection of their own, without HTTP/2 (proto/scannery/v1/native.proto)."""

from scannery.serving.native.endpoint import Native

__all__ = ["Native"]
