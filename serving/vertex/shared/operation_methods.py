"""The service that clients ask for the state of operations."""

from __future__ import annotations

import time

from google.protobuf.empty_pb2 import Empty

from scannery.runtime.errors import UnsupportedError
from scannery.serving.scheduling.permits import waiting
from scannery.serving.vertex.shared.calls import Call, ForeignMethod
from scannery.serving.vertex.shared.operations import Operations
from scannery.serving.vertex.shared.pages import page_of
from scannery.vertex.v1 import operations_pb2 as pb

__all__ = ["OPERATIONS_PACKAGE", "OperationMethods"]

OPERATIONS_PACKAGE = "google.longrunning"
MAX_WAIT_S = 60.0
POLL_S = 0.1


class OperationMethods:
    """`google.longrunning.Operations`."""

    def __init__(self, operations: Operations) -> None:
        """Answer for the operations of a store."""
        self._operations = operations
        service = "Operations"
        self.methods = (
            ForeignMethod(service, "GetOperation", pb.GetOperationRequest, self.get, "read"),
            ForeignMethod(service, "ListOperations", pb.ListOperationsRequest, self.list, "read"),
            ForeignMethod(service, "WaitOperation", pb.WaitOperationRequest, self.wait, "read"),
            ForeignMethod(service, "CancelOperation", pb.CancelOperationRequest, self.cancel, "admin"),
            ForeignMethod(service, "DeleteOperation", pb.DeleteOperationRequest, self.delete, "admin"),
        )

    def get(self, request: pb.GetOperationRequest, call: Call) -> pb.Operation:
        """Return an operation."""
        return self._operations.get(request.name)

    def list(self, request: pb.ListOperationsRequest, call: Call) -> pb.ListOperationsResponse:
        """Return the operations of a resource or location, the newest first."""
        if request.filter:
            raise UnsupportedError("filter: operations are listed without a filter", field="filter")
        name = request.name.removesuffix("/operations")
        found = [*self._operations.below(name)]
        page, token = page_of(found, size=request.page_size, token=request.page_token, asked=name)
        return pb.ListOperationsResponse(operations=page, next_page_token=token)

    def wait(self, request: pb.WaitOperationRequest, call: Call) -> pb.Operation:
        """Return an operation when it has ended, or after the timeout."""
        limit_s = float(request.timeout.seconds) if request.HasField("timeout") else MAX_WAIT_S
        # A second is left to answer before the caller gives up.
        until_s = time.monotonic() + min(limit_s, MAX_WAIT_S, max(0.0, call.deadline.remaining_s - 1))
        operation = self._operations.get(request.name)
        with waiting():
            while not operation.done and time.monotonic() < until_s:
                # Another process may run the operation, so that there is nothing to wait on.
                time.sleep(POLL_S)
                operation = self._operations.get(request.name)
        return operation

    def cancel(self, request: pb.CancelOperationRequest, call: Call) -> Empty:
        """Refuse: an operation that has ended cannot be cancelled, and one that runs ends by itself."""
        if self._operations.get(request.name).done:
            return Empty()
        raise UnsupportedError("operations cannot be cancelled")

    def delete(self, request: pb.DeleteOperationRequest, call: Call) -> Empty:
        """Forget an operation that has ended."""
        self._operations.delete(request.name)
        return Empty()
