"""The gate: every call passes here when its headers have arrived and nothing else of it was read."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc

from scannery.runtime.errors import PermissionDeniedError, UnauthenticatedError, UnsupportedError
from scannery.serving.security.authorization import Authorizer
from scannery.serving.security.principal import CURRENT

if TYPE_CHECKING:
    Interceptor = grpc.ServerInterceptor[Any, Any]
else:  # gRPC's classes are generic in its stubs only
    Interceptor = grpc.ServerInterceptor

__all__ = ["HEALTH_CHECK", "AuthInterceptor", "Refuse"]

HEALTH_CHECK = "/grpc.health.v1.Health/Check"

Refuse = Callable[[Exception], "grpc.RpcMethodHandler[Any, Any]"]
"""From an error to the handler that answers with it, without reading the request."""


class AuthInterceptor(Interceptor):
    """Lets known callers through to what their scopes allow."""

    def __init__(
        self, authorizer: Authorizer, refuse: Refuse, *, probe: grpc.RpcMethodHandler[Any, Any] | None
    ) -> None:
        """Take what answers strangers: `refuse`, and for health checks `probe` (None: refused, too)."""
        self._authorizer = authorizer
        self._refuse = refuse
        self._probe = probe

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of the call, or one that refuses it."""
        details: Any = handler_call_details
        try:
            principal = self._authorizer.principal(details.method, details.invocation_metadata)
        except (UnauthenticatedError, PermissionDeniedError, UnsupportedError) as error:
            if details.method == HEALTH_CHECK and self._probe is not None:
                return self._probe
            return self._refuse(error)
        CURRENT.set(principal)
        return continuation(handler_call_details)
