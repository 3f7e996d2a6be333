"""One index: its methods name the calls that `scannery.client.request.calls` defines."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from scannery.client._async.bulk import search_batches
from scannery.client._async.scan import AsyncScan
from scannery.client._async.writes import AsyncWrites
from scannery.client.errors import ScanneryError
from scannery.client.request import calls, lifecycle_calls
from scannery.client.request.batches import Errors, QueryStream, query_batches, size_of
from scannery.client.request.calls import TextKind
from scannery.client.request.filters import Where
from scannery.client.request.maps import build_map, map_page
from scannery.client.request.named_vectors import NamedVectors
from scannery.client.request.queries import Queries, QueryLike, SearchOptions, build_scan, checked_token
from scannery.client.request.values import Identifier
from scannery.client.response.index_info import IndexInfo, VersionInfo
from scannery.client.response.maps import Projection, joined_map
from scannery.client.response.outcomes import Progress
from scannery.client.response.rank_explanation import RankExplanation
from scannery.client.response.results import Datapoint, Hits, ScanPage

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["AsyncIndex"]


class AsyncIndex(AsyncWrites):
    """A handle on one index. Every method raises a `ScanneryError` if it fails."""

    async def search(self, query: QueryLike, k: int = 10, **options: Unpack[SearchOptions]) -> Hits:
        """Return the k best datapoints for a query, best first; equal scores by id.

        Args:
            query: a text, which the index's encoder turns into a vector; a vector; or `Like(id)`.
            k: hits wanted, 1 to 10,000. Fewer come back only if fewer are allowed.
            options: see `SearchOptions`.

        """
        return await self._client._run(calls.search(self.name, query, k, **self._fresh(options)))

    async def explain(
        self, query: QueryLike, id: Identifier, k: int = 10, **options: Unpack[SearchOptions]
    ) -> RankExplanation:
        """Return why a datapoint is at its rank for a query, or why it is no hit, and what would make it one.

        It costs several searches. Print the result for a text.

        Args:
            query: as of `search`.
            id: of the datapoint.
            k: hits wanted, as of `search`.
            options: those of the search in question; `highlight` and context change nothing.

        """
        return await self._client._run(calls.explain(self.name, query, id, k, **self._fresh(options)))

    async def search_many(
        self, queries: Queries, k: int = 10, **options: Unpack[SearchOptions]
    ) -> list[Hits]:
        """Return the hits of each query, in their order; far cheaper than one call each. At most 1,000 queries."""
        return await self._client._run(calls.search_many(self.name, queries, k, **self._fresh(options)))

    @overload
    def search_each(
        self,
        queries: QueryStream,
        k: int = 10,
        *,
        batch_size: int = 100,
        in_flight: int = 4,
        progress: Progress = False,
        errors: Literal["raise"] = "raise",
        **options: Unpack[SearchOptions],
    ) -> AsyncIterator[Hits]: ...

    @overload
    def search_each(
        self,
        queries: QueryStream,
        k: int = 10,
        *,
        batch_size: int = 100,
        in_flight: int = 4,
        progress: Progress = False,
        errors: Literal["return"],
        **options: Unpack[SearchOptions],
    ) -> AsyncIterator[Hits | ScanneryError]: ...

    def search_each(
        self,
        queries: QueryStream,
        k: int = 10,
        *,
        batch_size: int = 100,
        in_flight: int = 4,
        progress: Progress = False,
        errors: Errors = "raise",
        **options: Unpack[SearchOptions],
    ) -> Any:
        """Return the hits of any number of queries, in their order, as they come.

        Batches are asked side by side, so that neither the server nor the wire ever waits for the other; batches are
        read from `queries` only as fast as hits are taken.

        Args:
            queries: texts, vectors or `Like`; any iterable, or an array `(queries, dimensions)`.
            k: hits wanted of each.
            batch_size: queries in one call, 1 to 1,000.
            in_flight: calls under way at once, 1 to 64.
            progress: True for a progress bar, or a function that is told how many queries are answered.
            errors: `return` gives the error of a query in the place of its hits, and goes on.
            options: see `SearchOptions`.

        """
        parts = query_batches(queries, k, batch_size, in_flight, errors)
        return search_batches(
            lambda part: self.search_many(part, k, **options),
            parts,
            in_flight,
            progress,
            errors,
            size_of(queries),
        )

    async def get(
        self,
        ids: Sequence[Identifier],
        *,
        fields: Sequence[str] | None = None,
        vectors: bool = False,
        timeout_s: float | None = None,
    ) -> list[Datapoint | None]:
        """Return the datapoints with these ids (at most 1,000), in their order; None for one that is not there."""
        return await self._client._run(
            calls.get(
                self.name,
                ids,
                fields=fields,
                vectors=vectors,
                min_sequence=self._seen(),
                timeout_s=timeout_s,
            )
        )

    def scan(
        self,
        *,
        where: Where | None = None,
        fields: Sequence[str] | None = None,
        order_by: str | None = None,
        vectors: bool = False,
        sample: int | None = None,
        seed: int = 0,
        page_size: int | None = None,
        token: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncScan:
        """Return an iterator over the datapoints of one snapshot: writes while it runs change nothing of it.

        Args:
            where: which datapoints; default: all.
            fields: what a datapoint carries of `title`, `text`, `payload`, `offsets` and attributes by name; default:
                all.
            order_by: an attribute, `id` or `document_id`; with `-` before it the greatest first. Datapoints without the
                attribute come last, equal ones by id. Of a dynamic attribute, numbers come before strings, and strings
                before booleans; lists and objects come after them. Default: the order in which the index reads fastest.
            vectors: also return the vectors.
            sample: number of datapoints to choose at random.
            seed: of the choice: equal seeds choose equal datapoints of one snapshot.
            page_size: datapoints read at once, 1 to 10,000; default: 5,000. A server's next page is read while the
                datapoints of a page are taken.
            token: continue an earlier scan with the same arguments, after the datapoint at which its `token` was read.
            timeout_s: of each page.

        Raises:
            InvalidArgumentError: an argument is wrong, or the token is of another index or another scan.
            FailedPreconditionError: when a page is read: the snapshot of the token is gone; start again without it.

        """
        request = build_scan(
            self.name,
            where=where,
            fields=fields,
            order_by=order_by,
            vectors=vectors,
            sample=sample,
            seed=seed,
            page_size=page_size,
        )

        async def read(at: str | None) -> ScanPage:
            sequence = self._client._sequences.get(self.name, 0)
            page = await self._client._run(
                calls.scan_page(request, at, min_sequence=sequence, timeout_s=timeout_s)
            )
            request.index = page.index_name or self.name  # an alias may be moved while the scan runs
            return page

        # In one process, the two would take turns with the interpreter: together they took longer than one by one.
        return AsyncScan(read, checked_token(token), ahead=self._client._transport.remote)

    async def project(
        self,
        *,
        where: Where | None = None,
        limit: int | None = None,
        attributes: Sequence[str] = (),
        seed: int = 0,
        vector: str | None = None,
        timeout_s: float | None = None,
    ) -> Projection:
        """Return a map of datapoints in two dimensions, by the main directions of the vectors (PCA).

        Maps of a version agree, whatever their filter: live updates are placed in them, and change no other place. All
        datapoints of a map are of one snapshot.

        Args:
            where: which datapoints; default: all.
            limit: most datapoints, at most 500,000, chosen at random if there are more; default: 100,000.
            attributes: names of attributes to return.
            seed: of the choice: equal seeds choose equal datapoints of one snapshot.
            vector: name of the vectors; default: the unnamed ones.
            timeout_s: of each page of 10,000.

        Raises:
            InvalidArgumentError: an argument is wrong.
            FailedPreconditionError: the index has no vectors.

        """
        request = build_map(
            self.name, where=where, limit=limit, seed=seed, attributes=attributes, vector=vector
        )
        parts: list[Projection] = []
        token: str | None = ""
        while token is not None:
            page = await self._client._run(
                map_page(request, token, min_sequence=self._seen(), timeout_s=timeout_s)
            )
            parts.append(page.part)
            request.index = page.index_name or self.name  # an alias may be moved while pages are read
            token = page.next_token or None
        return joined_map(parts)

    async def embed(
        self, texts: Sequence[str], *, kind: TextKind = "query", timeout_s: float | None = None
    ) -> np.ndarray:
        """Return the vectors of texts in the space of the index, float32 (texts, dimensions); at most 1,000 texts."""
        return await self._client._run(calls.embed(texts, kind, index=self.name, timeout_s=timeout_s))

    async def alter(
        self,
        *,
        attributes: Mapping[str, Any] | None = None,
        dynamic: Literal[True] | None = None,
        vectors: Literal["optional"] | None = None,
        named_vectors: NamedVectors | None = None,
        encoder: Mapping[str, Any] | None = None,
        vector_model: str | None = None,
        target_recall: float | None = None,
        reranker: str | Mapping[str, Any] | None = None,
        search: Mapping[str, Any] | None = None,
        live: Mapping[str, Any] | None = None,
        if_version: int | None = None,
        timeout_s: float | None = None,
    ) -> IndexInfo:
        """Change the spec of the index while it is used: it becomes a new version, which is returned.

        Datapoints stay as they are, and are null in new attributes. What would change them is refused: the type of an
        attribute, its removal, distance, encoder, words, chunking. A server needs the scope `admin`.

        Args:
            attributes: name → type of new attributes.
            dynamic: allow attributes that are not declared.
            vectors: allow datapoints without a vector.
            named_vectors: name → new named vectors, as in `create_index`; datapoints have none until they are written.
            encoder: `{"query_model": …}`: a model for queries alone, or None for that of the documents; other keys of
                `encoder` stay.
            vector_model: the model of the vectors that you write, if none was named before.
            target_recall: share of the true nearest neighbours that searches find.
            reranker: a cross-encoder for `rerank`: its name, or a mapping as in SPEC.yaml.
            search: defaults of searches, as in SPEC.yaml; other keys of `search` stay.
            live: thresholds of live updates, as in SPEC.yaml; other keys of `live` stay.
            if_version: refuse if the index has another version than this one.
            timeout_s: of the call.

        Raises:
            InvalidArgumentError: a change is wrong or not possible; `field` names the key, and the message the way.
            FailedPreconditionError: the server may not load the model, or the index has another version.

        """
        return await self._client._run(
            lifecycle_calls.alter_index(
                self.name,
                attributes=attributes,
                dynamic=dynamic,
                vectors=vectors,
                named_vectors=named_vectors,
                encoder=encoder,
                vector_model=vector_model,
                target_recall=target_recall,
                reranker=reranker,
                search=search,
                live=live,
                if_version=if_version,
                timeout_s=timeout_s,
            )
        )

    async def versions(
        self, limit: int | None = None, *, timeout_s: float | None = None
    ) -> list[VersionInfo]:
        """Return the versions that are kept, the newest first, also of an index that cannot be opened.

        Args:
            limit: most versions to return; default: all.
            timeout_s: of each page of a hundred.

        """
        infos: list[VersionInfo] = []
        token: str | None = ""
        while token is not None and (limit is None or len(infos) < limit):
            page, following = await self._client._run(
                lifecycle_calls.list_versions(self.name, token, timeout_s=timeout_s)
            )
            infos += page
            token = following or None
        return infos[:limit]

    async def version(self, version: int | None = None, *, timeout_s: float | None = None) -> VersionInfo:
        """Return a version with its spec and its curves of recall; by default the current one.

        Raises:
            NotFoundError: there is no such index or version.

        """
        return await self._client._run(lifecycle_calls.get_version(self.name, version, timeout_s=timeout_s))

    async def rollback(
        self, version: int, *, if_version: int | None = None, timeout_s: float | None = None
    ) -> IndexInfo:
        """Publish the content of an earlier version as a new one, which servers move to, and return the index.

        Live updates that were sealed since then are undone, and are not applied again, unless the current version is
        damaged and the log still has them. A rollback can be rolled back. A server needs the scope `admin`.

        Args:
            version: whose content is published.
            if_version: refuse if the index has another version than this one.
            timeout_s: of the call.

        Raises:
            NotFoundError: there is no such index or version, or a file of it is missing.
            FailedPreconditionError: the index has another version, or its contents were exchanged with those of a
                mirror since.

        """
        return await self._client._run(
            lifecycle_calls.rollback_index(self.name, version, if_version=if_version, timeout_s=timeout_s)
        )

    async def kept_queries(self, limit: int | None = None, *, timeout_s: float | None = None) -> np.ndarray:
        """Return vectors of queries that a server has kept, float32 `(queries, dimensions)`, in no order.

        They are a uniform sample of the queries by vector and text of all callers; none if the server was started
        without `--keep-queries`. A server needs the scope `admin`.

        Args:
            limit: most queries to return, at most 10,000.
            timeout_s: of the call.

        """
        return await self._client._run(
            lifecycle_calls.kept_queries(self.name, limit=limit, timeout_s=timeout_s)
        )

    def _fresh(self, options: SearchOptions) -> SearchOptions:
        return {"min_sequence": self._seen(), **options}

    def _repr_html_(self) -> str:
        from scannery.client.response.notebook import handle_view

        return handle_view(self.name, self.stats)

    def __repr__(self) -> str:
        return f"AsyncIndex({self.name!r})"
