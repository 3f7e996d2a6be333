"""The handlers of API v2 by path."""

from __future__ import annotations

from google.protobuf.message import Message

from scannery.runtime.errors import UnsupportedError
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.vertex.shared.calls import Call, ForeignMethod, registered
from scannery.serving.vertex.shared.context import Facade
from scannery.serving.vertex.v2.collection_methods import CollectionMethods
from scannery.serving.vertex.v2.collections import Collections
from scannery.serving.vertex.v2.index_methods import IndexMethods
from scannery.serving.vertex.v2.object_methods import ObjectMethods
from scannery.serving.vertex.v2.search_methods import SearchMethods
from scannery.vertex.v2 import collections_pb2 as pb

__all__ = ["PACKAGES", "v2_methods"]

_SERVICE = "VectorSearchService"

PACKAGES = ("google.cloud.vectorsearch.v1", "google.cloud.vectorsearch.v1beta")
"""Versions of the API under which the methods are registered; the second one has a few fields more."""


def v2_methods(facade: Facade) -> dict[str, UnaryMethod]:
    """Return the handlers of API v2 by path."""
    collections = Collections(facade.state)
    methods = (
        ForeignMethod(_SERVICE, "ImportDataObjects", pb.ImportDataObjectsRequest, _refused, "admin"),
        ForeignMethod(_SERVICE, "ExportDataObjects", pb.ExportDataObjectsRequest, _refused, "admin"),
        *CollectionMethods(facade, collections).methods,
        *IndexMethods(facade, collections).methods,
        *ObjectMethods(facade, collections).methods,
        *SearchMethods(facade, collections).methods,
    )
    return registered(methods, PACKAGES)


def _refused(request: Message, call: Call) -> Message:
    raise UnsupportedError(
        "imports and exports of data objects are not supported here: write with BatchCreateDataObjects and read with "
        "QueryDataObjects, or use `scannery export`"
    )
