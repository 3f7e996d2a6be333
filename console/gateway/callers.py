"""Who calls the console, as the target says."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase

from scannery.client.errors import ScanneryError
from scannery.client.request.server_calls import WHO_AM_I
from scannery.client.transport.base import AsyncTransport
from scannery.console.gateway.calls import DEFAULT_TIMEOUT_S
from scannery.v1.index_pb2 import WhoAmIResponse

__all__ = ["caller_of", "sees_all_of"]


async def caller_of(transport: AsyncTransport) -> WhoAmIResponse:
    """Return who the target says that the caller is; an empty answer: it does not say. Raises ScanneryError."""
    try:
        return await transport.call(WHO_AM_I, WHO_AM_I.request(), DEFAULT_TIMEOUT_S)
    except ScanneryError as error:
        if error.code == "UNIMPLEMENTED":
            return WhoAmIResponse()
        raise


def sees_all_of(caller: WhoAmIResponse, index: str) -> bool:
    """Return whether a caller sees all rows and fields of an index that it sees."""
    entries = [each for each in json.loads(caller.access_json or "[]") if fnmatchcase(index, each["index"])]
    return not entries or not entries[0].keys() & {"where", "fields"}
