"""What the vectors of a new index or of a new name will be: dimensions, and the fingerprint of the encoder."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from scannery.indexer import EncoderSpec, IndexSpec, NamedVectorsInfo
from scannery.serving.catalog.base_catalog import BaseCatalog
from scannery.serving.services.allowed_models import AllowedModels

__all__ = ["VectorSpace", "VectorSpaces", "encoder_options"]


class VectorSpace(NamedTuple):
    """Vectors that can be compared."""

    dimensions: int
    fingerprint: dict[str, Any] | None
    """Of the encoder; None without one."""


class VectorSpaces:
    """Finds the vectors of encoders for one catalog. Safe to use from several threads."""

    def __init__(self, catalog: BaseCatalog, models: Collection[str] | None) -> None:
        """Look in a catalog.

        Args:
            catalog: the indexes.
            models: as of `AllowedModels`.

        """
        self._catalog, self._models = catalog, AllowedModels(catalog, models)

    def of_encoder(self, spec: EncoderSpec, field: str) -> VectorSpace:
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
        found: dict[str, NamedVectorsInfo] = {}
        for name in names:
            own = spec.named_vectors[name]
            if own.encoder is not None:
                space = self.of_encoder(own.encoder, f"{front}.named_vectors.{name}.encoder.model")
                found[name] = NamedVectorsInfo(dimensions=space.dimensions, encoder=space.fingerprint)
            else:
                assert own.dimensions is not None
                found[name] = NamedVectorsInfo(dimensions=own.dimensions)
        return found

    def _of_served(self, spec: EncoderSpec) -> VectorSpace | None:
        """Return the vectors of an index with the same encoder, so that no model is loaded."""
        wanted = encoder_options(spec)
        return next((space for own, space in self._served() if encoder_options(own) == wanted), None)

    def _served(self) -> Iterator[tuple[EncoderSpec, VectorSpace]]:
        """Yield the encoders of the indexes that the caller can see."""
        for manifest in self._catalog.manifests():
            if manifest.spec.encoder is not None and manifest.encoder is not None:
                yield manifest.spec.encoder, VectorSpace(manifest.dimensions, manifest.encoder)
            for name, info in manifest.named_vectors.items():
                own = manifest.spec.named_vectors[name].encoder
                if own is not None and info.encoder is not None:
                    yield own, VectorSpace(info.dimensions, info.encoder)

    def _of_model(self, spec: EncoderSpec, field: str) -> VectorSpace:
        self._models.check(spec.model, field)
        fingerprint = self._catalog.encoders.fingerprint_of(spec, field=field)
        return VectorSpace(fingerprint.dimensions, fingerprint.to_dict())


def encoder_options(spec: EncoderSpec | None) -> dict[str, Any] | None:
    """Return what determines the vectors of texts; None without an encoder."""
    return None if spec is None else spec.model_dump(exclude={"device", "dtype"})
