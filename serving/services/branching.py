"""The handler that branches indexes."""

from __future__ import annotations

from datetime import datetime, timezone

from scannery.indexer import AlreadyExistsError, latest_version, read_manifest
from scannery.indexer.spec.model import INDEX_NAME
from scannery.live.maintenance.copies import branch_of
from scannery.runtime.errors import InvalidRequestError, UnknownIndexError
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.description import index_info
from scannery.serving.contract import BRANCH_INDEX
from scannery.serving.security.principal import CURRENT
from scannery.serving.services.creation import check_may_create, check_request_id, check_room
from scannery.serving.services.registry import UnaryMethod
from scannery.v1 import index_pb2 as pb

__all__ = ["Branching"]


class Branching:
    """BranchIndex over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: Catalog) -> None:
        """Branch indexes in the store of `catalog`."""
        self._catalog = catalog
        self.methods = {BRANCH_INDEX: UnaryMethod(pb.BranchIndexRequest, self.branch, "admin")}

    def branch(self, request: pb.BranchIndexRequest, deadline: Deadline) -> pb.BranchIndexResponse:
        """Make the branch; each process opens it within a second, or at the first request."""
        store, name = self._catalog.store, request.branch
        principal = CURRENT.get()
        if principal is not None:
            principal.check_scope("read")  # whoever may use the branch reads the index
        time = _time(request)
        check_request_id(request.request_id)
        if not INDEX_NAME.fullmatch(name):
            raise InvalidRequestError.at("branch", f"must match {INDEX_NAME.pattern}, got {name!r:.100}")
        check_may_create(self._catalog, name, "branch")
        if not self._catalog.serves(request.index) or latest_version(store, request.index) is None:
            raise UnknownIndexError(f"index: there is no index {request.index!r:.100}", field="index")
        check_room(self._catalog)
        deadline.check()
        try:
            self._catalog.branch(
                request.index,
                name,
                version=request.version if request.HasField("version") else None,
                time=time,
                request_id=request.request_id,
            )
        except AlreadyExistsError:
            manifest = branch_of(store, name, request.request_id)
            if manifest is None:
                raise
        else:
            manifest = read_manifest(store, name)
        return pb.BranchIndexResponse(index=index_info(manifest, details=True))


def _time(request: pb.BranchIndexRequest) -> datetime | None:
    if not request.HasField("time"):
        return None
    if request.HasField("version"):
        raise InvalidRequestError.at("time", "must not be given with `version`")
    try:
        return request.time.ToDatetime(tzinfo=timezone.utc)
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError.at("time", f"must be a time of the years 1 to 9999: {error}") from error
