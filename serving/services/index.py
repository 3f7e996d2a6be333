"""Handlers that describe indexes.

The handler that drops indexes.

Handlers of aliases.

The handler that returns a sample of queries.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
from google.protobuf.message import Message

from scannery.indexer import (
    Aliases,
    AlreadyExistsError,
    IndexerError,
    Manifest,
    NotFoundError,
    change_aliases,
    latest_version,
    read_manifest,
)
from scannery.indexer.spec.model import INDEX_NAME
from scannery.indexer.versions.versions import list_versions
from scannery.runtime.errors import (
    ConditionError,
    InvalidRequestError,
    OverloadedError,
    PermissionDeniedError,
    UnknownIndexError,
)
from scannery.runtime.retry import Deadline
from scannery.serving import limits
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.description import index_info
from scannery.serving.contract import (
    DELETE_ALIAS,
    DROP_INDEX,
    INDEX_SERVICE,
    KEPT_QUERIES,
    LIST_ALIASES,
    SET_ALIAS,
)
from scannery.serving.security.principal import current_seen, is_visible
from scannery.serving.services.registry import MessageT, UnaryMethod
from scannery.serving.services.shards import Shards
from scannery.serving.snapshot.snapshot import Snapshot, readable
from scannery.v1 import index_pb2 as pb
from scannery.v1 import search_pb2

__all__ = ["AliasMethods", "Indexes", "QuerySamples", "Removal", "SampleQueries", "with_index"]


_LOG = logging.getLogger(__name__)

DEFAULT_PAGE = 100
MAX_PAGE = 1000
MAX_QUERIES = 10_000

SampleQueries: TypeAlias = Callable[[Manifest, int], tuple[np.ndarray, int]]
"""Returns vectors of queries of an index, float32 (at most as many as the second argument, D), and of how many."""


class Indexes:
    """ListIndexes and GetIndex over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, shards: Shards) -> None:
        """Serve the indexes of `catalog`, whose rows `shards` have."""
        self._catalog, self._shards = catalog, shards
        self.methods = {
            f"/{INDEX_SERVICE}/ListIndexes": UnaryMethod(
                pb.ListIndexesRequest, self.list_indexes, "read", narrowed=True
            ),
            f"/{INDEX_SERVICE}/GetIndex": UnaryMethod(
                pb.GetIndexRequest, self.get_index, "read", narrowed=True
            ),
        }

    def list_indexes(self, request: pb.ListIndexesRequest, deadline: Deadline) -> pb.ListIndexesResponse:
        """Return a page of indexes, sorted by name; a page token is the last name of the page before."""
        size = request.page_size if request.HasField("page_size") else DEFAULT_PAGE
        if not 1 <= size <= MAX_PAGE:
            raise InvalidRequestError.at("page_size", f"must be 1 to {MAX_PAGE}, got {size}")
        with suppress(IndexerError):  # those that are known are listed
            self._catalog.aliases.refresh()
        names = [name for name in self._catalog.names() if name > request.page_token]
        page = names[:size]
        infos = [info for info in map(self._listed, page) if info]
        token = page[-1] if len(names) > size else ""
        return pb.ListIndexesResponse(indexes=infos, next_page_token=token)

    def get_index(self, request: pb.GetIndexRequest, deadline: Deadline) -> pb.GetIndexResponse:
        """Return the description of an index."""
        snapshot = self._catalog.snapshot(request.index)
        return pb.GetIndexResponse(index=self._info(snapshot, details=True))

    def _info(self, snapshot: Snapshot, *, details: bool) -> pb.IndexInfo:
        """Return the description of an open index."""
        name = snapshot.manifest.index
        manifest, counts = self._shards.description(snapshot)
        return index_info(
            manifest,
            details=details,
            narrowed=snapshot.seen is not None,
            counts=counts,
            problem=self._catalog.problem(name),
            aliases=self._catalog.aliases.of(name),
        )

    def _listed(self, name: str) -> pb.IndexInfo | None:
        """Return the description of an index, also of one that cannot be opened; None: it cannot be described."""
        try:
            snapshot = self._catalog.open_snapshot(name)
            if snapshot is not None:
                return self._info(snapshot, details=False)
        except UnknownIndexError:  # it was just removed
            return None
        except PermissionDeniedError:  # the caller's filter is not one of this index: it sees nothing of it
            return None
        except IndexerError as error:
            _LOG.debug("index %s is listed without being open: %s", name, error)
        try:
            # Embedded, listing does not open indexes.
            manifest = read_manifest(self._catalog.store, name)
        except NotFoundError:  # it was just removed
            return None
        except IndexerError as error:
            # An index that is broken, or was just removed, must not hide the others.
            _LOG.warning("index %s is left out of the list: %s", name, error)
            return None
        problem, aliases = self._catalog.problem(name), self._catalog.aliases.of(name)
        seen = current_seen(name)
        if seen is not None:
            manifest = readable(manifest, seen)
        return index_info(
            manifest, details=False, narrowed=seen is not None, problem=problem, aliases=aliases
        )


class Removal:
    """DropIndex over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: Catalog) -> None:
        """Drop indexes in the store of `catalog`."""
        self._catalog = catalog
        self.methods = {DROP_INDEX: UnaryMethod(pb.DropIndexRequest, self.drop, "admin")}

    def drop(self, request: pb.DropIndexRequest, deadline: Deadline) -> pb.DropIndexResponse:
        """Remove an index; other workers stop answering from it at once, other servers within a second."""
        name = request.index
        if not name:
            raise InvalidRequestError.at("index", "must not be empty")
        self._catalog.aliases.refresh()
        aliases = self._catalog.aliases.visible()
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
            lambda aliases: {alias: index for alias, index in aliases.items() if index != name},
        )
        return pb.DropIndexResponse(dropped=had_versions)

    def _may(self, name: str) -> bool:
        return self._catalog.serves(name) and is_visible(name)


_OWN_NAMES = (pb.DropIndexRequest, pb.SetAliasRequest)
"""Requests that do not take an alias in place of an index: they would change what it does not tell."""


def with_index(request: MessageT, resolve: Callable[[str], str]) -> MessageT:
    """Return a request with the index that its name stands for; the request itself if that is the same."""
    name: str = getattr(_addressed(request), "index", "")
    if not name or isinstance(request, _OWN_NAMES):
        return request
    index = resolve(name)
    if index == name:
        return request
    changed = type(request)()
    changed.CopyFrom(request)
    _addressed(changed).index = index
    return changed


def _addressed(request: Message) -> Any:
    """Return the message that has the name of the index: that in a request of a stream, or the request itself."""
    if isinstance(request, search_pb2.SearchStreamRequest):
        return getattr(request, request.WhichOneof("request") or "", request)
    return request


class AliasMethods:
    """SetAlias, DeleteAlias and ListAliases over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: Catalog) -> None:
        """Serve the aliases of the store of `catalog`."""
        self._catalog = catalog
        self.methods = {
            SET_ALIAS: UnaryMethod(pb.SetAliasRequest, self.set, "admin"),
            DELETE_ALIAS: UnaryMethod(pb.DeleteAliasRequest, self.delete, "admin"),
            LIST_ALIASES: UnaryMethod(pb.ListAliasesRequest, self.list, "read", narrowed=True),
        }

    def set(self, request: pb.SetAliasRequest, deadline: Deadline) -> pb.SetAliasResponse:
        """Set or move an alias; other processes follow within a second."""
        alias, index = request.alias, request.index
        self._check_names(alias, index)

        def with_alias(aliases: Aliases) -> Aliases:
            deadline.check()
            self._check_target(aliases, alias, index)
            return {**aliases, alias: index}

        previous = change_aliases(self._catalog.store, with_alias).get(alias, "")
        self._check_still_free(alias, index, previous)
        self._catalog.aliases.refresh()
        _LOG.info("alias %s stands for index %s, before for %s", alias, index, previous or "none")
        return pb.SetAliasResponse(previous=previous)

    def delete(self, request: pb.DeleteAliasRequest, deadline: Deadline) -> pb.DeleteAliasResponse:
        """Delete an alias."""
        alias = request.alias
        if not alias:
            raise InvalidRequestError.at("alias", "must not be empty")

        def without_alias(aliases: Aliases) -> Aliases:
            deadline.check()
            if alias in aliases and self._may(aliases[alias]):
                return {name: index for name, index in aliases.items() if name != alias}
            if request.missing_ok:
                return aliases
            raise UnknownIndexError(f"alias: there is no alias {alias!r:.100}", field="alias")

        before = change_aliases(self._catalog.store, without_alias)
        self._catalog.aliases.refresh()
        is_deleted = alias in before and self._may(before[alias])
        if is_deleted:
            _LOG.info("alias %s is deleted", alias)
        return pb.DeleteAliasResponse(deleted=is_deleted)

    def list(self, request: pb.ListAliasesRequest, deadline: Deadline) -> pb.ListAliasesResponse:
        """Return the aliases of the indexes that the caller can see."""
        self._catalog.aliases.refresh()
        return pb.ListAliasesResponse(aliases=self._catalog.aliases.visible())

    def _check_names(self, alias: str, index: str) -> None:
        if not INDEX_NAME.fullmatch(alias):
            raise InvalidRequestError.at("alias", f"must match {INDEX_NAME.pattern}, got {alias!r:.100}")
        if alias == index:
            raise InvalidRequestError.at(
                "index", f"must be another name than the alias, got {index!r:.100} for both"
            )
        if not self._may(alias):  # the rule for an index of this name
            what = f"alias {alias!r} is not among the names that these credentials and this server are for"
            raise PermissionDeniedError(f"alias: {what}", field="alias")

    def _check_target(self, aliases: Aliases, alias: str, index: str) -> None:
        if alias in aliases and not self._may(aliases[alias]):
            raise PermissionDeniedError(
                f"alias: {alias!r} stands for an index that these credentials are not for", field="alias"
            )
        if index in aliases and self._may(aliases[index]):
            raise InvalidRequestError.at("index", f"must be an index, got the alias {index!r:.100}")
        store = self._catalog.store
        if not self._may(index) or latest_version(store, index) is None:
            raise UnknownIndexError(f"index: there is no index {index!r:.100}", field="index")
        if latest_version(store, alias) is not None:
            raise AlreadyExistsError(f"alias: there is an index {alias!r}", field="alias")
        if alias not in aliases and len(aliases) >= limits.MAX_ALIASES:
            raise OverloadedError(f"the store has {limits.MAX_ALIASES} aliases, which is the limit")

    def _check_still_free(self, alias: str, index: str, previous: str) -> None:
        """Take the alias back if an index was created under its name, or its index dropped, after they were checked."""
        store = self._catalog.store
        is_taken, is_gone = latest_version(store, alias) is not None, latest_version(store, index) is None
        if not is_taken and not is_gone:
            return

        def taken_back(aliases: Aliases) -> Aliases:
            remaining = {name: target for name, target in aliases.items() if name != alias}
            return (
                aliases
                if aliases.get(alias) != index
                else {**remaining, alias: previous}
                if previous
                else remaining
            )

        change_aliases(store, taken_back)
        self._catalog.aliases.refresh()
        if is_gone:
            raise UnknownIndexError(f"index: there is no index {index!r:.100}", field="index")
        raise AlreadyExistsError(f"alias: there is an index {alias!r}", field="alias")

    def _may(self, index: str) -> bool:
        """Return whether the caller can see an index of this name here."""
        return self._catalog.serves(index) and is_visible(index)


class QuerySamples:
    """GetKeptQueries over one catalog. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, sample: SampleQueries | None) -> None:
        """Serve the queries that `sample` returns; None: none are kept."""
        self._catalog, self._sample = catalog, sample
        self.methods = {KEPT_QUERIES: UnaryMethod(pb.GetKeptQueriesRequest, self.get, "admin")}

    def get(self, request: pb.GetKeptQueriesRequest, deadline: Deadline) -> pb.GetKeptQueriesResponse:
        """Return a sample of the vectors of queries of an index."""
        limit = request.limit if request.HasField("limit") else MAX_QUERIES
        if not 1 <= limit <= MAX_QUERIES:
            raise InvalidRequestError.at("limit", f"must be 1 to {MAX_QUERIES}, got {limit}")
        manifest = self._catalog.snapshot(request.index).manifest
        if self._sample is None:
            return pb.GetKeptQueriesResponse()
        vectors_QD, seen = self._sample(manifest, limit)
        response = pb.GetKeptQueriesResponse(keeps=True, seen=seen)
        if len(vectors_QD):
            response.vectors.packed, response.vectors.dimensions = vectors_QD.tobytes(), manifest.dimensions
        return response
