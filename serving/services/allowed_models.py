"""Which models a request may name: a server loads only those that its operator or a served index names."""

from __future__ import annotations

from collections.abc import Collection

from scannery.runtime.errors import EncoderUnavailableError
from scannery.serving.catalog.base_catalog import BaseCatalog

__all__ = ["AllowedModels"]


class AllowedModels:
    """The models of the operator, and those of the indexes that the caller can see."""

    def __init__(self, catalog: BaseCatalog, models: Collection[str] | None) -> None:
        """Keep both.

        Args:
            catalog: the indexes.
            models: names of further models; None: any is allowed.

        """
        self._catalog, self._models = catalog, models

    def check(self, model: str, field: str) -> None:
        """Raise EncoderUnavailableError for a field of the request if it may not name this model."""
        if self._models is None or model in self._models:
            return
        named = {
            part.model
            for manifest in self._catalog.manifests()
            for part in (
                *manifest.spec.encoders.values(),
                manifest.spec.reranker,
            )
            if part is not None
        }
        if model not in named:
            known = ", ".join(sorted({*named, *self._models})) or "none"
            raise EncoderUnavailableError(
                f"{field}: {model!r:.200} is not among the models of this server ({known}); its operator can add it "
                "with --model",
                field=field,
            )
