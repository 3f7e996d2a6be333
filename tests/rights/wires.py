"""Servers with keys for the callers: over gRPC, streams and HTTP, alone or as a root with leaves."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc

from scannery.serving import LeavesConfig, SecurityConfig, Server, ServerConfig
from scannery.serving.security.api_keys import KeyFile
from scannery.v1 import index_pb2, search_pb2
from tests.cluster.servers import CHECK_EVERY_S, leaf_server
from tests.rights.principals import CALLERS, Caller
from tests.rights.questions import INDEX
from tests.rights.world import TIMEOUT_S, Refusal, path_of

__all__ = ["ServerWire", "served"]

GROUPS_SEEN_S = 1.2
"""Seconds after which a server has read a changed file of groups."""
KINDS = ("gRPC", "stream", "HTTP")


class ServerWire:
    """A server, asked over each of its wires in turn."""

    def __init__(self, server: Server, keys: Mapping[str, str], groups_file: Path) -> None:
        self._keys, self._groups_file, self._number = keys, groups_file, 0
        self._channel = grpc.insecure_channel(server.address)
        self._http = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=TIMEOUT_S)

    def set_groups(self, groups: Mapping[str, list[str]]) -> None:
        """As `Wire.set_groups`."""
        table = {f"{name}/{self._keys[name].split('_')[1]}": each for name, each in groups.items()}
        _write_private(self._groups_file, json.dumps(table))
        time.sleep(GROUPS_SEEN_S)

    def ask(self, caller: Caller | None, method: str, request: Any) -> Any:
        """As `Wire.ask`."""
        key = self._keys["all" if caller is None else caller.name]
        self._number += 1
        kind = KINDS[self._number % len(KINDS)]
        if kind == "HTTP":
            return self._posted(key, method, request)
        if kind == "stream" and method in ("Search", "SearchMany"):
            return self._streamed(key, request)
        call = self._channel.unary_unary(
            path_of(method), request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=_answer_type(method).FromString,
        )  # fmt: skip
        try:
            return call(request, timeout=TIMEOUT_S, metadata=(("authorization", f"Bearer {key}"),))
        except grpc.RpcError as error:
            return Refusal(error.code().name, error.details() or "")

    def _streamed(self, key: str, request: Any) -> Any:
        call = self._channel.stream_stream(
            path_of("SearchStream"), request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=search_pb2.SearchStreamResponse.FromString,
        )  # fmt: skip
        field = "search" if isinstance(request, search_pb2.SearchRequest) else "search_many"
        messages = iter([search_pb2.SearchStreamRequest(**{field: request})])
        [answer] = call(messages, timeout=TIMEOUT_S, metadata=(("authorization", f"Bearer {key}"),))
        if answer.HasField("error"):
            [code] = [each.name for each in grpc.StatusCode if each.value[0] == answer.error.code]
            return Refusal(code, answer.error.detail.message)
        return getattr(answer, field)

    def _posted(self, key: str, method: str, request: Any) -> Any:
        headers = {"content-type": "application/proto", "authorization": f"Bearer {key}"}
        self._http.request("POST", path_of(method), request.SerializeToString(), headers)
        response = self._http.getresponse()
        data = response.read()
        if response.status == 200:
            return _answer_type(method).FromString(data)
        error = json.loads(data)
        return Refusal(error["code"].upper(), error["message"])

    def close(self) -> None:
        """Close the connections."""
        self._channel.close()
        self._http.close()


def _answer_type(method: str) -> Any:
    name = f"{method}Response"
    return getattr(search_pb2, name, None) or getattr(index_pb2, name)


def _write_private(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)


@contextmanager
def served(folder: Path, store: Path, *, leaves: int = 0) -> Iterator[ServerWire]:
    """Give the wire of a new server of a store; `leaves`: of a root with so many groups, if any."""
    key_file, groups = KeyFile(folder / "keys.json"), folder / "groups.json"
    keys = {"all": key_file.create("all", scopes=["read", "write", "admin"])[1]}
    for caller in CALLERS:
        scopes = ["read", "write"] if caller.writes else ["read"]
        access = [{"index": f"{INDEX[:5]}*", **caller.access}]
        keys[caller.name] = key_file.create(caller.name, scopes=scopes, access=access)[1]
    _write_private(groups, "{}")
    security = SecurityConfig(keys_file=str(key_file.path), groups_file=str(groups))
    with ExitStack() as stack:
        options: dict[str, Any] = {"drain_s": 5}
        if leaves:
            members = [stack.enter_context(leaf_server(store, group, leaves)) for group in range(leaves)]
            target = ",".join(leaf.address for leaf in members)
            options |= {"role": "root", "leaves": LeavesConfig(target=target), "check_every_s": CHECK_EVERY_S}
        server = Server(ServerConfig(store=str(store), listen="127.0.0.1:0", security=security, **options))
        wire = ServerWire(stack.enter_context(server), keys, groups)
        stack.callback(wire.close)
        yield wire
