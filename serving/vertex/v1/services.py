"""All methods of the API v1, under the paths of its versions."""

from __future__ import annotations

from scannery.serving.services.registry import UnaryMethod
from scannery.serving.vertex.shared.calls import registered
from scannery.serving.vertex.shared.context import Facade
from scannery.serving.vertex.v1.contents import ContentsWriter
from scannery.serving.vertex.v1.deployments import Deployments
from scannery.serving.vertex.v1.endpoints import EndpointMethods
from scannery.serving.vertex.v1.indexes import IndexMethods
from scannery.serving.vertex.v1.matches import Matches, MatchMethods
from scannery.serving.vertex.v1.private import PRIVATE_PACKAGE, PrivateMethods
from scannery.serving.vertex.v1.registry import Registry
from scannery.serving.vertex.v1.stream_updates import StreamUpdateMethods

__all__ = ["PACKAGES", "methods_v1"]

PACKAGES = ("google.cloud.aiplatform.v1", "google.cloud.aiplatform.v1beta1")
"""Their messages have the same numbers; the service's own SDK mixes both."""


def methods_v1(facade: Facade) -> dict[str, UnaryMethod]:
    """Return the handlers by path."""
    registry, deployments, matches = Registry(facade), Deployments(facade), Matches(facade)
    public = (
        *IndexMethods(facade, registry, ContentsWriter(facade)).methods,
        *StreamUpdateMethods(facade, registry).methods,
        *EndpointMethods(facade, registry).methods,
        *MatchMethods(deployments, matches).methods,
    )
    private = PrivateMethods(deployments, matches).methods
    return {**registered(public, PACKAGES), **registered(private, [PRIVATE_PACKAGE])}
