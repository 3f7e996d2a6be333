"""The caller of a gRPC call, whose address is known in its handler only."""

from __future__ import annotations

from urllib.parse import unquote

import grpc

from scannery.serving.security.principal import CURRENT, Principal, anonymous_at
from scannery.serving.transport.lifecycle import current_principal

__all__ = ["caller_of"]


def caller_of(context: grpc.ServicerContext) -> Principal:
    """Return the caller, with its address if it has no credentials, and set it for the rest of the call."""
    principal = current_principal()
    if principal.is_anonymous and not principal.address:
        # ipv4:127.0.0.1:5000, ipv6:%5B::1%5D:5000, unix:…
        kind, _, address = context.peer().partition(":")
        host = unquote(address).rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else kind
        principal = anonymous_at(host)
        CURRENT.set(principal)
    return principal
