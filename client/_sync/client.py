# Generated from `_async` by tests/tools/generate_sync.py: edit that one, then `make sync`.
"""The client: its methods name the calls that `scannery.client.request.calls` defines."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from google.protobuf.message import Message

from scannery.client._sync.index import Index
from scannery.client.errors import InvalidArgumentError
from scannery.client.request import calls, feedback, lifecycle_calls, server_calls
from scannery.client.request.calls import Call, Sequences, TextKind
from scannery.client.request.filtered_writes import FilteredBatch
from scannery.client.request.named_vectors import NamedVectors
from scannery.client.request.values import Identifier
from scannery.client.response.index_info import Distance, EncoderInfo, Indexes, Migration
from scannery.client.response.results import Deleted, Written
from scannery.client.response.server_info import CallerInfo, Metric
from scannery.client.transport.base import Transport
from scannery.v1 import index_pb2

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Client"]

RequestT = TypeVar("RequestT", bound=Message)
ResponseT = TypeVar("ResponseT", bound=Message)
ResultT = TypeVar("ResultT")
DoneT = TypeVar("DoneT", Written, Deleted, FilteredBatch)


class Client:
    """A connection to a server, or to a store in this process. Made by `connect`.

    The synchronous one is safe to use from several threads, the asynchronous one belongs to the event loop of its first
    call. A context manager: leaving it closes the client.

    Args:
        transport: carries the calls.
        timeout_s: of a call that does not say another.

    """

    def __init__(self, transport: Transport, *, timeout_s: float) -> None:
        self._transport = transport
        self._timeout_s = timeout_s
        self._sequences = Sequences()

    def index(self, name: str) -> Index:
        """Return a handle on an index. Nothing is asked yet: an index that is not there shows at the first call."""
        return Index(self, name)

    def indexes(self) -> Indexes:
        """Return the indexes there are, by name, without their segments and specs."""
        infos, token = self._run(calls.list_indexes(""))
        while token:
            page, token = self._run(calls.list_indexes(token))
            infos += page
        return Indexes(infos)

    def create_index(
        self,
        spec: str | Mapping[str, Any],
        *,
        dimensions: int | None = None,
        encoder: str | Mapping[str, Any] | None = None,
        attributes: Mapping[str, Any] | None = None,
        dynamic: bool | None = None,
        lexical: bool | Mapping[str, Any] | None = None,
        sparse: bool | None = None,
        chunk: Mapping[str, Any] | None = None,
        distance: Distance | None = None,
        vector_model: str | None = None,
        vectors: Literal["required", "optional"] | None = None,
        named_vectors: NamedVectors | None = None,
        target_recall: float | None = None,
        reranker: str | Mapping[str, Any] | None = None,
        search: Mapping[str, Any] | None = None,
        live: Mapping[str, Any] | None = None,
        if_exists: Literal["error", "keep"] = "error",
        timeout_s: float | None = None,
    ) -> Index:
        """Create an empty index, which takes writes at once, and return a handle on it.

        A server takes the encoders of its indexes and those that its operator names (`scannery serve --model`), and
        needs the scope `admin`.

        Args:
            spec: the name of the index; or a mapping with the keys of SPEC.yaml, which the other arguments complete.
            dimensions: components of a vector; required without an encoder, unless the index has only words, sparse
                vectors or named vectors.
            encoder: the model that turns texts into vectors: its name, or a mapping as in SPEC.yaml.
            attributes: name → type, as in SPEC.yaml.
            dynamic: whether datapoints may have attributes that are not declared, of any types.
            lexical: also index the words of title and text.
            sparse: whether datapoints may have sparse vectors.
            chunk: how texts are cut into passages, as `source.chunk` in SPEC.yaml: `{"max_tokens": 128}`.
            distance: how vectors are compared; default: `cosine`.
            vector_model: the model of the vectors that you write, as in SPEC.yaml; with an encoder it is that one's.
            vectors: whether a datapoint must have a vector; default: `optional` with a name, `required` with a mapping.
                With `optional` and neither encoder nor dimensions, none can have one.
            named_vectors: name → further vectors of a datapoint: the model that makes them of texts, their number of
                dimensions, or a mapping as in SPEC.yaml. Without an encoder and dimensions, they are the only vectors.
            target_recall: share of the true nearest neighbours that searches find; default: 0.95.
            reranker: a cross-encoder for `rerank`: its name, or a mapping as in SPEC.yaml.
            search: defaults of searches, as in SPEC.yaml.
            live: thresholds of live updates, as in SPEC.yaml.
            if_exists: `keep` returns an index of this name as it is, if encoder, dimensions, distance and named vectors
                are the same.
            timeout_s: of the call; it may load the encoder.

        Raises:
            AlreadyExistsError: there is an index of this name, with `keep` one of other vectors; or an alias.
            InvalidArgumentError: the spec is wrong; `field` names the key.
            FailedPreconditionError: the server may not load the model.

        """
        info = self._run(
            lifecycle_calls.create_index(
                spec,
                dimensions=dimensions,
                encoder=encoder,
                attributes=attributes,
                dynamic=dynamic,
                lexical=lexical,
                sparse=sparse,
                chunk=chunk,
                distance=distance,
                vector_model=vector_model,
                vectors=vectors,
                named_vectors=named_vectors,
                target_recall=target_recall,
                reranker=reranker,
                search=search,
                live=live,
                if_exists=if_exists,
                request_id=uuid.uuid4().hex,
                timeout_s=timeout_s,
            )
        )
        return Index(self, info.name)

    def branch_index(
        self,
        name: str,
        branch: str,
        *,
        version: int | None = None,
        time: dt.datetime | dt.timedelta | str | None = None,
        timeout_s: float | None = None,
    ) -> Index:
        """Make an index of its own with the content of another one, and return a handle on it.

        It takes about a second at any size: both share their files until they differ. Both take writes afterwards, and
        either may be dropped. Without a version or a time, the branch has all writes to the index that were
        acknowledged before. A server needs the scopes `admin` and `read`.

        Args:
            name: of the index, or an alias.
            branch: name of the branch, which no index or alias has.
            version: of the index, without live updates after it.
            time: takes the newest version of that time or before: a datetime (naive ones are in UTC), a text in ISO
                8601, or how long ago it was, as a timedelta or a text such as `2h` or `7d`.
            timeout_s: of the call.

        Raises:
            NotFoundError: there is no such index or version, or none of that age is kept.
            AlreadyExistsError: there is an index or an alias with the name of the branch.
            FailedPreconditionError: an index of this name is being made or removed, or the log of live updates cannot
                be read or placed.
            InvalidArgumentError: an argument is wrong; `field` names it.

        """
        info = self._run(
            lifecycle_calls.branch_index(
                name, branch, version=version, time=time, request_id=uuid.uuid4().hex, timeout_s=timeout_s
            )
        )
        return Index(self, info.name)

    def migrate_index(
        self,
        name: str,
        *,
        encoder: str | Mapping[str, Any] | None = None,
        chunk: Mapping[str, Any] | None = None,
        named_vectors: NamedVectors | None = None,
        lexical: bool | Mapping[str, Any] | None = None,
        vectors: Literal["required", "optional"] | None = None,
        switch: bool = True,
        timeout_s: float | None = None,
    ) -> Migration:
        """Change the encoder or the passages of an index while it is served; return at once how far that is.

        The server works on until the index has the new content, and goes on after a crash; `migration` says how far it
        is. Searches and writes go on meanwhile, each answer is of one model, and `undo_migration` takes it back without
        losing a write. Embedded, the work goes on while the client is open. A server needs the scope `admin`, and takes
        the encoders of its indexes and those that its operator names (`scannery serve --model`).

        Args:
            name: of the index, or an alias.
            encoder: the new model: its name, or a mapping as in SPEC.yaml.
            chunk: how texts are cut anew, with keys of `source.chunk` in SPEC.yaml: `{"max_tokens": 200}`.
            named_vectors: all further vectors of a datapoint, as of `create_index`.
            lexical: as in SPEC.yaml.
            vectors: as in SPEC.yaml.
            switch: whether the index gets the new content. With False, the mirror alone has it: search that beside the
                index, and call this again without any change.
            timeout_s: of the call; it may load the encoder.

        Raises:
            NotFoundError: there is no such index; or nothing is changed, and there is no migration that could go on.
            FailedPreconditionError: it is being migrated with other changes, nothing would change, or the server may
                not load the model.
            InvalidArgumentError: a change is wrong; `field` names it.

        """
        goal = index_pb2.MIGRATION_GOAL_SWITCH if switch else index_pb2.MIGRATION_GOAL_MIRROR
        return self._run(
            lifecycle_calls.migrate_index(
                name,
                goal,
                encoder=encoder,
                chunk=chunk,
                named_vectors=named_vectors,
                lexical=lexical,
                vectors=vectors,
                timeout_s=timeout_s,
            )
        )

    def migration(self, name: str, *, timeout_s: float | None = None) -> Migration:
        """Return how far the migration of an index is.

        Args:
            name: of the index, or an alias.
            timeout_s: of the call.

        Raises:
            NotFoundError: it is not being migrated, or the migration was abandoned.

        """
        return self._run(lifecycle_calls.get_migration(name, timeout_s=timeout_s))

    def undo_migration(self, name: str, *, timeout_s: float | None = None) -> Migration:
        """Have an index get its former encoder and passages back, with all writes since; return how far that is.

        Args:
            name: of the index, or an alias.
            timeout_s: of the call.

        Raises:
            NotFoundError: it is not being migrated.
            FailedPreconditionError: it has not got the new content.

        """
        return self._run(
            lifecycle_calls.migrate_index(name, index_pb2.MIGRATION_GOAL_UNDO, timeout_s=timeout_s)
        )

    def abandon_migration(self, name: str, *, timeout_s: float | None = None) -> Migration:
        """Have the mirror of an index removed, which ends the migration, or afterwards the way back.

        The index stays as it is. Within some seconds, `migration` raises NotFoundError.

        Args:
            name: of the index, or an alias.
            timeout_s: of the call.

        Raises:
            NotFoundError: it is not being migrated.

        """
        return self._run(
            lifecycle_calls.migrate_index(name, index_pb2.MIGRATION_GOAL_ABANDON, timeout_s=timeout_s)
        )

    def drop_index(self, name: str, *, missing_ok: bool = False, timeout_s: float | None = None) -> bool:
        """Remove an index with all its versions and datapoints; return whether there was one.

        Queries that run finish. Embedded, an index that a server has open is not removed.

        Args:
            name: of the index, not an alias.
            missing_ok: return False if there is none, instead of an error.
            timeout_s: of the call.

        Raises:
            NotFoundError: there is no such index.
            FailedPreconditionError: it has aliases, or is in use (embedded).

        """
        dropped = self._run(lifecycle_calls.drop_index(name, missing_ok=missing_ok, timeout_s=timeout_s))
        self._sequences.forget(name)
        return dropped

    def alias(self, alias: str, index: str, *, timeout_s: float | None = None) -> str | None:
        """Let a name stand for an index, and return the index that it stood for before.

        An alias works where the name of an index does, and is moved atomically: each call sees one index or the other.
        Other processes of a server follow within a second. A server needs the scope `admin`.

        Args:
            alias: the name; no index has it.
            index: the index, not an alias.
            timeout_s: of the call.

        Raises:
            NotFoundError: there is no such index.
            AlreadyExistsError: there is an index with the name of the alias.
            InvalidArgumentError: a name is wrong; `field` names it.

        """
        return self._run(lifecycle_calls.set_alias(alias, index, timeout_s=timeout_s))

    def aliases(self, *, timeout_s: float | None = None) -> dict[str, str]:
        """Return the index that each alias stands for, by alias."""
        return self._run(lifecycle_calls.list_aliases(timeout_s=timeout_s))

    def delete_alias(self, alias: str, *, missing_ok: bool = False, timeout_s: float | None = None) -> bool:
        """Delete an alias, not its index; return whether there was one.

        Args:
            alias: the name.
            missing_ok: return False if there is none, instead of an error.
            timeout_s: of the call.

        """
        return self._run(lifecycle_calls.delete_alias(alias, missing_ok=missing_ok, timeout_s=timeout_s))

    def whoami(self, *, timeout_s: float | None = None) -> CallerInfo:
        """Return who the caller is to the server, what it may do, and what the server is; needs no scope."""
        return self._run(server_calls.who_am_i(timeout_s=timeout_s))

    def metrics(self, names: Sequence[str] = (), *, timeout_s: float | None = None) -> dict[str, Metric]:
        """Return what the server measures of itself, by name: the values of `/metrics`, of all of its workers.

        Without `scannery serve --metrics-listen`, the first call in ten seconds takes a second. A server needs the
        scope `admin`.

        Args:
            names: of the metrics; default: all.
            timeout_s: of the call.

        Raises:
            UnimplementedError: the client is embedded.

        """
        return self._run(server_calls.get_metrics(names, timeout_s=timeout_s))

    def encoders(self) -> list[EncoderInfo]:
        """Return the encoders that the server has: of its indexes, and those that it can use for a new one.

        An encoder process has its own. A store in this process takes any model for a new index, and lists none of them.
        """
        return self._run(calls.list_encoders())

    def embed(
        self,
        texts: Sequence[str],
        *,
        kind: TextKind = "query",
        model: str = "",
        timeout_s: float | None = None,
    ) -> np.ndarray:
        """Return the vectors of texts, float32 (texts, dimensions), in their order; at most 1,000 texts.

        Args:
            texts: what to encode.
            kind: `query` or `document`; models may encode the two differently.
            model: which encoder, by its name; not needed where there is only one (`encoders` lists them).
            timeout_s: of the call.

        """
        return self._run(calls.embed(texts, kind, model=model, timeout_s=timeout_s))

    def feedback(
        self,
        query_id: str,
        *,
        clicked: Sequence[Identifier] = (),
        rejected: Sequence[Identifier] = (),
        timeout_s: float | None = None,
    ) -> int:
        """Say which hits of an answer helped and which did not, and return the number of events that are new.

        The same event counts once, however often it is sent. Needs the scope `read`, as searches do.

        Args:
            query_id: `hits.query_id` of the answer, at most a day old.
            clicked: ids of hits that were opened or used.
            rejected: ids of hits that do not answer the query.
            timeout_s: of the call.

        Raises:
            InvalidArgumentError: the id is none of this server, or is too old, or a hit was not in the answer.
            FailedPreconditionError: the operator has not turned feedback on.

        """
        return self._run(feedback.feedback(query_id, clicked, rejected, timeout_s=timeout_s))

    def close(self) -> None:
        """Release connections and memory; later calls fail."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, index: str, call: Call[RequestT, ResponseT, DoneT]) -> DoneT:
        done = self._run(call)
        # Later calls see it, whichever worker answers them.
        self._sequences.wrote(index, done.sequence)
        return done

    def _run(self, call: Call[RequestT, ResponseT, ResultT]) -> ResultT:
        timeout_s, request = call.timeout_or(self._timeout_s), call.request
        while True:
            try:
                return call.parse(self._transport.call(call.method, request, timeout_s))
            except InvalidArgumentError as error:
                if error.field != "min_sequence" or (again := self._sequences.lowered(request)) is None:
                    raise
                request = again
