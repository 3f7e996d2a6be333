"""What a call to the leaves of a cluster costs a root: CPU time by number of groups, with empty answers.

python -m benchmarks.leaves [--calls N] [--callers N]

The leaves are processes with empty handlers. CPU time is that of the root's process, all threads: of calls one after
another, and of several callers at once.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import grpc

from scannery.runtime.retry import Deadline
from scannery.serving.config import LeavesConfig
from scannery.serving.contract import LEAF_SERVICE
from scannery.serving.leaves.groups import LeafGroups
from scannery.v1.leaf_pb2 import At, LeafIndex, LeafSearchRequest, LeafSearchResponse, LeafStatus

if TYPE_CHECKING:
    GenericHandler = grpc.GenericRpcHandler[Any, Any]
else:  # gRPC's classes are generic in its stubs only
    GenericHandler = grpc.GenericRpcHandler

GROUPS = (1, 2, 4, 8)
AT = At(index="bench", index_id="a", version=1)


class _Leaf(GenericHandler):
    def __init__(self, group: int, groups: int) -> None:
        status = LeafStatus(group=group, groups=groups, indexes=[LeafIndex(at=AT)]).SerializeToString()
        self._status: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: status)
        self._empty: Any = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._status if handler_call_details.method.endswith("/GetStatus") else self._empty


def _serve(group: int, groups: int) -> None:
    server = grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((_Leaf(group, groups),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print(f"127.0.0.1:{port}", flush=True)
    server.wait_for_termination()


def _connected(stack: ExitStack, groups: int) -> LeafGroups:
    command = [sys.executable, "-m", "benchmarks.leaves", "--groups", str(groups), "--leaf"]
    started = [
        subprocess.Popen([*command, str(group)], stdout=subprocess.PIPE, text=True) for group in range(groups)
    ]
    addresses = []
    for process in started:
        stack.callback(process.kill)
        assert process.stdout is not None
        addresses.append(process.stdout.readline().strip())
    leaves = LeafGroups(LeavesConfig(target=",".join(addresses)))
    stack.callback(leaves.close)
    leaves.start(60)
    return leaves


def _measure(leaves: LeafGroups, calls: int, callers: int) -> tuple[float, float]:
    """Return CPU time and time of a call, in seconds; the time divides that of all calls by the calls of one caller."""
    request = LeafSearchRequest(at=AT, queries=1, wanted=10)
    path = f"/{LEAF_SERVICE}/Search"

    def work(count: int) -> None:
        for _ in range(count):
            leaves.call(path, request, LeafSearchResponse, Deadline.after(60), at=AT)

    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(work, [50] * callers))
        cpu_s, begin_s = time.process_time(), time.perf_counter()
        list(pool.map(work, [calls // callers] * callers))
        cpu_s, took_s = time.process_time() - cpu_s, time.perf_counter() - begin_s
    return cpu_s / calls, took_s / (calls // callers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--callers", type=int, default=8)
    parser.add_argument("--groups", type=int)
    parser.add_argument("--leaf", type=int)
    told = parser.parse_args()
    if told.leaf is not None:
        _serve(told.leaf, told.groups)
        return
    print(f"| groups | one caller: CPU µs | time µs | {told.callers} callers: CPU µs | time µs |")
    print("| --- | --- | --- | --- | --- |")
    for groups in GROUPS if told.groups is None else (told.groups,):
        with ExitStack() as stack:
            leaves = _connected(stack, groups)
            figures = [
                round(value * 1e6)
                for callers in (1, told.callers)
                for value in _measure(leaves, told.calls, callers)
            ]
        print("|", " | ".join(str(figure) for figure in (groups, *figures)), "|", flush=True)


if __name__ == "__main__":
    main()
