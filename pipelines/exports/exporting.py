"""Export the datapoints of a version as Parquet or JSON lines, which other tools and `scannery build` read.

An export is not a Beam pipeline: it reads each segment once, in order, and its speed is the disk's, so workers would
only send the same bytes over a network. Its memory is bounded: one segment is open at a time, and a few thousand rows
of it are in memory.

    OUTPUT.parquet, OUTPUT.jsonl, OUTPUT.jsonl.gz, OUTPUT.jsonl.zst     one file
    OUTPUT/part-00000-of-00003.parquet                                  or a folder: one file per segment,
    OUTPUT/_spec.yaml                                                   a spec to build an index from them, and
    OUTPUT/_export.json                                                 the report, written last
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml

from scannery.indexer import (
    Manifest,
    Store,
    datapoint_schema,
    read_manifest,
    written_schema,
)
from scannery.indexer.datapoints.named_vectors import without_named
from scannery.indexer.local.files import file_sha256, scratch_folder
from scannery.indexer.spec.spec import IndexSpec
from scannery.pipelines.errors import OutputError
from scannery.pipelines.exports.export_files import (
    FORMATS,
    SPARSE,
    ExportRows,
    LiveChange,
    LiveRows,
    SegmentRows,
    exported,
    exported_schema,
    format_of_name,
    open_writer,
)
from scannery.runtime.times import WALL_SECONDS

__all__ = ["ExportReport", "ExportedFile", "export"]

REPORT_NAME = "_export.json"
SPEC_NAME = "_spec.yaml"

_OTHER_FILES = (".json", ".csv", ".tsv", ".txt", ".npy", ".avro", ".arrow", ".feather", ".gz", ".zst", ".zip")

RowsCallback = Callable[[int, int], None]
"""Called with the number of rows written so far, and of all rows."""


LiveCallback = Callable[[Store, Manifest], "LiveChange | None"]
"""Returns what live updates change in the current version; None if nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportedFile:
    """One file that an export wrote."""

    name: str
    """Path relative to the output folder, or the output's own name."""

    rows: int
    """Number of datapoints."""

    size_bytes: int
    sha256: str
    """SHA-256 of the file, in hex."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportReport:
    """Result of an export."""

    index: str
    version: int
    """Number of the exported version."""

    output: str
    """Path or URI, as given."""

    format: str
    """`parquet`, `jsonl`, `jsonl.gz` or `jsonl.zst`."""

    rows: int
    """Number of datapoints."""

    dimensions: int
    """Components of a vector."""

    vectors: bool
    """Whether the files contain the vectors."""

    files: tuple[ExportedFile, ...]
    spec: dict[str, Any] | None
    """A spec that builds an equal index from the files; None without vectors."""

    seconds: float
    """Wall time of the export."""

    live_mutations: int = 0
    """Batches of live updates that are not sealed into the version, and are in the files."""

    @property
    def size_bytes(self) -> int:
        """Size of all files together."""
        return sum(file.size_bytes for file in self.files)

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-ready values."""
        return dataclasses.asdict(self) | {"files": [dataclasses.asdict(f) for f in self.files],
                                           "size_bytes": self.size_bytes}  # fmt: skip


def export(
    index: str,
    store_uri: str | Path,
    output: str | Path,
    *,
    format: str | None = None,
    version: int | None = None,
    vectors: bool = True,
    overwrite: bool = False,
    progress: RowsCallback | None = None,
    live: LiveCallback | None = None,
) -> ExportReport:
    """Write all datapoints of a version that have not expired to files. Each file appears complete or not at all.

    Args:
        index: name of the index.
        store_uri: where it lives.
        output: a local path or a URI; a file if its name ends in `.parquet`, `.jsonl`, `.jsonl.gz` or `.jsonl.zst`,
            else a folder.
        format: `parquet`, `jsonl`, `jsonl.gz` or `jsonl.zst`; default: by the file's ending, `parquet` for a folder.
        version: default: the current one.
        vectors: whether to write vectors; files without vectors need an encoder to be built from again.
        overwrite: replace an earlier export.
        progress: called after each batch.
        live: finds live updates that the current version does not contain yet, which are then exported too; not used
            with `version`. None: only what the version contains is exported.

    Raises:
        NotFoundError: no such store, index or version.
        CorruptError: a segment does not match the manifest; none of its rows was exported.
        OutputError: the output exists already, is not a possible location, or does not fit `format`.

    """
    started = time.perf_counter()
    store = Store.open(store_uri)
    manifest = read_manifest(store, index, version)
    target = _Target.of(str(output), format)
    target.prepare(overwrite=overwrite)
    change = None if live is None or version is not None else live(store, manifest)
    progress_file = _WrittenFile(progress, manifest.rows + (change.rows.num_rows if change else 0))
    schema, components = _schema(manifest, vectors=vectors), _components(manifest, vectors=vectors)
    expiry, second = manifest.spec.live.expire, WALL_SECONDS()
    tables: list[ExportRows] = [
        SegmentRows(store, manifest.index, entry, schema, change, components, expiry, second)
        for entry in manifest.segments
    ]
    if change and change.rows.num_rows:
        tables.append(LiveRows(change, schema, components, expiry, second))
    files = [
        _write_file(target, name, rows_of_file, schema, progress_file)
        for name, rows_of_file in target.files(tables)
    ]
    report = ExportReport(
        index=index,
        version=manifest.version,
        output=str(output),
        format=target.format,
        rows=progress_file.rows,
        dimensions=manifest.dimensions,
        vectors=vectors,
        files=tuple(files),
        spec=_spec_of(manifest.spec) if vectors else None,
        seconds=round(time.perf_counter() - started, 3),
        live_mutations=change.mutations if change else 0,
    )
    target.finish(report)
    return report


@dataclasses.dataclass
class _WrittenFile:
    progress: RowsCallback | None
    total: int
    rows: int = 0

    def add(self, rows: int) -> None:
        self.rows += rows
        if self.progress is not None:
            self.progress(self.rows, self.total)


@dataclasses.dataclass(frozen=True)
class _Target:
    """Where the files are written."""

    folder: Store
    format: str
    name: str | None
    """Name of the single file; None for a folder."""

    @classmethod
    def of(cls, output: str, format: str | None) -> _Target:
        parent, _, name = output.rpartition("/")
        ending_format = format_of_name(name)
        if ending_format is not None and format not in (None, ending_format):
            raise OutputError(
                f"output: {name} ends like {ending_format}, and format says {format}", field="format"
            )
        if (format or ending_format or "parquet") not in FORMATS:
            raise OutputError(f"format: must be one of {', '.join(FORMATS)}, got {format!r}", field="format")
        if ending_format is not None:
            return cls(
                Store.open(parent or ("/" if output.startswith("/") else "."), create=True),
                ending_format,
                name,
            )
        if name.lower().endswith(_OTHER_FILES):
            endings = ", ".join(f".{each}" for each in FORMATS)
            raise OutputError(
                f"output: {name} ends like a file, but an export is one of {endings}, or a folder",
                field="output",
            )
        return cls(Store.open(output, create=True), format or "parquet", None)

    def files(self, tables: Sequence[ExportRows]) -> Iterator[tuple[str, Sequence[ExportRows]]]:
        """Yield the names of the files to write, each with its rows."""
        if self.name is not None:
            yield self.name, tables
            return
        for number, rows in enumerate(tables):
            yield f"part-{number:05d}-of-{len(tables):05d}.{self.format}", [rows]

    def prepare(self, *, overwrite: bool) -> None:
        """Remove an earlier export: the files of two exports in one folder would be read as one export."""
        if self.name is not None:
            if not overwrite and self.folder.exists(self.name):
                raise OutputError(
                    f"output: {self.name} exists already; overwrite replaces it", field="output"
                )
            return
        names = self._names()
        ours = [name for name in names if _is_ours(name)]
        foreign = [name for name in names if not _is_ours(name) and not name.startswith((".", "_"))]
        if foreign or (ours and not overwrite):
            what = "; overwrite replaces an earlier export" if ours and not foreign else ""
            first = (foreign or ours)[0]
            raise OutputError(f"output: the folder is not empty, it has {first}{what}", field="output")
        # The report first: an export without a report counts as unfinished.
        for name in sorted(ours, key=lambda name: name != REPORT_NAME):
            self.folder.delete(name)

    def finish(self, report: ExportReport) -> None:
        """Write spec and report into the folder; builds do not read files whose names begin with `_`."""
        if self.name is not None:
            return
        if report.spec is not None:
            text = yaml.safe_dump(report.spec, sort_keys=False, allow_unicode=True)
            self.folder.write(SPEC_NAME, text.encode())
        self.folder.write(REPORT_NAME, json.dumps(report.to_dict(), indent=1).encode())

    def _names(self) -> list[str]:
        root = self.folder.local_root
        if root is not None:  # a listing would read all folders below
            return sorted(path.name for path in root.iterdir())
        return [item.key for item in self.folder.list()]


def _is_ours(name: str) -> bool:
    return name in (REPORT_NAME, SPEC_NAME) or (name.startswith("part-") and format_of_name(name) is not None)


def _schema(manifest: Manifest, *, vectors: bool) -> pa.Schema:
    has_text = manifest.spec.source.text is not None
    schema = (written_schema if has_text else datapoint_schema)(manifest.spec, manifest.dimensions)
    if not vectors or not manifest.dimensions:
        schema = schema.remove(schema.get_field_index("embedding"))
    if not vectors:
        schema = without_named(schema.empty_table()).schema
    origin = {"index": manifest.index, "version": manifest.version, "distance": manifest.spec.distance}
    return schema.with_metadata({"scannery.export": json.dumps(origin)})


def _components(manifest: Manifest, *, vectors: bool) -> int:
    """Return the components of all vectors of a row that are exported."""
    return sum(info.dimensions for info in manifest.vectors.values()) if vectors else 0


def _write_file(
    target: _Target, name: str, tables: Sequence[ExportRows], schema: pa.Schema, progress_file: _WrittenFile
) -> ExportedFile:
    before = progress_file.rows
    with scratch_folder("export") as folder:
        path = folder / "draft"
        with open_writer(path, target.format, exported_schema(schema)) as writer:
            for rows in tables:
                for table in rows.tables():
                    writer.write(exported(table))
                    progress_file.add(table.num_rows)
        target.folder.write_file(name, path)
        size, sha256 = path.stat().st_size, file_sha256(path)
    return ExportedFile(name=name, rows=progress_file.rows - before, size_bytes=size, sha256=sha256)


def _spec_of(spec: IndexSpec) -> dict[str, Any]:
    """Return the spec with the exported files as its source, without default values."""
    data = spec.model_dump(mode="json", exclude_defaults=True)
    if spec.attributes:  # under their own names now, and converted
        data["attributes"] = dict(spec.attributes)
    for named in data.get("named_vectors", {}).values():
        named.pop("vector", None)  # below `vectors` now
    source: dict[str, Any] = {"format": "datapoints"}
    if spec.source.sparse_vector:
        source["sparse_vector"] = SPARSE
    if spec.source.chunk is not None:  # the rows are passages; documents of live updates are cut like them
        source["chunk"] = spec.source.chunk.model_dump()
    return {"index": data["index"], "source": source} | {
        key: value for key, value in data.items() if key not in ("index", "source")
    }
