"""The transports of the managed service's clients, with channels that have no TLS."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["make_insecure"]

_SERVICES = {
    "google.cloud.aiplatform_v1": ("index_service", "index_endpoint_service", "match_service"),
    "google.cloud.aiplatform_v1beta1": ("index_service", "index_endpoint_service", "match_service"),
    "google.cloud.vectorsearch_v1": (
        "vector_search_service",
        "data_object_service",
        "data_object_search_service",
    ),
    "google.cloud.vectorsearch_v1beta": (
        "vector_search_service",
        "data_object_service",
        "data_object_search_service",
    ),
}


def make_insecure() -> None:
    """Replace `create_channel` of the gRPC transports of every installed client."""
    found = [
        name
        for package, services in _SERVICES.items()
        if _has(package)
        for name in _modules(package, services)
    ]
    if not found:
        raise ImportError("neither google-cloud-aiplatform nor google-cloud-vectorsearch is installed")
    for name in found:
        module = importlib.import_module(name)
        for kind, is_asyncio in (("GrpcTransport", False), ("GrpcAsyncIOTransport", True)):
            for transport in vars(module).values():
                if isinstance(transport, type) and transport.__name__.endswith(kind):
                    transport.create_channel = classmethod(  # type: ignore[attr-defined]
                        _asyncio_channel if is_asyncio else _channel
                    )


def _has(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


def _modules(package: str, services: tuple[str, ...]) -> list[str]:
    return [f"{package}.services.{service}.transports" for service in services]


def _channel(cls: type, /, host: str, *, options: Any = None, **ignored: Any) -> Any:
    import grpc

    return grpc.insecure_channel(host, options=options)


def _asyncio_channel(cls: type, /, host: str, *, options: Any = None, **ignored: Any) -> Any:
    import grpc.aio

    return grpc.aio.insecure_channel(host, options=options)
