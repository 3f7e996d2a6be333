"""Create an empty index, and change the spec of one.

Only changes that existing rows fit are possible. An attribute that is added is null in all rows before it: files are
not rewritten, and readers take a column that a file lacks as null (`Segment.with_columns`). Likewise all rows before a
named vector lack it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from scannery.indexer.errors import AlreadyExistsError, InvalidSpecError, NotFoundError, ReplacedError
from scannery.indexer.lexical.analyser import ANALYSER_VERSION
from scannery.indexer.manifest import (
    Manifest,
    Mirror,
    Recall,
    Relevance,
    VectorsInfo,
    stored_vectors,
    vectors_key,
)
from scannery.indexer.spec.model import later_keys
from scannery.indexer.spec.spec import EncoderSpec, IndexSpec, LexicalSpec, NamedVectorSpec
from scannery.indexer.spec.spec_files import parse_spec
from scannery.indexer.store.object_store import Store
from scannery.indexer.tuning.settings_choice import expected_recall
from scannery.indexer.versions.declared_models import spec_problem
from scannery.indexer.versions.levels import level_of
from scannery.indexer.versions.versions import check_no_alias, commit, latest_version, read_manifest

__all__ = [
    "alter_index",
    "altered_spec",
    "calibrate_index",
    "create_index",
    "given_vectors",
    "keeps_compounds",
    "new_manifest",
    "promote_index",
    "with_analyser",
    "without_query_model",
]


def create_index(
    store: Store,
    spec: IndexSpec,
    *,
    vectors: Mapping[str, VectorsInfo],
    request_id: str = "",
    mirror: Mirror | None = None,
) -> Manifest:
    """Publish version 1 of an index without datapoints, and return its manifest.

    Args:
        store: where the index will be.
        spec: of the index; with `shards: auto` it gets one shard.
        vectors: what is known of the vectors of each name; "" is the unnamed vector.
        request_id: a repetition with the same one returns the index that the first attempt created.
        mirror: the index that it will follow; None: it takes writes of its own.

    Raises:
        AlreadyExistsError: there is an index or an alias of this name.
        StoreError: the store cannot be written.

    """
    manifest = new_manifest(store, spec, vectors=vectors, request_id=request_id, mirror=mirror)
    check_no_alias(store, spec.index)
    try:
        if latest_version(store, spec.index) is None:
            return commit(store, manifest)
    except AlreadyExistsError:  # another process was quicker
        pass
    if (created := _created_before(store, spec.index, request_id)) is not None:
        return created
    raise AlreadyExistsError(f"index: there is an index {spec.index!r} already", field="index")


def new_manifest(
    store: Store,
    spec: IndexSpec,
    *,
    vectors: Mapping[str, VectorsInfo],
    request_id: str = "",
    mirror: Mirror | None = None,
) -> Manifest:
    """Return the manifest that `create_index` publishes with these arguments; nothing is written."""
    return Manifest(
        index=spec.index,
        version=1,
        created_at=datetime.now(timezone.utc),
        spec=with_analyser(spec, None, level=level_of(store)),
        **stored_vectors(vectors),
        shards=1 if spec.shards == "auto" else spec.shards,
        segments=(),
        mirror=mirror,
        statistics={"mode": "create", "request_id": request_id},
    )


def given_vectors(spec: IndexSpec, name: str) -> VectorsInfo:
    """Return what is known of named vectors without an encoder; InvalidSpecError if they have one."""
    dimensions = spec.named_vectors[name].dimensions
    if dimensions is None:
        field = f"named_vectors.{name}.encoder"
        raise InvalidSpecError(f"{field}: its dimensions and fingerprint are required", field=field)
    return VectorsInfo(dimensions=dimensions)


def without_query_model(spec: IndexSpec, name: str) -> dict[str, Any] | None:
    """Return None, the fingerprint of no model for queries; InvalidSpecError if the vectors of a name get one."""
    if spec.encoders[name].query_model is None:
        return None
    field = f"named_vectors.{name}.encoder.query_model" if name else "encoder.query_model"
    raise InvalidSpecError(f"{field}: its fingerprint is required", field=field)


def with_analyser(spec: IndexSpec, parent: IndexSpec | None, *, level: int) -> IndexSpec:
    """Return the spec with the analyser of the index before, where it leaves that open; a new index gets the newest.

    The words that compounds are split into are kept likewise, unless the spec has a list of its own or `false`, and so
    is the scope: a new index whose documents may have several rows counts their words, if a store of this level may.
    """
    if spec.lexical is None:
        return spec
    old, update = None if parent is None else parent.lexical, dict[str, Any]()
    if spec.lexical.analyser is None:
        update["analyser"] = old.analyser if old else ANALYSER_VERSION
    if spec.lexical.scope is None:
        has_passages = spec.source.chunk is not None or spec.source.document_id is not None
        counts_documents = has_passages and level >= later_keys(LexicalSpec)["scope"].level
        update["scope"] = old.scope if old else ("document" if counts_documents else None)
    if old and keeps_compounds(spec.lexical, old):
        update["compounds"] = old.compounds
    return spec.model_copy(update={"lexical": spec.lexical.model_copy(update=update)})


def keeps_compounds(lexical: LexicalSpec, old: LexicalSpec) -> bool:
    """Return whether an update with `lexical` splits compounds as the index does."""
    if lexical.compounds is None:
        return True
    return isinstance(old.compounds, list) and (
        lexical.compounds is True or isinstance(lexical.compounds, str)
    )


def with_query_model(spec: IndexSpec, parent: Manifest | None) -> IndexSpec:
    """Return the spec with the model for queries that was promoted, where documents have the same encoder.

    So a promotion outlasts the next build, whose file does not know of it; one that names a model for queries has its
    own.
    """
    if parent is None or parent.model is None:
        return spec
    old, new = parent.spec.encoder, spec.encoder
    if old is None or new is None or new.query_model is not None or not _are_alike(old.documents, new):
        return spec
    encoder = new.model_copy(update={"query_model": old.query_model})
    return spec.model_copy(update={"encoder": encoder})


def _are_alike(first: EncoderSpec, second: EncoderSpec) -> bool:
    """Return whether two encoders make equal vectors, wherever they run."""
    options = {"device", "dtype"}
    return first.model_dump(exclude=options) == second.model_dump(exclude=options)


def _created_before(store: Store, index: str, request_id: str) -> Manifest | None:
    """Return the version that an earlier attempt of the same request created."""
    if not request_id:
        return None
    try:
        first = read_manifest(store, index, 1)
    except NotFoundError:  # removed by gc, long after the request
        return None
    return first if first.statistics.get("request_id") == request_id else None


MAX_ATTEMPTS = 20
"""Attempts to commit while other processes commit versions."""

_POSSIBLE = (
    "attributes",
    "named_vectors",
    "dynamic",
    "vectors",
    "target_recall",
    "search",
    "live",
    "reranker",
    "vector_model",
)
"""Keys of which at least some changes fit existing rows."""
_OTHER_WAY = (
    "create another index with this spec, fill it, and move an alias to it; or `scannery build --full`"
)


def alter_index(
    store: Store,
    index: str,
    change: Callable[[Manifest], IndexSpec],
    *,
    named: Callable[[IndexSpec, str], VectorsInfo] = given_vectors,
    queries: Callable[[IndexSpec, str], dict[str, Any] | None] = without_query_model,
) -> Manifest:
    """Publish a version with a changed spec, and return its manifest; the current one if the spec stays the same.

    Args:
        store: the store.
        index: name of the index.
        change: returns the new spec for the current version; called again if another version was published meanwhile.
            Its errors end the call.
        named: returns what is known of a named vector that is added, for the changed spec and its name. Default: for
            names without an encoder.
        queries: returns the fingerprint of the model for queries alone that the vectors of a name get, for the changed
            spec and the name; None: they have none any more. Default: for names without one.

    What was measured of searches with another model for queries is not kept: until a build measures it again, hybrid
    search has the default weight and scales of each query, and hits of the modes with vectors have no relevance.

    Raises:
        InvalidSpecError: a name with an encoder is added, without `named`; or a model for queries, without `queries`.
        NotFoundError: there is no such index.
        CorruptError, FormatError: the current version cannot be read.
        AlreadyExistsError: in each of MAX_ATTEMPTS attempts, another version was published meanwhile.

    """

    def altered(parent: Manifest) -> Manifest:
        spec = change(parent)
        if problem := spec_problem(spec, parent.vectors[""]):
            raise _refused("vector_model", problem)
        return parent if spec == parent.spec else _altered(parent, spec, named, queries)

    return _published(store, index, altered)


def calibrate_index(store: Store, searched: Manifest, relevance: Relevance) -> Manifest:
    """Publish a version whose scores mean something else, and return its manifest.

    Args:
        store: the store.
        searched: the version whose hits were judged.
        relevance: what its scores mean.

    Raises:
        NotFoundError, CorruptError, FormatError, AlreadyExistsError: as `alter_index`.
        InvalidSpecError: the current version was measured since then, so its scores are others.

    """

    def calibrated(parent: Manifest) -> Manifest:
        if (parent.fusion, parent.relevance) != (searched.fusion, searched.relevance):
            raise _refused(
                "relevance",
                f"was measured again in version {parent.version}, after the search for hits: calibrate that version",
            )
        statistics = {"mode": "calibrate", "builds": parent.builds}
        return parent.model_copy(
            update={"parent": parent.version, "relevance": relevance, "statistics": statistics}
        )

    return _published(store, searched.index, calibrated)


def promote_index(
    store: Store, index: str, change: Callable[[Manifest], Manifest], *, mode: str = "rank"
) -> Manifest:
    """Publish a version with another state of searches (`SearchState`), or other maps, and return its manifest.

    No stored vector, word or file is touched.

    Args:
        store: the store.
        index: name of the index.
        change: returns the current version with another state, or as it is; called again if another version was
            published meanwhile. Its errors end the call.
        mode: what the statistics of the version call the change.

    Raises:
        NotFoundError, CorruptError, FormatError, AlreadyExistsError: as `alter_index`.

    """

    def promoted(parent: Manifest) -> Manifest:
        manifest = change(parent)
        if manifest == parent:
            return parent
        statistics = {"mode": mode, "builds": parent.builds}
        return manifest.model_copy(update={"parent": parent.version, "statistics": statistics})

    return _published(store, index, promoted)


def _published(store: Store, index: str, change: Callable[[Manifest], Manifest]) -> Manifest:
    """Commit what `change` returns for the current version; the current one if that stays the same."""
    for attempt in range(MAX_ATTEMPTS):
        parent = read_manifest(store, index)
        manifest = change(parent)
        if manifest is parent:
            return parent
        try:
            return commit(store, manifest)
        except ReplacedError:
            raise
        except AlreadyExistsError:
            if attempt + 1 == MAX_ATTEMPTS:
                raise
    raise AssertionError


def altered_spec(spec: IndexSpec, changes: Mapping[str, Any]) -> IndexSpec:
    """Return a spec with changes: mappings are merged key by key, other values replaced.

    Args:
        spec: of the index.
        changes: keys of SPEC.yaml.

    Raises:
        InvalidSpecError: a key or value is wrong, or the change needs a new build; the message says what to do.

    """
    data = spec.model_dump(mode="json")
    for key, value in changes.items():
        merges = isinstance(value, Mapping) and isinstance(data.get(key), Mapping)
        merged = {**data[key], **value} if merges else value
        is_stored = _stored_part(key, merged) != _stored_part(key, data.get(key))
        if key in IndexSpec.model_fields and key not in _POSSIBLE and is_stored:
            what = "an alias gives the index another name" if key == "index" else _OTHER_WAY
            raise _refused(key, f"cannot be changed, since it determines what is stored: {what}")
        data[key] = merged
    if spec.vector_model is not None and data.get("vector_model") != spec.vector_model:
        raise _refused("vector_model", f"is {spec.vector_model!r}, that of the stored vectors: {_OTHER_WAY}")
    removed = [name for name, kind in (data.get("attributes") or {}).items() if kind is None]
    if gone := spec.attributes.keys() & removed:
        raise _refused(f"attributes.{min(gone)}", f"cannot be removed. To be without it, {_OTHER_WAY}")
    _check_names_stay(spec, data.get("named_vectors"))
    changed = parse_spec(data)
    _check_attributes(spec, changed)
    _check_named_vectors(spec, changed)
    for key, value in (("dynamic", True), ("vectors", "optional")):
        if getattr(spec, key) == value and getattr(changed, key) != value:
            raise _refused(key, f"cannot be taken back, since rows may depend on it: {_OTHER_WAY}")
    return changed


def _stored_part(key: str, value: object) -> object:
    """Return what of a key determines what is stored: all but the model for queries."""
    if key != "encoder" or not isinstance(value, Mapping):
        return value
    return {name: each for name, each in value.items() if name != "query_model"}


def _check_attributes(old: IndexSpec, new: IndexSpec) -> None:
    for name, kind in old.attributes.items():
        if new.attributes.get(name) != kind:
            raise _refused(
                f"attributes.{name}",
                f"has type {kind}, which stays: add an attribute with another name, or {_OTHER_WAY}",
            )


def _check_names_stay(spec: IndexSpec, names: object) -> None:
    named = names if isinstance(names, Mapping) else {}
    for name in spec.named_vectors:
        if named.get(name) is None:
            raise _refused(f"named_vectors.{name}", f"cannot be removed. To be without it, {_OTHER_WAY}")


def _check_named_vectors(old: IndexSpec, new: IndexSpec) -> None:
    for name, vector_spec in old.named_vectors.items():
        if _of_documents(new.named_vectors[name]) != _of_documents(vector_spec):
            raise _refused(
                f"named_vectors.{name}",
                f"cannot be changed, since it determines what is stored: add another name, or {_OTHER_WAY}",
            )


def _of_documents(spec: NamedVectorSpec) -> NamedVectorSpec:
    return spec.model_copy(update={"encoder": spec.encoder and spec.encoder.documents})


def _refused(field: str, what: str) -> InvalidSpecError:
    return InvalidSpecError(f"{field}: {what}", field=field)


def _altered(
    parent: Manifest,
    spec: IndexSpec,
    named: Callable[[IndexSpec, str], VectorsInfo],
    queries: Callable[[IndexSpec, str], dict[str, Any] | None],
) -> Manifest:
    before, encoders = parent.vectors, parent.spec.encoders
    vectors = {name: before.get(name) or named(spec, name) for name in ("", *spec.named_vectors)}
    for name, encoder in spec.encoders.items():
        if name in encoders and encoder.query_model != encoders[name].query_model:
            vectors[name] = vectors[name].model_copy(update={"query_encoder": queries(spec, name)})
    return parent.model_copy(
        update={
            "parent": parent.version,
            "spec": spec,
            "recall": _recall(parent, spec),
            **stored_vectors(vectors),
            **_measured(parent, vectors),
            "statistics": {"mode": "alter", "builds": parent.builds},
        }
    )


def _measured(parent: Manifest, vectors: Mapping[str, VectorsInfo]) -> dict[str, Any]:
    """Return the fields of a manifest for measurements of searches by text, as far as these hold for its encoders."""
    changed = {
        name for name, info in parent.vectors.items() if info.sides_digest != vectors[name].sides_digest
    }
    relevance = parent.relevance
    if relevance is not None:
        gone = {vectors_key(name) for name in changed}
        models = {key: each for key, each in relevance.models.items() if key not in gone}
        relevance = relevance.model_copy(update={"models": models})
    if "" not in changed:
        return {"relevance": relevance}
    if relevance is not None:  # scores by words stay what they are
        digest = vectors[""].sides_digest
        relevance = relevance.of_modes(("lexical",)).model_copy(update={"encoder": digest})
    return {"fusion": None, "relevance": relevance, "ranker": None, "model": None}


def _recall(parent: Manifest, spec: IndexSpec) -> Recall | None:
    if spec.target_recall == parent.spec.target_recall:
        return parent.recall
    queries_key = parent.recall.given_queries if parent.recall else None
    return expected_recall(parent.segments, spec.target_recall, given_queries=queries_key)
