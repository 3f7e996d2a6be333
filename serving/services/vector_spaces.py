"""What the vectors of a new index or of a new name will be: dimensions, and the fingerprint of the encoder."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from scannery.indexer import EncoderSpec, IndexSpec, NamedVectorsInfo
from scannery.indexer.versions.creation import given_vectors
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.services.allowed_models import AllowedModels

__all__ = ["VectorSpaces", "encoder_options"]


class VectorSpaces:
    """Finds the vectors of encoders for one catalog. Safe to use from several threads."""

    def __init__(self, catalog: BaseCatalog, models: Collection[str] | None) -> None:
        """Look in a catalog.

        Args:
            catalog: the indexes.
            models: as of `AllowedModels`.

        """
        self._catalog, self._models = catalog, AllowedModels(catalog, models)

    def of_encoder(self, spec: EncoderSpec, field: str) -> NamedVectorsInfo:
        """Return the vectors of an encoder; EncoderUnavailableError for a field if it cannot be used here."""
        return self._of_served(spec) or self._of_model(spec, field)

    def of_names(self, spec: IndexSpec, names: Collection[str], front: str) -> dict[str, NamedVectorsInfo]:
        """Return what is known of named vectors, by name.

        Args:
            spec: of the index.
            names: of which vectors.
            front: of the fields in errors.

        Raises:
            EncoderUnavailableError: the encoder of a name cannot be used here.

        """
        encoders = spec.named_encoders
        return {
            name: self.of_encoder(encoders[name], f"{front}.named_vectors.{name}.encoder.model")
            if name in encoders
            else given_vectors(spec, name)
            for name in names
        }

    def _of_served(self, spec: EncoderSpec) -> NamedVectorsInfo | None:
        """Return the vectors of an index that the caller can see with the same encoder, so that no model is loaded."""
        wanted = encoder_options(spec)
        for manifest in self._catalog.manifests():
            for own in manifest.encoded.values():
                if own.encoder is not None and encoder_options(own.spec.encoder) == wanted:
                    return NamedVectorsInfo(dimensions=own.dimensions, encoder=own.encoder)
        return None

    def _of_model(self, spec: EncoderSpec, field: str) -> NamedVectorsInfo:
        self._models.check(spec.model, field)
        fingerprint = self._catalog.encoders.fingerprint_of(spec, field=field)
        return NamedVectorsInfo(dimensions=fingerprint.dimensions, encoder=fingerprint.to_dict())


def encoder_options(spec: EncoderSpec | None) -> dict[str, Any] | None:
    """Return what determines the vectors of texts; None without an encoder."""
    return None if spec is None else spec.model_dump(exclude={"device", "dtype"})
