"""Scans: the datapoints that a filter allows, page by page, all from one snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from scannery.runtime.errors import InvalidRequestError, SnapshotGoneError, StateGoneError
from scannery.runtime.retry import Deadline
from scannery.serving.catalog.catalog import Catalog
from scannery.serving.catalog.held_snapshots import HeldSnapshot
from scannery.serving.contract import SEARCH_SERVICE
from scannery.serving.engine.scanning.scan_result import ScanPages
from scannery.serving.request.scan import (
    PageToken,
    page_size_of,
    parse_page_token,
    parse_scan,
    request_digest,
)
from scannery.serving.security.principal import current_seen
from scannery.serving.services.registry import UnaryMethod
from scannery.serving.services.shards import Shards, View
from scannery.serving.snapshot.snapshot import Snapshot
from scannery.serving.telemetry.query_stats import QueryStats
from scannery.v1 import search_pb2 as pb

__all__ = ["Scans", "as_seen", "digest_of"]

AnswerT = TypeVar("AnswerT")


class Scans:
    """The handler of Scan. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, shards: Shards) -> None:
        """Prepare.

        Args:
            catalog: has the indexes, and keeps the snapshots of running scans.
            shards: have the rows.

        """
        self._catalog, self._shards = catalog, shards
        self.methods = {
            f"/{SEARCH_SERVICE}/Scan": UnaryMethod(
                pb.ScanRequest, self.scan, "read", pb.ScanResponse, narrowed=True
            )
        }

    def scan(self, request: pb.ScanRequest, deadline: Deadline, stats: QueryStats) -> bytes:
        """Return a page, as a serialised ScanResponse. A token has all that another server needs to continue.

        Raises:
            InvalidRequestError: the request is invalid, or its token is not of it.
            SnapshotGoneError: the snapshot cannot be opened any more.

        """
        page_size_of(request)
        return self.read(
            request, deadline, lambda held, token: self._page(request, held, token, deadline, stats)
        )

    def read(
        self,
        request: pb.ScanRequest,
        deadline: Deadline,
        page: Callable[[HeldSnapshot, PageToken], AnswerT],
    ) -> AnswerT:
        """Return what `page` reads of a scan at the token of the request, in its snapshot; raises as `scan`."""
        if not request.page_token:

            def first(view: View) -> AnswerT:
                return page(*self._first(request, view.snapshot))

            return self._shards.read(request.index, request.min_sequence, deadline, first)
        current = self._catalog.snapshot(request.index).manifest
        token = parse_page_token(request.page_token, current, digest_of(request))
        try:
            held = self._catalog.held_snapshot(
                request.index, token.version, token.sequence, token.second, deadline=deadline
            )
            return page(held, token)
        except StateGoneError as error:
            raise SnapshotGoneError(
                "page_token: the snapshot of the scan is gone from the leaves; start again without a token",
                field="page_token",
            ) from error

    def _page(
        self,
        request: pb.ScanRequest,
        held: HeldSnapshot,
        token: PageToken,
        deadline: Deadline,
        stats: QueryStats,
    ) -> bytes:
        """Return a page of a scan that has begun, as a serialised ScanResponse."""
        size, digest, snapshot = page_size_of(request), digest_of(request), held.snapshot
        with stats.stage("scan"):
            result = self.result(request, held, token, deadline)
        with stats.stage("hydrate"):
            page = result.page(token.position, size, deadline)
        stats.counts = (len(page),)
        base, (start, stop) = token.snapshot_text(snapshot.manifest, digest), page.span
        end = token.position + stop
        tail = pb.ScanResponse(
            next_page_token=f"{base}.{end}" if end < result.total else "",
            total=result.total,
            version=snapshot.manifest.version,
            sequence=snapshot.sequence,
            page_token=f"{base}.{token.position + start}",
            index=snapshot.manifest.index,
        )
        return page.data[: int(page.sizes_P[:stop].sum())] + tail.SerializeToString()

    def result(
        self, request: pb.ScanRequest, held: HeldSnapshot, token: PageToken, deadline: Deadline
    ) -> ScanPages:
        """Return the datapoints of a scan; InvalidRequestError if the position of a token is beyond them."""
        result = self._catalog.held.result(
            held, digest_of(request), lambda: self._shards.pages(as_seen(held), request, deadline)
        )
        if token.position > result.total:
            raise InvalidRequestError.at(
                "page_token", f"must have a position of at most {result.total}, got {token.position}"
            )
        return result

    def _first(self, request: pb.ScanRequest, snapshot: Snapshot) -> tuple[HeldSnapshot, PageToken]:
        """Return a snapshot, kept from now on, and the token of the first page."""
        parse_scan(request, snapshot.manifest.spec)  # no snapshot is kept for a request that fails
        token = PageToken(
            version=snapshot.manifest.version,
            sequence=snapshot.sequence,
            second=snapshot.index.second,
            position=0,
        )
        return self._catalog.held.hold(snapshot), token


def as_seen(held: HeldSnapshot) -> Snapshot:
    """Return a snapshot of a scan as the caller sees it."""
    return held.snapshot.as_seen(current_seen(held.snapshot.manifest.index))


def digest_of(request: pb.ScanRequest) -> bytes:
    """Return a hash of what all pages of a scan of the caller have in common: others see other rows."""
    seen = current_seen(request.index)
    return request_digest(request, seen=b"" if seen is None else seen.identity)
