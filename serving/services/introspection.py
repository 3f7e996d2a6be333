"""The handler that tells callers who they are, and what answers them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from scannery.runtime.retry import Deadline
from scannery.serving.contract import WHO_AM_I
from scannery.serving.security.principal import ANONYMOUS, CURRENT, SCOPES
from scannery.serving.services.registry import UnaryMethod
from scannery.v1 import index_pb2 as pb

__all__ = ["EMBEDDED", "Introspection", "ServerIdentity"]

_LAST_S = datetime.max.replace(tzinfo=timezone.utc).timestamp() - 1
"""Later ends of credentials than a timestamp can have are told as none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """What answers calls."""

    role: Literal["all", "root", "leaf", "embedded"]
    id: str = ""
    """The same for all workers of a running server; empty: embedded."""
    asks: bool = False
    """Whether callers need credentials: a key, a token or a certificate."""


EMBEDDED = ServerIdentity(role="embedded")


class Introspection:
    """WhoAmI. Safe to use from several threads."""

    def __init__(self, identity: ServerIdentity) -> None:
        """Answer for the server with `identity`."""
        self._identity = identity
        self.methods = {WHO_AM_I: UnaryMethod(pb.WhoAmIRequest, self.who_am_i, "credentials")}

    def who_am_i(self, request: pb.WhoAmIRequest, deadline: Deadline) -> pb.WhoAmIResponse:
        """Describe the caller, without its secret, and the server."""
        caller = CURRENT.get() or ANONYMOUS
        response = pb.WhoAmIResponse(
            name=caller.name,
            scopes=[scope for scope in SCOPES if caller.may(scope)],
            all_indexes=caller.indexes is None,
            indexes=sorted(caller.indexes or ()),
            asks_for_credentials=self._identity.asks,
            server_version=_version(),
            server_id=self._identity.id,
            server_role=self._identity.role,
        )
        if caller.expires_s < _LAST_S:
            response.expires_at.FromSeconds(math.floor(caller.expires_s))
        return response


def _version() -> str:
    try:
        return version("scannery")
    except PackageNotFoundError:  # the sources run without being installed
        return ""
