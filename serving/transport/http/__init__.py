"""Connect over HTTP/1.1: every unary method of the contract, health, and a description of the API."""

from scannery.serving.transport.http.server import HttpEndpoint

__all__ = ["HttpEndpoint"]
