"""The call of the page for a map by UMAP: asked until it is there."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from scannery.client.aio import AsyncClient
from scannery.client.request.maps import PROJECT
from scannery.client.transport.base import AsyncTransport
from scannery.console.gateway.callers import caller_of
from scannery.console.gateway.calls import DEFAULT_TIMEOUT_S, json_answer, json_body, translated
from scannery.console.gateway.messages import decoded, error_answer
from scannery.console.map.maps import MAX_POINTS, PlacedMap, PlacedMaps
from scannery.console.sessions import caller_secret
from scannery.runtime.errors import CodedError
from scannery.v1.search_pb2 import ScanRequest

__all__ = ["MapCalls"]


class MapCalls:
    """The calls.

    Args:
        transport: to the server or the store.

    """

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport
        self._client = AsyncClient(transport, timeout_s=DEFAULT_TIMEOUT_S)
        self.maps = PlacedMaps(transport)

    def routes(self) -> Sequence[Route]:
        """Return what answers which path."""
        return [Route("/map/umap", self._umap, methods=["POST"])]

    async def _umap(self, request: Request) -> Response:
        """Answer with the state of the map of a ProjectRequest, and with its positions when it is done.

        The sample is that of `Project` with the same limit and seed.
        """
        try:
            body = await json_body(request)
            wish = await translated(len(body), decoded, PROJECT, body)
            # Also tells whether the caller may read it.
            info = await self._client.index(wish.index).stats()
            scan = ScanRequest(
                index=info.name,
                where=wish.where if wish.HasField("where") else None,
                return_fields=["id"],
                return_vector=True,
                sample=min(wish.limit or MAX_POINTS, MAX_POINTS),
                seed=wish.seed,
            )
            names = info.named_vectors
            distance = names[wish.vector].distance if wish.vector in names else info.distance
            key = (
                caller_secret(),
                (await caller_of(self._transport)).access_json,  # which changes with its groups
                str(info.version),
                str(info.sequence),
                wish.vector,
                scan.SerializeToString().hex(),
            )
            entry = self.maps.of(
                key, scan, wish.vector, "euclidean" if distance == "squared_l2" else "cosine"
            )
        except CodedError as error:
            return json_answer(*error_answer(error))
        return json_answer(200, json.dumps(_described(entry)).encode())


def _described(entry: PlacedMap) -> dict[str, object]:
    described: dict[str, object] = {
        "state": entry.state,
        "error": entry.error,
        "seconds": time.monotonic() - entry.started_s,
    }
    if entry.positions_N2 is not None:
        x, y = (
            base64.b64encode(entry.positions_N2[:, axis].astype("<u2").tobytes()).decode() for axis in (0, 1)
        )
        described |= {"ids": list(entry.ids), "x": x, "y": y}
    return described
