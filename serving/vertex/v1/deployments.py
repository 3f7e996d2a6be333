"""Endpoints as they are stored, who may see and change them, and what is deployed there.

An endpoint is for the caller that created it, and for those who see all indexes. Others who see an index that is
deployed there may read it, without what else is deployed, and undeploy that index: one that is deployed cannot be
deleted. To all others it does not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from scannery.runtime.errors import PermissionDeniedError
from scannery.serving.vertex.shared.context import Facade
from scannery.serving.vertex.shared.names import ResourceName, is_visible, parse_name, unknown_resource
from scannery.serving.vertex.shared.ownership import owns
from scannery.serving.vertex.shared.state import Resources
from scannery.serving.vertex.v1.registry import ENDPOINTS, INDEXES

__all__ = [
    "ENDPOINT_KIND",
    "Deployment",
    "Deployments",
    "changeable_endpoint",
    "is_readable",
    "owner_of",
    "visible_anywhere",
    "visible_deployed",
    "visible_endpoint",
]

ENDPOINT_KIND = "indexEndpoints"
"""In names of resources."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """An index that is deployed, and that the caller may see."""

    index: str
    """Name of the index here."""
    record: Mapping[str, Any] | None
    """Description of the index; None: it has none."""


class Deployments:
    """Finds deployed indexes. Safe to use from several threads."""

    def __init__(self, facade: Facade) -> None:
        """Look in the state of a server."""
        self._facade = facade

    def find(self, endpoint: str, deployed: str) -> Deployment:
        """Return what is deployed at an endpoint under an id.

        Raises:
            InvalidRequestError: the endpoint's name is not valid.
            UnknownResourceError: there is no such endpoint, or nothing is deployed there under this id.

        """
        name = parse_name(endpoint, ENDPOINT_KIND, "index_endpoint")
        resources = self._facade.state.recent()
        record = resources.get(ENDPOINTS, {}).get(name.id, {}).get("deployed", {}).get(deployed)
        if record is None or not is_visible(record["index"]):
            resources = self._facade.state.read()  # another server may just have deployed it
        record = visible_deployed(visible_endpoint(resources, name, "index_endpoint"), deployed)
        return _deployment(record, resources)

    def find_anywhere(self, deployed: str) -> Deployment:
        """Return what is deployed under an id at any endpoint; of several that the caller sees, the first.

        A later one, of another caller that did not see it, does not take its place. Raises UnknownResourceError.
        """
        for resources in (self._facade.state.recent(), self._facade.state.read()):
            if records := visible_anywhere(resources, deployed):
                return _deployment(min(records, key=lambda record: record["created_s"]), resources)
        raise unknown_resource(deployed, "deployed_index_id")


def visible_endpoint(resources: Resources, name: ResourceName, field: str = "name") -> dict[str, Any]:
    """Return an endpoint that the caller may read; UnknownResourceError: there is none."""
    record: dict[str, Any] | None = resources.get(ENDPOINTS, {}).get(name.id)
    if record is None or record["parent"] != name.parent or not is_readable(record):
        raise unknown_resource(name, field)
    return record


def changeable_endpoint(resources: Resources, name: ResourceName, field: str = "name") -> dict[str, Any]:
    """As `visible_endpoint`, also PermissionDeniedError: the caller may read it, and no more."""
    record = visible_endpoint(resources, name, field)
    if not owns(owner_of(record)):
        raise PermissionDeniedError(
            f"{field}: only the owner of an endpoint, and who may administer all indexes, can change it",
            field=field,
        )
    return record


def is_readable(endpoint: Mapping[str, Any]) -> bool:
    """Return whether the caller may read an endpoint."""
    return owns(owner_of(endpoint)) or any(
        is_visible(each["index"]) for each in endpoint["deployed"].values()
    )


def owner_of(endpoint: Mapping[str, Any]) -> str:
    """Return the owner of an endpoint; empty: it was created without credentials, or by an earlier release."""
    owner: str = endpoint.get("owner", "")
    return owner


def visible_deployed(
    endpoint: Mapping[str, Any], id: str, field: str = "deployed_index_id"
) -> dict[str, Any]:
    """Return what is deployed at an endpoint under an id; UnknownResourceError: nothing that the caller may see."""
    record: dict[str, Any] | None = endpoint["deployed"].get(id)
    if record is None or not is_visible(record["index"]):
        raise unknown_resource(id, field)
    return record


def visible_anywhere(resources: Resources, id: str) -> list[Mapping[str, Any]]:
    """Return what is deployed under an id at any endpoint, as far as the caller may see it."""
    records = [each["deployed"].get(id) for each in resources.get(ENDPOINTS, {}).values()]
    return [record for record in records if record is not None and is_visible(record["index"])]


def _deployment(record: Mapping[str, Any], resources: Resources) -> Deployment:
    return Deployment(record["index"], resources.get(INDEXES, {}).get(record["index"]))
