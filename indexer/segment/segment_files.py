"""The folder of a segment in the local cache: its file unpacked into arrays that processes memory-map."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scannery.indexer.datapoints.row_records import write_records
from scannery.indexer.datapoints.sparse import INDICES_COLUMN, write_sparse
from scannery.indexer.errors import FormatError
from scannery.indexer.hashes import sorted_hashes
from scannery.indexer.kernels.compilation import COMPILING
from scannery.indexer.lexical.analyser import ANALYSER_VERSION
from scannery.indexer.lexical.bm25 import WORD_COLUMNS, write_document_postings, write_postings
from scannery.indexer.lexical.word_index import DocumentNumbers
from scannery.indexer.manifest import FORMAT_VERSION
from scannery.indexer.planning.leaves import Leaves, measure_leaves
from scannery.indexer.scann.assets import LEAF_COLUMN, NATIVE_COLUMNS, unpack_assets
from scannery.indexer.segment import value_postings
from scannery.indexer.segment.segment_writer import FORMAT_KEY, SEGMENT_KEY
from scannery.indexer.spec.spec import Distance
from scannery.indexer.vectors.arrays import mapped
from scannery.indexer.vectors.exact_search import write_ties
from scannery.indexer.vectors.quantized_vectors import FEWEST_DIMENSIONS, write_quantized
from scannery.indexer.vectors.vector_files import (
    BLOCK_ROWS,
    blocks_of,
    is_unit,
    no_vectors,
    unit_blocks,
    write_vectors,
)

__all__ = [
    "ATTRIBUTES",
    "COLUMNS",
    "DOCUMENTS",
    "DOCUMENT_WORDS",
    "HASHES",
    "INFO",
    "LEAVES",
    "QUANTIZED",
    "SCANN",
    "SPARSE",
    "TIES",
    "UNSCALED",
    "VECTORS",
    "WORDS",
    "unpack",
    "write_attributes",
]

VECTORS = "vectors.npy"
UNSCALED = "given.npy"
QUANTIZED = "quantized.npy"
COLUMNS = "columns.arrow"
HASHES = "id_hashes.npy"
DOCUMENTS = "document_hashes.npy"
INFO = "segment.json"
WORDS = "words"
DOCUMENT_WORDS = "document_words"
SPARSE = "sparse"
LEAVES = "leaves"
SCANN = "scann"
TIES = "ties"
ATTRIBUTES = "attributes"

_READING = threading.Lock()
"""Held while a segment is decoded: decoding uses all cores, and two at once would need twice the memory."""


def check_format(schema: pa.Schema, key: str) -> None:
    """Raise FormatError if a segment file was written in a later format than this code reads."""
    version = int((schema.metadata or {}).get(FORMAT_KEY, b"0"))
    if not 1 <= version <= FORMAT_VERSION:
        raise FormatError(f"{key} has segment format {version}; this Scannery reads up to {FORMAT_VERSION}")


def unpack(path: Path, folder: Path, key: str) -> None:
    """Write the parts of a segment file into a folder.

    Args:
        path: the segment file; the caller must have checked its hash.
        folder: an empty folder.
        key: name of the segment, for errors.

    Raises:
        FormatError: the file has a later format.
        CorruptError: a part of it is damaged.

    """
    with _READING:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        check_format(file.schema_arrow, key)
        info = json.loads(file.schema_arrow.metadata[SEGMENT_KEY])
        if info.get("vectors", True):
            _write_vectors(file, folder, info["distance"])
        table = file.read([name for name in file.schema_arrow.names if name != "embedding"])
    if info["scann"]:
        (folder / SCANN).mkdir()
        unpack_assets(folder / SCANN, table, info["scann"]["files"])
        leaf_N = table.column(LEAF_COLUMN).to_numpy()
        with COMPILING:
            measure_leaves(mapped(folder / VECTORS), leaf_N, info["distance"], seed=0).save(folder / LEAVES)
    searched_ND = mapped(folder / VECTORS) if (folder / VECTORS).exists() else no_vectors(table.num_rows)
    write_ties(searched_ND, table.column("id"), folder / TIES, proposed=bool(info["scann"]))
    if info.get("lexical"):
        _check_words(info["lexical"], key)
        (folder / WORDS).mkdir()
        write_postings(table, folder / WORDS)
    if INDICES_COLUMN in table.column_names:
        (folder / SPARSE).mkdir()
        write_sparse(table, folder / SPARSE)
    native = [name for name in (*NATIVE_COLUMNS, *WORD_COLUMNS) if name in table.column_names]
    write_records(table.drop_columns(native), folder / COLUMNS)
    np.save(folder / HASHES, sorted_hashes(table.column("id")))
    if not table.column("id").equals(table.column("document_id")):
        documents_2N = sorted_hashes(table.column("document_id"))
        np.save(folder / DOCUMENTS, documents_2N)
        if info.get("lexical"):
            (folder / DOCUMENT_WORDS).mkdir()
            numbers_N = DocumentNumbers(documents_2N).of_rows_N
            write_document_postings(folder / WORDS, numbers_N, folder / DOCUMENT_WORDS)
    about = {
        "distance": info["distance"],
        "leaves": info["scann"]["config"]["leaves"] if info["scann"] else 0,
        "attributes": write_attributes(table, folder),
    }
    (folder / INFO).write_text(json.dumps(about))


def write_attributes(table: pa.Table, folder: Path) -> dict[str, str]:
    """Write the postings of all attributes of a segment, whose leaves are there, as `value_postings.write_postings`."""
    leaves = folder / LEAVES
    return value_postings.write_postings(
        table, folder / ATTRIBUTES, Leaves.load(leaves) if leaves.exists() else None
    )


def _write_vectors(file: pq.ParquetFile, folder: Path, distance: Distance) -> None:
    """Write the vectors as they are searched, also in 8 bits a number; and as they were given, if these differ."""
    shape = file.metadata.num_rows, file.schema_arrow.field("embedding").type.list_size
    unit = True

    def blocks() -> Iterator[np.ndarray]:
        nonlocal unit
        for batch in file.iter_batches(BLOCK_ROWS, columns=["embedding"]):
            for block_BD in blocks_of(batch):
                unit = unit and (distance != "cosine" or is_unit(block_BD))
                yield block_BD

    write_vectors(folder / UNSCALED, blocks(), *shape)
    if unit:
        (folder / UNSCALED).rename(folder / VECTORS)
    else:
        write_vectors(folder / VECTORS, unit_blocks(mapped(folder / UNSCALED)), *shape)
    if shape[1] >= FEWEST_DIMENSIONS:
        with COMPILING:
            write_quantized(folder / QUANTIZED, mapped(folder / VECTORS))


def _check_words(lexical: dict[str, Any], key: str) -> None:
    if lexical.get("analyser", 0) > ANALYSER_VERSION:
        raise FormatError(
            f"{key} has words by version {lexical['analyser']} of the analyser; this Scannery has versions up to "
            f"{ANALYSER_VERSION}"
        )
