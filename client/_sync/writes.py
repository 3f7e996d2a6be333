# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""Writes to an index: upserts, updates and deletions, of given datapoints or of those that a filter allows.

What an index says about itself, and about all of its datapoints or those that a filter allows: number and values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from scannery.client._sync.bulk import write_all, write_batches_where
from scannery.client.errors import InvalidArgumentError
from scannery.client.request import aggregations, calls, filtered_writes
from scannery.client.request.batches import Errors, size_of, write_batches
from scannery.client.request.calls import Call
from scannery.client.request.filtered_writes import BatchCall, FilteredBatch
from scannery.client.request.filters import Where
from scannery.client.request.records import Extra, RecordReader, Table, is_foreign, is_table
from scannery.client.request.values import Identifier
from scannery.client.request.writes import NewDatapoint, Update, as_list
from scannery.client.response.aggregations import AttributeStats, Facets
from scannery.client.response.index_info import IndexInfo
from scannery.client.response.outcomes import Progress
from scannery.client.response.results import BulkWritten, Deleted, Written

if TYPE_CHECKING:
    from scannery.client._sync.client import Client

__all__ = ["Writes"]


class Aggregations:
    """The part of a handle on an index that describes and counts."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def stats(self, *, timeout_s: float | None = None) -> IndexInfo:
        """Return what the index is: version, rows, dimensions, attributes, encoder, recall, segments, spec."""
        return self._client._run(calls.get_index(self.name, timeout_s=timeout_s))

    def count(self, where: Where | None = None, *, timeout_s: float | None = None) -> int:
        """Return the number of datapoints that a filter allows; without one, of all of them."""
        return self._client._run(
            aggregations.count(self.name, where, min_sequence=self._seen(), timeout_s=timeout_s)
        )

    def facets(
        self,
        attribute: str,
        where: Where | None = None,
        *,
        limit: int = 100,
        timeout_s: float | None = None,
    ) -> Facets:
        """Return the values of an attribute with their numbers of datapoints, the most frequent first.

        Args:
            attribute: its name, or `document_id`.
            where: which datapoints are counted; default: all.
            limit: most values to return, 1 to 10,000.
            timeout_s: of the call.

        """
        return self._client._run(
            aggregations.facets(
                self.name, attribute, where, limit, min_sequence=self._seen(), timeout_s=timeout_s
            )
        )

    def attribute_stats(
        self,
        attribute: str,
        where: Where | None = None,
        *,
        quantiles: Sequence[float] = (0.5,),
        timeout_s: float | None = None,
    ) -> AttributeStats:
        """Return the number of distinct values of an attribute, the least, the greatest, and quantiles.

        Args:
            attribute: its name, or `document_id`.
            where: of which datapoints; default: of all.
            quantiles: shares, each 0 to 1, at most 100; default: the median.
            timeout_s: of the call.

        """
        return self._client._run(
            aggregations.attribute_stats(
                self.name, attribute, where, quantiles, min_sequence=self._seen(), timeout_s=timeout_s
            )
        )

    def _seen(self) -> int:
        """Return the sequence of the last write of this client, which its reads wait for."""
        return self._client._sequences.get(self.name, 0)


class Writes(Aggregations):
    """The part of a handle on an index that writes."""

    @overload
    def upsert(
        self,
        points: Iterable[NewDatapoint],
        *,
        vector_model: str | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Written: ...

    @overload
    def upsert(
        self,
        points: Table,
        *,
        vector_model: str | None = None,
        request_id: None = None,
        timeout_s: float | None = None,
    ) -> BulkWritten: ...

    def upsert(
        self,
        points: Any,
        *,
        vector_model: str | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Written | BulkWritten:
        """Insert or replace datapoints. When this returns, they are durable.

        A list of datapoints, 1 to 1,000, is written completely or not at all. A table (a frame of pandas or polars, an
        Arrow table or record batch) has any number of rows: they are written in batches, as by `upsert_many`, and what
        a failure leaves written stays.

        Args:
            points: see `NewDatapoint`; or records with the fields that the spec of the index names, as builds read
                them (a type checker takes them as `Any`). A table has columns of either kind; null, NaN and NaT are
                no values, and columns that the index has no place for are listed in the result's `ignored`. Where
                texts are cut into passages, all passages of a document are replaced.
            vector_model: the model that made the vectors: its name, its digest, or the first 8 digits of that or more.
                The batch is refused where the index has vectors of another model. Default: not known; vectors that do
                not look like those of the index are told in `warnings`, or are refused (`live.foreign_vectors`).
            request_id: makes a repetition harmless: the same id within an hour does nothing and gets the first answer.
                Not for tables, each batch of which has an id of its own.
            timeout_s: of a call. After a timeout it is not known whether the datapoints were written.

        """
        if is_table(points):
            if request_id is not None:
                raise InvalidArgumentError("request_id: is not for tables", field="request_id")
            return self._write_all(points, vector_model=vector_model, timeout_s=timeout_s, extra=None)
        points = as_list(points)
        if any(map(is_foreign, points)):
            points = list(map((self._reader("refuse", timeout_s)).datapoint, points))
        return self._upsert(points, vector_model, request_id, timeout_s)

    def upsert_many(
        self,
        points: Iterable[NewDatapoint] | Table,
        *,
        batch_size: int = 200,
        in_flight: int = 4,
        progress: Progress = False,
        errors: Errors = "raise",
        extra: Extra | None = None,
        vector_model: str | None = None,
        timeout_s: float | None = None,
    ) -> BulkWritten:
        """Insert or replace any number of datapoints, in batches of which several are under way at once.

        Each batch is all or nothing, and is tried again without harm. Where an id comes twice, the later datapoint
        wins. Points are read only as fast as they are written.

        Args:
            points: as in `upsert`.
            batch_size: datapoints in one call, 1 to 1,000.
            in_flight: calls under way at once, 1 to 64.
            progress: True for a progress bar, or a function that is told how many datapoints are done.
            errors: `raise` ends at the first batch that fails, and what was written before stays; `return` writes all
                that can be, and lists the others in `failed`.
            extra: what becomes of fields that the index has no place for: `refuse` refuses the record, `ignore` writes
                the rest of it and lists them in `ignored`. Default: `refuse`; for tables `ignore`, except for columns
                that a datapoint calls otherwise, such as `metadata` with mappings.
            vector_model: as in `upsert`.
            timeout_s: of each call.

        """
        return self._write_all(
            points,
            batch_size=batch_size,
            in_flight=in_flight,
            progress=progress,
            errors=errors,
            extra=extra or (None if is_table(points) else "refuse"),
            vector_model=vector_model,
            timeout_s=timeout_s,
        )

    def _write_all(
        self,
        points: Any,
        *,
        batch_size: int = 200,
        in_flight: int = 4,
        progress: Progress = False,
        errors: Errors = "raise",
        extra: Extra | None,
        vector_model: str | None,
        timeout_s: float | None,
    ) -> BulkWritten:
        parts = write_batches(points, batch_size, in_flight, errors)

        def write(batch: Sequence[Any], request_id: str) -> Written:
            return self._upsert(batch, vector_model, request_id, timeout_s)

        def reader_of() -> RecordReader:
            return self._reader(extra, timeout_s)

        return write_all(write, parts, in_flight, progress, errors, size_of(points), reader_of)

    def _upsert(
        self,
        points: Iterable[Any],
        vector_model: str | None,
        request_id: str | None,
        timeout_s: float | None,
    ) -> Written:
        return self._client._write(
            self.name,
            calls.upsert(
                self.name, points, vector_model=vector_model, request_id=request_id, timeout_s=timeout_s
            ),
        )

    def _reader(self, extra: Extra | None, timeout_s: float | None) -> RecordReader:
        return RecordReader((self.stats(timeout_s=timeout_s)).spec, extra=extra)

    def update(
        self,
        points: Iterable[Update] = (),
        *,
        where: Where | None = None,
        attributes: Mapping[str, Any] | None = None,
        dry_run: bool = False,
        progress: Progress = False,
        batch_size: int = 10_000,
        vector_model: str | None = None,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Written:
        """Change some fields of existing datapoints, without encoding them again.

        Either `points`, 1 to 1,000: all of them or none. Or `where` and `attributes`, which gives the same new values
        to all datapoints that the filter allows when the call begins: in batches, each of which is all or nothing. An
        empty filter changes all datapoints; None clears an attribute. If a batch fails, the error says how many
        datapoints are left; the batches before it stay.

        Args:
            points: see `Update`.
            where: which datapoints to change.
            attributes: their new values, by name.
            dry_run: with `where`: change nothing, and return how many datapoints would be changed (scope `read`, too).
            progress: with `where`: True for a progress bar, or a function that is told how many datapoints are done.
            batch_size: with `where`: most datapoints of a batch, 1 to 10,000.
            vector_model: as in `upsert`, of named vectors among `points`.
            request_id: as in `upsert`; not with `where`, where each batch has an id of its own.
            timeout_s: of a call.

        """
        if where is None:
            if attributes is not None:
                raise InvalidArgumentError("where: is required with attributes", field="where")
            return self._client._write(
                self.name,
                calls.update(
                    self.name, points, vector_model=vector_model, request_id=request_id, timeout_s=timeout_s
                ),
            )
        filtered_writes.check_alone(points=points, request_id=request_id)
        done = self._write_where(
            lambda until_sequence, own_id: filtered_writes.update_where(
                self.name,
                where,
                attributes,
                limit=batch_size,
                until_sequence=until_sequence,
                dry_run=dry_run,
                request_id=own_id,
                timeout_s=timeout_s,
            ),
            "changing",
            progress,
            dry_run=dry_run,
        )
        return Written(done.sequence, done.rows)

    def delete(
        self,
        ids: Sequence[Identifier] = (),
        *,
        document_ids: Sequence[Identifier] = (),
        where: Where | None = None,
        if_revision: int | None = None,
        dry_run: bool = False,
        progress: Progress = False,
        batch_size: int = 10_000,
        request_id: str | None = None,
        timeout_s: float | None = None,
    ) -> Deleted:
        """Delete datapoints, or documents with all of their passages; what is not there is no error.

        With `where`, all datapoints that the filter allows when the call begins are deleted: in batches, each of which
        is all or nothing. Of a document that is cut into passages, only those that the filter allows. If a batch
        fails, the error says how many datapoints are left; the batches before it stay.

        Args:
            ids: of datapoints, at most 1,000.
            document_ids: of documents, at most 1,000.
            where: which datapoints to delete; must have a condition. Not together with ids.
            if_revision: delete only if the datapoint has this revision.
            dry_run: with `where`: delete nothing, and return how many datapoints would be deleted (scope `read`, too).
            progress: with `where`: True for a progress bar, or a function that is told how many datapoints are done.
            batch_size: with `where`: most datapoints of a batch, 1 to 10,000.
            request_id: as in `upsert`; not with `where`, where each batch has an id of its own.
            timeout_s: of a call.

        """
        if where is None:
            if dry_run:
                raise InvalidArgumentError("where: is required with dry_run", field="where")
            return self._client._write(
                self.name,
                calls.delete(
                    self.name,
                    ids,
                    document_ids=document_ids,
                    if_revision=if_revision,
                    request_id=request_id,
                    timeout_s=timeout_s,
                ),
            )
        filtered_writes.check_alone(
            ids=ids, document_ids=document_ids, if_revision=if_revision, request_id=request_id
        )
        done = self._write_where(
            lambda until_sequence, own_id: filtered_writes.delete_where(
                self.name,
                where,
                limit=batch_size,
                until_sequence=until_sequence,
                dry_run=dry_run,
                request_id=own_id,
                timeout_s=timeout_s,
            ),
            "deleting",
            progress,
            dry_run=dry_run,
        )
        return Deleted(done.sequence, done.rows)

    def _write_where(self, call: BatchCall, what: str, progress: Progress, *, dry_run: bool) -> FilteredBatch:
        if dry_run:
            return self._client._run(call(None, ""))

        def send(batch: Call[Any, Any, FilteredBatch]) -> FilteredBatch:
            return self._client._write(self.name, batch)

        return write_batches_where(send, call, what, progress)
