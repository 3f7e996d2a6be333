"""`VectorSearchService`: imports and exports of data objects, as operations."""

from __future__ import annotations

from pathlib import Path

from google.protobuf.timestamp_pb2 import Timestamp

from scannery.bridges.vertex.shared.calls import Call, ForeignMethod
from scannery.bridges.vertex.shared.context import Facade
from scannery.bridges.vertex.shared.line_files import folder_below, is_within, place_below
from scannery.bridges.vertex.shared.operations import Progress
from scannery.bridges.vertex.v2.collections import Collections
from scannery.bridges.vertex.v2.data_objects.store import Objects
from scannery.bridges.vertex.v2.resource_names import parsed_collection
from scannery.bridges.vertex.v2.transfers.exports import check_unused, export, line_fields
from scannery.bridges.vertex.v2.transfers.imports import Importer, ImportPlaces
from scannery.runtime.errors import InvalidRequestError, UnsupportedError
from scannery.vertex.v1 import operations_pb2
from scannery.vertex.v2 import collections_pb2 as pb

__all__ = ["TransferMethods"]


class TransferMethods:
    """Import and export data objects; folders are below the operator's roots."""

    def __init__(self, facade: Facade, collections: Collections) -> None:
        """Work with the collections of a server."""
        self._facade, self._collections, self._objects = facade, collections, Objects(facade)
        service = "VectorSearchService"
        self.methods = (
            ForeignMethod(
                service, "ImportDataObjects", pb.ImportDataObjectsRequest, self.import_objects, "admin"
            ),
            ForeignMethod(
                service, "ExportDataObjects", pb.ExportDataObjectsRequest, self.export_objects, "admin"
            ),
        )

    def import_objects(self, request: pb.ImportDataObjectsRequest, call: Call) -> operations_pb2.Operation:
        """Begin to write a folder of JSON lines into a collection."""
        collection = self._collections.get(parsed_collection(request.name, "name"), "name")
        folders = self._import_places(request)
        reader = self._facade.config.object_reader
        if reader is None:
            raise UnsupportedError("gcs_import: this server has no reader of JSON lines", field="gcs_import")
        importer = Importer(reader, self._collections, self._objects)

        def work(progress: Progress) -> pb.ImportDataObjectsResponse:
            return importer.run(collection.name, folders, call.api, progress)

        return self._facade.operations.begin(
            call,
            collection.name.location,
            index=collection.index,
            metadata=pb.ImportDataObjectsMetadata(create_time=_now(), update_time=_now()),
            work=work,
        )

    def export_objects(self, request: pb.ExportDataObjectsRequest, call: Call) -> operations_pb2.Operation:
        """Begin to write a collection to files of JSON lines."""
        collection = self._collections.get(parsed_collection(request.name, "name"), "name")
        fields, folder = line_fields(request), self._export_place(request)
        began = _now()

        def work(progress: Progress) -> pb.ExportDataObjectsResponse:
            running = pb.ExportDataObjectsMetadata(create_time=began)
            export(self._facade, collection, folder, fields, lambda: progress(running))
            progress(pb.ExportDataObjectsMetadata(create_time=began, finish_time=_now()))
            return pb.ExportDataObjectsResponse()

        return self._facade.operations.begin(
            call,
            collection.name.location,
            index=collection.index,
            metadata=pb.ExportDataObjectsMetadata(create_time=began),
            work=work,
        )

    def _import_places(self, request: pb.ImportDataObjectsRequest) -> ImportPlaces:
        if not request.HasField("gcs_import"):
            raise InvalidRequestError.at("gcs_import", "is required")
        source = request.gcs_import
        roots = self._facade.config.contents
        contents = folder_below(source.contents_uri, roots, "gcs_import.contents_uri", or_file=True)
        errors = self._folder(source.error_uri, "gcs_import.error_uri")
        output = self._folder(source.output_uri, "gcs_import.output_uri") if source.output_uri else ""
        for field, folder in (("error_uri", errors), ("output_uri", output)):
            if is_within(folder, contents):
                raise InvalidRequestError.at(
                    f"gcs_import.{field}",
                    "must not be in contents_uri: its files would be imported next time",
                )
        return ImportPlaces(contents, errors, output, roots)

    def _export_place(self, request: pb.ExportDataObjectsRequest) -> str:
        if not request.HasField("gcs_destination"):
            raise InvalidRequestError.at("gcs_destination", "is required")
        destination = request.gcs_destination
        if destination.format not in (destination.JSON, destination.JSONL):
            raise InvalidRequestError.at("gcs_destination.format", "must be JSONL")
        folder = self._folder(destination.export_uri, "gcs_destination.export_uri")
        check_unused(folder)
        return folder

    def _folder(self, uri: str, field: str) -> str:
        """Return a folder to write to, which need not exist."""
        folder = place_below(uri, self._facade.config.contents, field)
        if "://" not in folder and Path(folder).exists() and not Path(folder).is_dir():
            raise InvalidRequestError.at(field, "must be a folder")
        return folder


def _now() -> Timestamp:
    now = Timestamp()
    now.GetCurrentTime()
    return now
