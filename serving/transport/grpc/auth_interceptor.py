"""Authenticates each call by its headers, before its body is read."""

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
"""Returns a handler that answers with an error without reading the request."""


class AuthInterceptor(Interceptor):
    """Passes authenticated calls that the caller's scopes allow, and refuses others."""

    def __init__(
        self, authorizer: Authorizer, refuse: Refuse, *, probe: grpc.RpcMethodHandler[Any, Any] | None
    ) -> None:
        """Create the interceptor.

        Args:
            authorizer: authentication and scopes.
            refuse: returns the handler for a refused call.
            probe: answers health checks without credentials; None: they are refused.

        """
        self._authorizer = authorizer
        self._refuse = refuse
        self._probe = probe

    def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], grpc.RpcMethodHandler[Any, Any] | None],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the handler of the call, or one that refuses it; sets the principal."""
        details: Any = handler_call_details
        try:
            principal = self._authorizer.principal(details.method, details.invocation_metadata)
        except (UnauthenticatedError, PermissionDeniedError, UnsupportedError) as error:
            if details.method == HEALTH_CHECK and self._probe is not None:
                return self._probe
            return self._refuse(error)
        CURRENT.set(principal)
        return continuation(handler_call_details)
