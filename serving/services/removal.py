"""The handler that drops indexes."""

from __future__ import annotations

from scannery.indexer import NotFoundError, change_aliases
from scannery.indexer.versions.versions import list_versions
from scannery.runtime.deadline import Deadline
from scannery.runtime.errors import ConditionError, InvalidRequestError, UnknownIndexError
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.contract import DROP_INDEX
from scannery.serving.security.principal import CURRENT
from scannery.serving.services.registry import UnaryMethod
from scannery.v1 import index_pb2 as pb

__all__ = ["Removal"]


class Removal:
    """DropIndex over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: BaseCatalog) -> None:
        """Drop indexes in the store of `catalog`."""
        self._catalog = catalog
        self.methods = {DROP_INDEX: UnaryMethod(pb.DropIndexRequest, self.drop, "admin")}

    def drop(self, request: pb.DropIndexRequest, deadline: Deadline) -> pb.DropIndexResponse:
        """Remove an index; other workers stop answering from it at once, other servers within a second."""
        name = request.index
        if not name:
            raise InvalidRequestError.at("index", "must not be empty")
        aliases = self._catalog.aliases()
        if name in aliases:
            raise InvalidRequestError.at(
                "index",
                f"must be an index, got {name!r}, an alias of {aliases[name]!r}; delete_alias removes it",
            )
        if names := [alias for alias, index in aliases.items() if index == name]:
            raise ConditionError(
                f"index: {name!r} has the aliases {', '.join(names)}: move or delete them first",
                field="index",
            )
        deadline.check()
        try:
            had_versions = self._may(name) and bool(list_versions(self._catalog.store, name))
            if not self._may(name):
                raise NotFoundError(name)
            self._catalog.drop(name, deadline)
        except NotFoundError as error:
            if request.missing_ok:
                return pb.DropIndexResponse(dropped=False)
            raise UnknownIndexError(f"index: there is no index {name!r:.100}", field="index") from error
        # One that was set meanwhile would stand for the next index of this name.
        change_aliases(
            self._catalog.store,
            lambda known: {alias: index for alias, index in known.items() if index != name},
        )
        return pb.DropIndexResponse(dropped=had_versions)

    def _may(self, name: str) -> bool:
        principal = CURRENT.get()
        return self._catalog.serves(name) and (principal is None or principal.sees(name))
