"""What a collection of another system is, in the terms of an index, and the checks that all readers share.

What a user may say about the source of an import.

The systems that can be read, by name.
"""

from __future__ import annotations

import datetime as dt
import math
import re
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from importlib import import_module, metadata
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
from packaging.markers import Marker
from packaging.requirements import Requirement

from scannery.indexer import Distance
from scannery.indexer.spec.vector_spec import MAX_NAMED_VECTORS, VECTOR_NAME
from scannery.pipelines.errors import MissingPackageError, PeerError

__all__ = [
    "PEERS",
    "Peer",
    "PeerCollection",
    "PeerOptions",
    "PeerRecord",
    "PeerVectors",
    "as_identifier",
    "chosen",
    "distance_of",
    "json_value",
    "loaded",
    "names_in_index",
    "open_peer",
    "record_problem",
    "rename_notes",
    "vector_columns",
    "vector_problem",
]


MAX_SHOWN = 20
"""Names in a message."""


class PeerVectors(NamedTuple):
    """What vectors of a collection are."""

    dimensions: int
    distance: Distance


class PeerRecord(NamedTuple):
    """A row of another system."""

    id: str
    vector: np.ndarray | None
    """float32 (dimensions,); None if the row has none."""
    payload: Mapping[str, Any]
    """JSON values by name: what becomes attributes."""
    text: str | None = None
    """Where the system knows which field is the text."""
    vectors: Mapping[str, np.ndarray] = {}
    """The named vectors that the row has, float32 (dimensions,)."""


@dataclass(frozen=True, kw_only=True)
class PeerCollection:
    """A collection of another system; `records` reads it from its beginning."""

    name: str
    dimensions: int
    """Dimensions of the unnamed vector; 0: there are named vectors only."""
    distance: Distance
    rows: int | None
    """None: not known."""
    records: Callable[[int], Iterator[list[PeerRecord]]]
    """Yields batches of about the size given, in an order that stays the same."""
    named: Mapping[str, PeerVectors] = field(default_factory=dict)
    """The named vectors, by their names in the index."""
    notes: Sequence[str] = ()
    """What a user should know about this import."""


def loaded(module: str, *, system: str) -> Any:
    """Return a module of a system's own package.

    Raises:
        MissingPackageError: it is not installed, or older than the extra `import-SYSTEM` asks for.

    """
    extra = f"import-{system}"
    try:
        package = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        raise MissingPackageError(
            f"importing from {system} needs a package of its own: pip install 'scannery[{extra}]'"
        ) from error
    for requirement in _requirements(extra):
        version = getattr(package, "__version__", None) or metadata.version(requirement.name)
        if not requirement.specifier.contains(version, prereleases=True):
            raise MissingPackageError(
                f"importing from {system} needs {requirement.name}{requirement.specifier}, and {version} is installed: "
                f"pip install 'scannery[{extra}]'"
            )
    return package


def _requirements(extra: str) -> list[Requirement]:
    """Return what an extra needs, as pyproject.toml declares it."""
    requirements = map(Requirement, metadata.requires("scannery") or ())
    return [each for each in requirements if each.marker is not None and _is_of(extra, each.marker)]


def _is_of(extra: str, marker: Marker) -> bool:
    return marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""})


def chosen(name: str | None, names: Collection[str], *, what: str, option: str) -> str:
    """Return the name that was given, or the only one there is; PeerError lists them otherwise.

    Args:
        name: the value of the option; None: not given.
        names: those that there are.
        what: they are, in the plural.
        option: names one.

    """
    shown = ", ".join(map(repr, sorted(names)[:MAX_SHOWN])) or "none"
    if name is not None:
        if name not in names:
            raise PeerError(f"{option}: there is no {name!r:.80} among the {what}: {shown}")
        return name
    if len(names) == 1:
        return next(iter(names))
    if not names:
        raise PeerError(f"the source has no {what}")
    raise PeerError(f"the source has {len(names)} {what}: {shown}; choose one by {option} NAME")


def vector_columns(column: str | None, columns: Sequence[str]) -> list[str]:
    """Return the columns of vectors to import: the one that was given, else all; PeerError if there are none."""
    if column is None and len(columns) > 1:
        return [*columns]
    return [chosen(column, columns, what="vector columns", option="--vector")]


def names_in_index(names: Sequence[str]) -> dict[str, str]:
    """Return what vectors are called in an index, by their names in the source.

    Characters that a name there cannot have become `_`.

    Raises:
        PeerError: there are more than an index can have.

    """
    if len(names) > MAX_NAMED_VECTORS:
        raise PeerError(
            f"the source has {len(names)} vectors, and an index at most {MAX_NAMED_VECTORS} names; choose one by "
            "--vector NAME"
        )
    index_names: dict[str, str] = {}
    for name in names:
        index_name = name if VECTOR_NAME.fullmatch(name) else _as_name(name)
        while index_name in index_names.values():
            index_name = f"{index_name[:60]}_2"
        index_names[name] = index_name
    return index_names


def _as_name(text: str) -> str:
    plain = re.sub(r"[^A-Za-z0-9_-]", "_", text)
    return plain[:63] if plain[:1].isalpha() else f"v_{plain}"[:63]


def rename_notes(names: Mapping[str, str]) -> list[str]:
    """Return a note for each vector that an index calls otherwise than its source."""
    return [
        f"the vector {name!r} is called {index_name!r}"
        for name, index_name in names.items()
        if name != index_name
    ]


def distance_of(
    peer_distance: str | None, distances: Mapping[str, Distance], override: Distance | None
) -> Distance:
    """Return the distance that was given, or that of a name of the system's own; PeerError if there is none."""
    if override is not None:
        return override
    if peer_distance is None:
        raise PeerError(
            "the source does not tell its distance; name it by --distance cosine, dot or squared_l2"
        )
    if peer_distance not in distances:
        raise PeerError(
            f"the source compares vectors by {peer_distance!r}, which an index cannot; choose another by --distance "
            "cosine, dot or squared_l2, which changes the order of hits"
        )
    return distances[peer_distance]


def record_problem(record: PeerRecord, collection: PeerCollection) -> str | None:
    """Return what is wrong with the vectors of a row; None: nothing."""
    if not collection.named:
        return vector_problem(record.vector, collection.dimensions, collection.distance)
    vectors = [("", record.vector, PeerVectors(collection.dimensions, collection.distance))]
    vectors += [(f"{name!r}: ", record.vectors[name], collection.named[name]) for name in record.vectors]
    present = [each for each in vectors if each[1] is not None]
    problems = ((name, vector_problem(vector, *shape)) for name, vector, shape in present)
    message = next((f"{name}{problem}" for name, problem in problems if problem is not None), None)
    return message if present else "has no vector"


def vector_problem(vector_D: np.ndarray | None, dimensions: int, distance: Distance) -> str | None:
    """Return what is wrong with a vector; None: nothing."""
    if vector_D is None:
        return "has no vector"
    if vector_D.shape != (dimensions,):
        return f"its vector has {vector_D.size} dimensions, not {dimensions}"
    if not np.isfinite(vector_D).all():
        return "its vector has NaN or infinity"
    if distance == "cosine" and not vector_D.any():
        return "its vector is all zeros, which has no direction for cosine"
    return None


def as_identifier(value: object) -> str:
    """Return an id as text: strings, integers and UUIDs have one; PeerError for others."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return str(int(value))
    if isinstance(value, uuid.UUID):
        return str(value)
    raise PeerError(
        f"the id {value!r:.80} is of the type {type(value).__name__}; ids must be strings, integers or UUIDs: choose "
        "another column by --id NAME"
    )


def json_value(value: object) -> Any:
    """Return a value of a database as JSON has it: times as ISO 8601, UUIDs as text; None for NaN, without bytes."""
    if isinstance(value, Mapping):
        return {str(name): json_value(each) for name, each in value.items() if not isinstance(each, _BYTES)}
    if isinstance(value, (list, tuple, set)):
        return [json_value(each) for each in value]
    return _scalar(float(value) if isinstance(value, Decimal) else value)


def _scalar(value: object) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    return None if isinstance(value, _BYTES) else str(value)


_BYTES = (bytes, bytearray, memoryview)


@dataclass(frozen=True, kw_only=True)
class PeerOptions:
    """Options of an import; None: found by the source, where it is the only one."""

    collection: str | None = None
    """Name: of the collection in Qdrant and Chroma, of the table in LanceDB and PostgreSQL."""
    vector: str | None = None
    """Name of the vector, or of its column. Without it, several vectors become named vectors."""
    id: str | None = None
    """Column of the id."""
    ids: str | None = None
    """File with the ids, for FAISS."""
    distance: Distance | None = None
    """Distance in place of the source's own."""


Peer: TypeAlias = Literal["qdrant", "chroma", "lancedb", "pgvector", "faiss"]
PEERS: tuple[Peer, ...] = get_args(Peer)


@contextmanager
def open_peer(peer: str, source: str, options: PeerOptions) -> Iterator[PeerCollection]:
    """Yield a collection of another system; its connection is closed afterwards.

    Args:
        peer: one of PEERS.
        source: a folder, a file, a URL or a connection string, as the system has it.
        options: what to read there.

    Raises:
        MissingPackageError: the system's own package is not installed.
        InputNotFoundError: there is nothing at the source.
        PeerError: it cannot become an index; tells what to do.

    """
    if peer not in PEERS:
        raise PeerError(f"--from: must be one of {', '.join(PEERS)}, got {peer!r:.80}")
    module = import_module(f"scannery.bridges.importers.{peer}")
    with ExitStack() as stack:
        yield getattr(module, f"open_{peer}")(source, options, stack)
