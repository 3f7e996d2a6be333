"""Handlers of the versions of an index: list, describe, roll back."""

from __future__ import annotations

import logging

from scannery.indexer import AlreadyExistsError, IndexerError, NotFoundError, read_manifest
from scannery.indexer.versions.versions import list_versions
from scannery.runtime.errors import ConditionError, InvalidRequestError, UnknownIndexError
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.description import index_info, version_info
from scannery.serving.contract import GET_VERSION, LIST_VERSIONS, ROLLBACK_INDEX
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.status import status_for_callers
from scannery.v1 import index_pb2 as pb

__all__ = ["Versions"]

_LOG = logging.getLogger(__name__)

DEFAULT_PAGE = 20
MAX_PAGE = 100


class Versions:
    """ListVersions, GetVersion and RollbackIndex over one catalog. Safe to use from several threads.

    They read the store and not the open index: a rollback repairs an index that cannot be opened.
    """

    def __init__(self, catalog: Catalog) -> None:
        """Serve the versions in the store of `catalog`."""
        self._catalog = catalog
        self.methods = {
            LIST_VERSIONS: UnaryMethod(pb.ListVersionsRequest, self.list_page, "read"),
            GET_VERSION: UnaryMethod(pb.GetVersionRequest, self.get, "read"),
            ROLLBACK_INDEX: UnaryMethod(pb.RollbackIndexRequest, self.roll_back, "admin"),
        }

    def list_page(self, request: pb.ListVersionsRequest, deadline: Deadline) -> pb.ListVersionsResponse:
        """Return a page of versions, the newest first; a page token is the last number of the page before."""
        size = request.page_size if request.HasField("page_size") else DEFAULT_PAGE
        if not 1 <= size <= MAX_PAGE:
            raise InvalidRequestError.at("page_size", f"must be 1 to {MAX_PAGE}, got {size}")
        numbers = self._numbers(request.index)
        if request.page_token:
            before = _number(request.page_token)
            numbers = [number for number in numbers if number < before]
        infos = []
        for number in numbers[-size:][::-1]:
            deadline.check()
            if (info := self._listed(request.index, number)) is not None:
                infos.append(info)
        token = str(numbers[-size]) if len(numbers) > size else ""
        if infos and not request.page_token:
            infos[0].current = True
        return pb.ListVersionsResponse(versions=infos, next_page_token=token)

    def get(self, request: pb.GetVersionRequest, deadline: Deadline) -> pb.GetVersionResponse:
        """Describe a version with its spec and curves."""
        newest = self._numbers(request.index)[-1]
        deadline.check()
        manifest = read_manifest(self._catalog.store, request.index, request.version or newest)
        info = version_info(manifest, current=manifest.version == newest, details=True)
        return pb.GetVersionResponse(version=info)

    def roll_back(self, request: pb.RollbackIndexRequest, deadline: Deadline) -> pb.RollbackIndexResponse:
        """Publish a version again and open it here; other servers open it within a second."""
        index = request.index
        self._numbers(index)
        if not request.version:
            raise InvalidRequestError.at("version", "is required: the version to publish again")
        deadline.check()
        try:
            manifest = self._catalog.roll_back(index, request.version, if_version=request.if_version)
        except AlreadyExistsError as error:
            raise ConditionError(
                f"if_version: another version of index {index!r} was published meanwhile; nothing was changed",
                field="if_version",
            ) from error
        aliases = self._catalog.aliases.of(index)
        return pb.RollbackIndexResponse(index=index_info(manifest, details=True, aliases=aliases))

    def _numbers(self, index: str) -> list[int]:
        """Return the numbers of the versions of an index, ascending; UnknownIndexError if there are none."""
        numbers = list_versions(self._catalog.store, index) if self._catalog.serves(index) else []
        if not numbers:
            raise UnknownIndexError(f"index: there is no index {index!r:.100}", field="index")
        return numbers

    def _listed(self, index: str, number: int) -> pb.VersionInfo | None:
        """Return the description of a version, also of one that cannot be read; None: gc has just removed it."""
        try:
            manifest = read_manifest(self._catalog.store, index, number)
        except NotFoundError:
            return None
        except IndexerError as error:
            _LOG.warning("index %s: version %d cannot be read: %s", index, number, error)
            return pb.VersionInfo(version=number, problem=status_for_callers(error)[1])
        return version_info(manifest, current=False, details=False)


def _number(token: str) -> int:
    if not (token.isascii() and token.isdigit() and len(token) < 20):
        raise InvalidRequestError.at("page_token", f"is not one of this method: {token!r:.100}")
    return int(token)
