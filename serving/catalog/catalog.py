"""The former name of the catalog of an embedded engine, for callers that do not use `open_embedded` yet."""

from __future__ import annotations

from scannery.serving.catalog.embedded_catalog import CHECK_EVERY_S, EmbeddedCatalog

__all__ = ["CHECK_EVERY_S", "Catalog"]

Catalog = EmbeddedCatalog
