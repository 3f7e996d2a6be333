"""A description of the API in OpenAPI 3.1, from the descriptors of the contract."""

from __future__ import annotations

import json

from scannery.serving.methods import Methods

__all__ = ["description"]


def description(methods: Methods) -> bytes:
    """Return the description as JSON."""
    return json.dumps(
        {"openapi": "3.1.0", "info": {"title": "Scannery", "version": "v1"}, "paths": {}}
    ).encode()
