"""Baseline of a Python server: an empty gRPC handler, which answers every call with the bytes of a file.

python -m benchmarks.empty_server FILE
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc

if TYPE_CHECKING:
    GenericHandler = grpc.GenericRpcHandler[Any, Any]
else:  # gRPC's classes are generic in its stubs only
    GenericHandler = grpc.GenericRpcHandler


class _Empty(GenericHandler):
    def __init__(self, answer: bytes) -> None:
        self._handler: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: answer)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handler


def main() -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((_Empty(Path(sys.argv[1]).read_bytes()),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"Serving on 127.0.0.1:{port};", flush=True)
    server.wait_for_termination()


if __name__ == "__main__":
    main()
