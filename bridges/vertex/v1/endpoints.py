"""IndexEndpointService: endpoints, and the indexes deployed there.

An endpoint stands for this server: to deploy an index takes no resources and no time, since it is served anyway. Only
the ids of indexes at endpoints are kept.

Endpoints as they are stored, who may see and change them, and what is deployed there.

An endpoint is for the caller that created it, and for those who see all indexes. Others who see an index that is
deployed there may read it, without what else is deployed, and undeploy that index: one that is deployed cannot be
deleted. To all others it does not exist.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message

from scannery.bridges.vertex.shared.calls import Call, ForeignMethod
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.names import (
    ResourceName,
    check_count,
    check_etag,
    check_kept,
    current_owner,
    etag_of,
    is_visible,
    new_id,
    owns,
    page_of,
    parse_name,
    parse_parent,
    unknown_resource,
)
from scannery.bridges.vertex.shared.state import Resources
from scannery.bridges.vertex.v1.registry import (
    ENDPOINTS,
    INDEXES,
    Registry,
    changed_paths,
    check_description,
    check_labels,
    check_texts,
    filtered,
    is_being_deleted,
    masked,
    timestamp,
)
from scannery.indexer import AlreadyExistsError
from scannery.runtime.errors import (
    ConditionError,
    InvalidRequestError,
    PermissionDeniedError,
    UnsupportedError,
)
from scannery.serving.config import split_address
from scannery.vertex.v1 import endpoint_pb2 as pb
from scannery.vertex.v1 import index_pb2, operations_pb2

__all__ = ["Deployment", "Deployments", "EndpointMethods"]


ENDPOINT_KIND = "indexEndpoints"
"""Word for an endpoint in names of resources."""


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


_CHANGEABLE = ("display_name", "description", "labels")
_DEPLOYED_ID = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
MAX_ENDPOINTS = 1_000
MAX_DEPLOYED = 10_000
MAX_ENDPOINT_BYTES = 1 << 14
MAX_DEPLOYED_BYTES = 1 << 12
MAX_OWNED_BYTES = 1 << 20
"""Bytes of the endpoints of an owner with what is deployed there, as JSON: a change of any resource writes all of them.
"""
_RESOURCES = (
    "automatic_resources",
    "dedicated_resources",
    "enable_access_logging",
    "enable_datapoint_upsert_logging",
    "reserved_ip_ranges",
    "deployment_group",
    "deployment_tier",
)
"""Fields of a deployed index that are kept and returned, and mean nothing here."""


class EndpointMethods:
    """Create, get, list, update and delete endpoints; deploy and undeploy indexes."""

    def __init__(self, facade: Facade, registry: Registry) -> None:
        """Keep endpoints in the state of a server."""
        self._facade, self._registry = facade, registry
        service = "IndexEndpointService"
        self.methods = (
            ForeignMethod(
                service, "CreateIndexEndpoint", pb.CreateIndexEndpointRequest, self.create, "admin"
            ),
            ForeignMethod(service, "GetIndexEndpoint", pb.GetIndexEndpointRequest, self.get, "read"),
            ForeignMethod(service, "ListIndexEndpoints", pb.ListIndexEndpointsRequest, self.list, "read"),
            ForeignMethod(
                service, "UpdateIndexEndpoint", pb.UpdateIndexEndpointRequest, self.update, "admin"
            ),
            ForeignMethod(
                service, "DeleteIndexEndpoint", pb.DeleteIndexEndpointRequest, self.delete, "admin"
            ),
            ForeignMethod(service, "DeployIndex", pb.DeployIndexRequest, self.deploy, "admin"),
            ForeignMethod(service, "UndeployIndex", pb.UndeployIndexRequest, self.undeploy, "admin"),
            ForeignMethod(
                service, "MutateDeployedIndex", pb.MutateDeployedIndexRequest, self.mutate, "admin"
            ),
        )

    def create(self, request: pb.CreateIndexEndpointRequest, call: Call) -> operations_pb2.Operation:
        """Create an endpoint."""
        parent, message = parse_parent(request.parent), request.index_endpoint
        check_texts(message, "index_endpoint")
        _check_size(message, MAX_ENDPOINT_BYTES, "index_endpoint")
        if message.encryption_spec.kms_key_name:
            raise UnsupportedError(
                "index_endpoint.encryption_spec: keys of customers are not supported",
                field="index_endpoint.encryption_spec",
            )
        name, now_s = ResourceName(parent, ENDPOINT_KIND, new_id()), time.time()
        record = {
            "parent": parent,
            "owner": (owner := current_owner()),
            "display_name": message.display_name,
            "description": message.description,
            "labels": dict(message.labels),
            "network": message.network,
            "private": message.enable_private_service_connect,
            "connect": MessageToDict(message.private_service_connect_config),
            "public": message.public_endpoint_enabled,
            "created_s": now_s,
            "updated_s": now_s,
            "deployed": {},
        }

        def add(resources: Resources) -> None:
            endpoints = resources.setdefault(ENDPOINTS, {})
            owned = len(_owned(resources, owner))
            check_count(owned, len(endpoints), MAX_ENDPOINTS, "endpoints exist")
            endpoints[name.id] = record
            _check_owned(resources, owner, "index_endpoint")

        after = self._facade.state.change(add)
        metadata = pb.CreateIndexEndpointOperationMetadata()
        return self._ended(name, call, metadata, self._described(name, after), owner=owner)

    def get(self, request: pb.GetIndexEndpointRequest, call: Call) -> pb.IndexEndpoint:
        """Return an endpoint."""
        name, resources = parse_name(request.name, ENDPOINT_KIND), self._facade.state.read()
        visible_endpoint(resources, name)
        return self._described(name, resources)

    def list(self, request: pb.ListIndexEndpointsRequest, call: Call) -> pb.ListIndexEndpointsResponse:
        """Return a page of the endpoints of a location."""
        parent, resources = parse_parent(request.parent), self._facade.state.read()
        items = [
            (id, self._described(ResourceName(parent, ENDPOINT_KIND, id), resources))
            for id, record in sorted(resources.get(ENDPOINTS, {}).items())
            if record["parent"] == parent and is_readable(record)
        ]
        page, token = page_of(
            filtered(items, request.filter),
            size=request.page_size,
            token=request.page_token,
            query_key=f"{parent}\n{request.filter}",
        )
        return pb.ListIndexEndpointsResponse(
            index_endpoints=[masked(item, request.read_mask) for item in page], next_page_token=token
        )

    def update(self, request: pb.UpdateIndexEndpointRequest, call: Call) -> pb.IndexEndpoint:
        """Change the description of an endpoint."""
        message = request.index_endpoint
        name = parse_name(message.name, ENDPOINT_KIND, "index_endpoint.name")
        paths = changed_paths(request.update_mask, message, _CHANGEABLE)
        check_labels(message.labels, "index_endpoint.labels")
        if "display_name" in paths:
            check_texts(message, "index_endpoint")
        check_description(message.description, "index_endpoint.description")

        def change(resources: Resources) -> None:
            record = changeable_endpoint(resources, name, "index_endpoint.name")
            check_etag(message.etag, etag_of(record), "index_endpoint.etag")
            for path in paths:
                value = getattr(message, path)
                record[path] = dict(value) if path == "labels" else value
            record["updated_s"] = time.time()
            _check_owned(resources, owner_of(record), "index_endpoint")

        return self._described(name, self._facade.state.change(change))

    def delete(self, request: pb.DeleteIndexEndpointRequest, call: Call) -> operations_pb2.Operation:
        """Delete an endpoint; one with deployed indexes is refused."""
        name, owner = parse_name(request.name, ENDPOINT_KIND), ""

        def change(resources: Resources) -> None:
            nonlocal owner
            record = changeable_endpoint(resources, name)
            owner = owner_of(record)
            if record["deployed"]:
                seen = sorted(id for id, each in record["deployed"].items() if is_visible(each["index"]))
                ids = ", ".join(seen) or "indexes that these credentials are not for"
                raise ConditionError(f"name: {ids} are deployed there; undeploy them first", field="name")
            del resources[ENDPOINTS][name.id]

        self._facade.state.change(change)
        return self._ended(name, call, index_pb2.DeleteOperationMetadata(), Empty(), owner=owner)

    def deploy(self, request: pb.DeployIndexRequest, call: Call) -> operations_pb2.Operation:
        """Let an id of an endpoint stand for an index."""
        name, message = (
            parse_name(request.index_endpoint, ENDPOINT_KIND, "index_endpoint"),
            request.deployed_index,
        )
        _check_deployable(message)
        index = self._registry.find(message.index, "deployed_index.index")
        record = {
            "index": index.name.id,
            "index_name": message.index,
            "display_name": message.display_name,
            "created_s": time.time(),
            "resources": _resources(message),
        }

        def change(resources: Resources) -> None:
            endpoint = changeable_endpoint(resources, name, "index_endpoint")
            owner = owner_of(endpoint)
            owned = _deployed_count(_owned(resources, owner))
            check_count(owned, _deployed_count(resources[ENDPOINTS]), MAX_DEPLOYED, "indexes are deployed")
            # Private endpoints are asked with the id alone, and look among those that their caller sees.
            if message.id in endpoint["deployed"] or visible_anywhere(resources, message.id):
                raise AlreadyExistsError(
                    f"deployed_index.id: {message.id!r} is deployed already", field="deployed_index.id"
                )
            # The index may have been deleted meanwhile.
            self._registry.find(message.index, "deployed_index.index", resources=resources)
            if is_being_deleted(resources, index.name.id):
                raise ConditionError(
                    f"deployed_index.index: {message.index!r:.300} is being deleted",
                    field="deployed_index.index",
                )
            endpoint["deployed"][message.id] = record
            endpoint["updated_s"] = time.time()
            _check_owned(resources, owner, "deployed_index")

        after = self._facade.state.change(change)
        deployed = self._deployed(message.id, after[ENDPOINTS][name.id]["deployed"][message.id])
        metadata = pb.DeployIndexOperationMetadata(deployed_index_id=message.id)
        return self._ended(
            name, call, metadata, pb.DeployIndexResponse(deployed_index=deployed), index=index.name.id
        )

    def undeploy(self, request: pb.UndeployIndexRequest, call: Call) -> operations_pb2.Operation:
        """Take an index back."""
        name, index = parse_name(request.index_endpoint, ENDPOINT_KIND, "index_endpoint"), ""

        def change(resources: Resources) -> None:
            nonlocal index
            record = visible_endpoint(resources, name, "index_endpoint")
            index = visible_deployed(record, request.deployed_index_id)["index"]
            del record["deployed"][request.deployed_index_id]
            record["updated_s"] = time.time()

        self._facade.state.change(change)
        metadata = pb.UndeployIndexOperationMetadata()
        return self._ended(name, call, metadata, pb.UndeployIndexResponse(), index=index)

    def mutate(self, request: pb.MutateDeployedIndexRequest, call: Call) -> operations_pb2.Operation:
        """Change what is kept about a deployed index; nothing else changes."""
        name, message = (
            parse_name(request.index_endpoint, ENDPOINT_KIND, "index_endpoint"),
            request.deployed_index,
        )
        _check_size(message, MAX_DEPLOYED_BYTES, "deployed_index")

        def change(resources: Resources) -> None:
            endpoint = visible_endpoint(resources, name, "index_endpoint")
            record = visible_deployed(endpoint, message.id, "deployed_index.id")
            record["resources"] = {**record["resources"], **_resources(message)}
            endpoint["updated_s"] = time.time()
            _check_owned(resources, owner_of(endpoint), "deployed_index")

        after = self._facade.state.change(change)
        record = after[ENDPOINTS][name.id]["deployed"][message.id]
        metadata = pb.MutateDeployedIndexOperationMetadata(deployed_index_id=message.id)
        response = pb.MutateDeployedIndexResponse(deployed_index=self._deployed(message.id, record))
        return self._ended(name, call, metadata, response, index=record["index"])

    def _ended(
        self,
        name: ResourceName,
        call: Call,
        metadata: Any,
        response: Any,
        *,
        index: str = "",
        owner: str = "",
    ) -> operations_pb2.Operation:
        now = timestamp(time.time())
        times = operations_pb2.GenericOperationMetadata(create_time=now, update_time=now)
        metadata.generic_metadata.CopyFrom(times)
        return self._facade.operations.finished(
            call, str(name), index=index, owner=owner, metadata=metadata, response=response
        )

    def _described(self, name: ResourceName, resources: Resources) -> pb.IndexEndpoint:
        record = resources[ENDPOINTS][name.id]
        endpoint = pb.IndexEndpoint(
            name=str(name),
            display_name=record["display_name"],
            description=record["description"],
            deployed_indexes=[
                self._deployed(id, deployed)
                for id, deployed in sorted(record["deployed"].items())
                if is_visible(deployed["index"])
            ],
            etag=etag_of(record),
            labels=record["labels"],
            create_time=timestamp(record["created_s"]),
            update_time=timestamp(record["updated_s"]),
            network=record["network"],
            enable_private_service_connect=record["private"],
            public_endpoint_enabled=record["public"],
            public_endpoint_domain_name=self._facade.address() if record["public"] else "",
        )
        if record["connect"]:
            ParseDict(record["connect"], endpoint.private_service_connect_config)
        return endpoint

    def _deployed(self, id: str, record: Mapping[str, Any]) -> pb.DeployedIndex:
        deployed = pb.DeployedIndex()
        ParseDict(record["resources"], deployed)
        deployed.id, deployed.index = id, record["index_name"]
        deployed.display_name = record["display_name"]
        deployed.create_time.CopyFrom(timestamp(record["created_s"]))
        deployed.index_sync_time.CopyFrom(timestamp(time.time()))
        if self._facade.config.private:
            host, _ = split_address(self._facade.config.private)
            deployed.private_endpoints.match_grpc_address = host
        return deployed


def _check_size(message: Message, limit_bytes: int, field: str) -> None:
    if message.ByteSize() > limit_bytes:
        raise InvalidRequestError.at(
            field, f"must have at most {limit_bytes} bytes, got {message.ByteSize()}"
        )


def _check_deployable(message: pb.DeployedIndex) -> None:
    _check_size(message, MAX_DEPLOYED_BYTES, "deployed_index")
    if not _DEPLOYED_ID.fullmatch(message.id):
        raise InvalidRequestError.at(
            "deployed_index.id",
            f"must begin with a letter and have letters, digits and `_`, at most 128, got {message.id!r:.140}",
        )
    if message.HasField("deployed_index_auth_config"):
        raise UnsupportedError(
            "deployed_index.deployed_index_auth_config: tokens are checked by the server's own options (--jwks)",
            field="deployed_index.deployed_index_auth_config",
        )


def _owned(resources: Resources, owner: str) -> dict[str, Any]:
    return {id: each for id, each in resources[ENDPOINTS].items() if owner_of(each) == owner}


def _deployed_count(endpoints: Mapping[str, Any]) -> int:
    return sum(len(each["deployed"]) for each in endpoints.values())


def _check_owned(resources: Resources, owner: str, field: str) -> None:
    check_kept(_owned(resources, owner), MAX_OWNED_BYTES, "all endpoints of their owner", field)


def _resources(message: pb.DeployedIndex) -> dict[str, Any]:
    """Return what is kept of a deployed index besides its names."""
    kept = pb.DeployedIndex()
    for field, value in message.ListFields():
        if field.name in _RESOURCES:
            if field.message_type is not None:
                getattr(kept, field.name).CopyFrom(value)
            elif field.is_repeated:
                getattr(kept, field.name).extend(value)
            else:
                setattr(kept, field.name, value)
    resources: dict[str, Any] = MessageToDict(kept)
    return resources
