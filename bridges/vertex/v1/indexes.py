"""IndexService: indexes as resources. Each is an index of the store, whose name is the id of the resource.

Indexes that were made through our own API, or by a build, are resources too if they have vectors: at every location,
and without a description of their own until they get one.

All methods of the API v1, under the paths of its versions.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing, suppress
from typing import Any

from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import ParseDict
from google.protobuf.struct_pb2 import Value

from scannery.bridges.vertex.shared.calls import Call, ForeignMethod, registered
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.names import (
    ResourceName,
    check_etag,
    check_kept,
    etag_of,
    is_visible,
    new_id,
    page_of,
    parse_name,
    parse_parent,
)
from scannery.bridges.vertex.shared.state import Resources
from scannery.bridges.vertex.v1.contents import ContentsWriter
from scannery.bridges.vertex.v1.endpoints import Deployments, EndpointMethods
from scannery.bridges.vertex.v1.index_settings import Contents, parse_metadata, parse_settings
from scannery.bridges.vertex.v1.matches import Matches, MatchMethods
from scannery.bridges.vertex.v1.private import PRIVATE_PACKAGE, PrivateMethods
from scannery.bridges.vertex.v1.queries import Measure, measure_of
from scannery.bridges.vertex.v1.registry import (
    BATCH,
    DELETIONS,
    ENDPOINTS,
    INDEX_KIND,
    INDEXES,
    STREAM,
    KnownIndex,
    Registry,
    changed_paths,
    check_description,
    check_labels,
    check_texts,
    filtered,
    masked,
    timestamp,
)
from scannery.bridges.vertex.v1.stream_updates import StreamUpdateMethods
from scannery.indexer import IndexerError
from scannery.runtime.errors import (
    ConditionError,
    InvalidRequestError,
    ServingError,
    UnknownResourceError,
    UnsupportedError,
)
from scannery.serving.bridging import Deadline, UnaryMethod
from scannery.vertex.v1 import index_pb2 as pb
from scannery.vertex.v1 import operations_pb2

__all__ = ["PACKAGES", "IndexMethods", "methods_v1"]


_LOG = logging.getLogger(__name__)


_CHANGEABLE = ("display_name", "description", "labels", "metadata")
MAX_DESCRIBED_BYTES = 1 << 21
"""Bytes of the descriptions of all indexes, as JSON: every change of any resource writes all of them."""
UNDO_S = 30.0
"""Seconds in which it is tried to drop an index that cannot be described."""


class IndexMethods:
    """Create, get, list, update and delete indexes."""

    def __init__(self, facade: Facade, registry: Registry, contents: ContentsWriter) -> None:
        """Serve the indexes of a server.

        Args:
            facade: parts of the server.
            registry: finds indexes.
            contents: writes folders of contents into indexes.

        """
        self._facade, self._registry, self._contents = facade, registry, contents
        service = "IndexService"
        self.methods = (
            ForeignMethod(service, "CreateIndex", pb.CreateIndexRequest, self.create, "admin"),
            ForeignMethod(service, "GetIndex", pb.GetIndexRequest, self.get, "read"),
            ForeignMethod(service, "ListIndexes", pb.ListIndexesRequest, self.list, "read"),
            ForeignMethod(service, "UpdateIndex", pb.UpdateIndexRequest, self.update, "admin"),
            ForeignMethod(service, "DeleteIndex", pb.DeleteIndexRequest, self.delete, "admin"),
        )

    def create(self, request: pb.CreateIndexRequest, call: Call) -> operations_pb2.Operation:
        """Create an empty index, and write its contents if it has some."""
        parent, message = parse_parent(request.parent), request.index
        check_texts(message, "index")
        _check_encryption(message)
        config, contents = parse_metadata(message.metadata)
        settings = parse_settings(config)
        if contents is not None:
            self._contents.check(contents)
        name = ResourceName(parent, INDEX_KIND, new_id())
        self._facade.engine.create_index(
            _spec(name.id, settings.measure), dimensions=settings.dimensions, deadline=call.deadline
        )
        now_s = time.time()
        record = {
            "parent": parent,
            "display_name": message.display_name,
            "description": message.description,
            "labels": dict(message.labels),
            "config": config,
            "update_method": message.index_update_method or BATCH,
            "created_s": now_s,
            "updated_s": now_s,
        }

        def add(resources: Resources) -> None:
            resources.setdefault(INDEXES, {})[name.id] = record
            _check_described(resources)

        try:
            self._facade.state.change(add)
            return self._ended(name, call, pb.CreateIndexOperationMetadata, contents)
        except (IndexerError, ServingError):
            # The caller does not learn its id, and would create another one beside it.
            with suppress(IndexerError, ServingError):
                self._drop(name.id, Deadline.after(UNDO_S))
            raise

    def get(self, request: pb.GetIndexRequest, call: Call) -> pb.Index:
        """Return an index."""
        resources = self._facade.state.read()
        entry = self._registry.find(request.name, resources=resources)
        index = self._described(entry, resources)
        index.index_stats.CopyFrom(self._stats(entry, call.deadline))
        return index

    def list(self, request: pb.ListIndexesRequest, call: Call) -> pb.ListIndexesResponse:
        """Return a page of the indexes of a location, by name."""
        parent, resources = parse_parent(request.parent), self._facade.state.read()
        records = resources.get(INDEXES, {})
        items = []
        # Of an index that another worker has just created, this one may know only the description.
        for id in sorted({*self._facade.catalog.names(), *records}):
            entry = self._listed(id, resources)
            if entry is not None and (entry.record is None or entry.record["parent"] == parent):
                name = ResourceName(parent, INDEX_KIND, id)
                index = self._described(KnownIndex(name, entry.manifest, entry.record), resources)
                items.append((id, index))
        query_key = f"{parent}\n{request.filter}"
        page, token = page_of(
            filtered(items, request.filter),
            size=request.page_size,
            token=request.page_token,
            query_key=query_key,
        )
        return pb.ListIndexesResponse(
            indexes=[masked(index, request.read_mask) for index in page], next_page_token=token
        )

    def update(self, request: pb.UpdateIndexRequest, call: Call) -> operations_pb2.Operation:
        """Change the description of an index, or write contents into it."""
        message = request.index
        entry = self._registry.find(message.name, "index.name")
        mask = request.update_mask
        paths = changed_paths(mask, message, _CHANGEABLE)
        config, contents = parse_metadata(message.metadata) if "metadata" in paths else ({}, None)
        if contents is not None:
            self._contents.check(contents)
        if config and parse_settings({**(_config_of(entry)), **config}) != entry.settings:
            raise InvalidRequestError.at(
                "index.metadata.config",
                "dimensions, distance and algorithm cannot be changed; create another index",
            )

        def change(resources: Resources) -> None:
            record = resources.setdefault(INDEXES, {}).setdefault(
                entry.name.id, _record_of(entry, time.time())
            )
            check_etag(message.etag, etag_of(record), "index.etag")
            for name in ("display_name", "description"):
                if name in paths:
                    record[name] = getattr(message, name)
            if "labels" in paths:
                check_labels(message.labels, "index.labels")
                record["labels"] = dict(message.labels)
            record["config"] = {**record["config"], **config}
            record["updated_s"] = time.time()
            _check_described(resources)

        if "display_name" in paths:
            check_texts(message, "index")
        check_description(message.description, "index.description")
        return self._ended(
            entry.name,
            call,
            pb.UpdateIndexOperationMetadata,
            contents,
            commit=lambda: self._facade.state.change(change),
        )

    def delete(self, request: pb.DeleteIndexRequest, call: Call) -> operations_pb2.Operation:
        """Delete an index with all its datapoints; one that is deployed is refused."""
        name = self._deleted_name(request.name)

        def begin(resources: Resources) -> None:
            if deployments := _deployments(resources, name.id):
                where = ", ".join(
                    f"{deployment.index_endpoint} ({deployment.deployed_index_id})"
                    for deployment in deployments
                )
                raise ConditionError(
                    f"name: the index is deployed at {where}; undeploy it first", field="name"
                )
            resources.setdefault(DELETIONS, {})[name.id] = time.time()

        self._facade.state.change(begin)
        try:
            self._drop(name.id, call.deadline)
        except BaseException:
            with suppress(IndexerError, ServingError):
                self._facade.state.change(lambda document: document[DELETIONS].pop(name.id, None))
            raise
        return self._facade.operations.finished(
            call,
            str(name),
            index=name.id,
            metadata=pb.DeleteOperationMetadata(generic_metadata=_times()),
            response=Empty(),
        )

    def _deleted_name(self, text: str) -> ResourceName:
        """Return the name of an index that exists, or whose deletion was cut short before its description was gone."""
        resources = self._facade.state.read()
        try:
            return self._registry.find(text, resources=resources).name
        except UnknownResourceError:
            name = parse_name(text, INDEX_KIND, "name")
            record = resources.get(INDEXES, {}).get(name.id)
            if record is None or record["parent"] != name.parent or not is_visible(name.id):
                raise
            return name

    def _drop(self, id: str, deadline: Deadline) -> None:
        """Drop an index, and then forget its description: one that is refused, or cut short, loses nothing."""
        self._facade.engine.drop_index(id, deadline, missing_ok=True)

        def forget(resources: Resources) -> None:
            for kind in (INDEXES, DELETIONS):
                resources.get(kind, {}).pop(id, None)

        self._facade.state.change(forget)

    def _listed(self, id: str, resources: Resources) -> KnownIndex | None:
        try:
            return self._registry.entry(id, resources, wait=False)
        except IndexerError as error:
            # An index that is broken must not hide the others.
            _LOG.warning("index %s is left out of the list: %s", id, error)
            return None

    def _ended(
        self,
        name: ResourceName,
        call: Call,
        kind: type[Any],
        contents: Contents | None,
        *,
        commit: Callable[[], object] = lambda: None,
    ) -> operations_pb2.Operation:
        """Return an operation with the index as its result; with contents, it ends when they are written.

        Args:
            name: of the index.
            call: that began it.
            kind: of its metadata.
            contents: to write; None: none.
            commit: changes the description; called when nothing can refuse the operation any more.

        """

        def described(deadline: Deadline) -> pb.Index:
            return self.get(pb.GetIndexRequest(name=str(name)), Call(call.api, deadline))

        metadata = kind(generic_metadata=_times())
        if contents is None:
            commit()
            return self._facade.operations.finished(
                call, str(name), index=name.id, metadata=metadata, response=described(call.deadline)
            )

        # Opened before the answer: what callers write after it is not overwritten.
        target = self._contents.target(name.id, contents)

        def work(progress: Any) -> pb.Index:
            def report(read: pb.NearestNeighborSearchOperationMetadata) -> None:
                progress(kind(generic_metadata=_times(), nearest_neighbor_search_operation_metadata=read))

            with closing(target):
                self._contents.write(name.id, contents, target, report)
            return described(Deadline.after(None))

        with ExitStack() as unless_begun:
            unless_begun.callback(target.close)
            begun = self._facade.operations.begin(
                call, str(name), index=name.id, metadata=metadata, work=work, commit=commit
            )
            unless_begun.pop_all()
        return begun

    def _described(self, entry: KnownIndex, resources: Resources) -> pb.Index:
        record = (
            _record_of(entry, entry.manifest.created_at.timestamp()) if entry.record is None else entry.record
        )
        return pb.Index(
            name=str(entry.name),
            display_name=record["display_name"],
            description=record["description"],
            metadata=_metadata({"config": record["config"]}),
            deployed_indexes=_deployments(resources, entry.name.id),
            etag=etag_of(record),
            labels=record["labels"],
            create_time=timestamp(record["created_s"]),
            update_time=timestamp(record["updated_s"]),
            index_update_method=entry.update_method,  # type: ignore[arg-type]  # an int is one
        )

    def _stats(self, entry: KnownIndex, deadline: Deadline) -> pb.IndexStats:
        snapshot = self._facade.catalog.snapshot(entry.name.id, deadline=deadline)
        return pb.IndexStats(
            vectors_count=snapshot.dense_rows,
            sparse_vectors_count=snapshot.sparse_rows,
            shards_count=entry.manifest.shards,
        )


def _spec(index: str, measure: Measure) -> dict[str, Any]:
    """Return the spec of an index for the service's clients."""
    return {
        "index": index,
        "source": {"id": "id", "vector": "embedding", "sparse_vector": "sparse_embedding"},
        "distance": measure.distance,
        "vectors": "optional",
        "dynamic": True,
        "attributes": {"crowding_tag": "string"},
    }


def _record_of(entry: KnownIndex, now_s: float) -> dict[str, Any]:
    """Return a description for an index that has none."""
    if entry.record is not None:
        return dict(entry.record)
    created_s = entry.manifest.created_at.timestamp()
    return {
        "parent": entry.name.parent,
        "display_name": entry.name.id,
        "description": "",
        "labels": {},
        "config": _config_of(entry),
        "update_method": STREAM,
        "created_s": created_s,
        "updated_s": now_s,
        "index_id": entry.manifest.index_id,
    }


def _config_of(entry: KnownIndex) -> dict[str, Any]:
    if entry.record is not None and entry.record["config"]:
        return dict(entry.record["config"])
    measure = measure_of(entry.manifest.spec.distance)
    return {
        "dimensions": entry.manifest.dimensions,
        "distanceMeasureType": measure.name,
        "algorithmConfig": {"treeAhConfig": {}},
    }


def _deployments(resources: Resources, index: str) -> list[pb.DeployedIndexRef]:
    """Return where an index is deployed."""
    return [
        pb.DeployedIndexRef(
            index_endpoint=f"{endpoint['parent']}/indexEndpoints/{id}",
            deployed_index_id=deployed_id,
            display_name=deployed["display_name"],
        )
        for id, endpoint in sorted(resources.get(ENDPOINTS, {}).items())
        for deployed_id, deployed in sorted(endpoint["deployed"].items())
        if deployed["index"] == index
    ]


def _check_described(resources: Resources) -> None:
    check_kept(resources[INDEXES], MAX_DESCRIBED_BYTES, "the descriptions of all indexes", "index")


def _metadata(content: Mapping[str, Any]) -> Value:
    value: Value = ParseDict(dict(content), Value())
    return value


def _check_encryption(index: pb.Index) -> None:
    if index.encryption_spec.kms_key_name:
        raise UnsupportedError(
            "index.encryption_spec: keys of customers are not supported; encrypt the disk or the bucket of the store",
            field="index.encryption_spec",
        )


def _times() -> operations_pb2.GenericOperationMetadata:
    now = timestamp(time.time())
    return operations_pb2.GenericOperationMetadata(create_time=now, update_time=now)


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
