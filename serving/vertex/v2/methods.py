"""The handlers of API v2 by path."""

from __future__ import annotations

from scannery.serving.services.registry import UnaryMethod
from scannery.serving.vertex.shared.calls import registered
from scannery.serving.vertex.shared.context import Facade
from scannery.serving.vertex.v2.collection_methods import CollectionMethods
from scannery.serving.vertex.v2.collections import Collections
from scannery.serving.vertex.v2.data_objects.methods import ObjectMethods
from scannery.serving.vertex.v2.index_methods import IndexMethods
from scannery.serving.vertex.v2.search_methods import SearchMethods
from scannery.serving.vertex.v2.transfers.methods import TransferMethods

__all__ = ["PACKAGES", "v2_methods"]

PACKAGES = ("google.cloud.vectorsearch.v1", "google.cloud.vectorsearch.v1beta")
"""Versions of the API under which the methods are registered; the second one has a few fields more."""


def v2_methods(facade: Facade) -> dict[str, UnaryMethod]:
    """Return the handlers of API v2 by path."""
    collections = Collections(facade.state)
    methods = (
        *CollectionMethods(facade, collections).methods,
        *IndexMethods(facade, collections).methods,
        *ObjectMethods(facade, collections).methods,
        *SearchMethods(facade, collections).methods,
        *TransferMethods(facade, collections).methods,
    )
    return registered(methods, PACKAGES)
