"""Vectors to segments: the format at rest, ScaNN, versions and the store."""

from scannery.indexer.allowed import FEW_ROWS, AllowedRows
from scannery.indexer.analyser import Analyser
from scannery.indexer.bm25 import CorpusStatistics, corpus_statistics, score_rows
from scannery.indexer.cache import SegmentCache, default_cache_folder
from scannery.indexer.children import python_command, python_environment
from scannery.indexer.datapoints import (
    MAX_ID_BYTES,
    MAX_MAGNITUDE,
    REVISION_COLUMN,
    SPOKEN_COLUMN,
    attribute_value,
    attribute_values,
    datapoint_schema,
    encodable,
    identifier,
    vector_value,
    vectors_of,
    written_schema,
)
from scannery.indexer.deletes import next_version, read_deleted, read_live_mask, with_deleted
from scannery.indexer.errors import (
    AlreadyExistsError,
    BuildError,
    CorruptError,
    FormatError,
    IndexerError,
    InvalidRecordError,
    InvalidSpecError,
    NotFoundError,
    ReplacedError,
    StoreError,
    StoreUriError,
)
from scannery.indexer.exact import exact_search, search_ready, unit_length
from scannery.indexer.garbage import GarbageReport, collect_garbage
from scannery.indexer.hashes import id_hashes
from scannery.indexer.leases import LeaseHolder, leased_versions
from scannery.indexer.maintenance import VerifyReport, measure_recall, rollback, verify
from scannery.indexer.manifest import CurvePoint, DeletedRows, Manifest, Recall, SegmentEntry
from scannery.indexer.memory import MemorySegment
from scannery.indexer.opening import open_segment
from scannery.indexer.planner import Found
from scannery.indexer.postings import WORD_COLUMNS, KnownTerms, Postings, with_known_terms, with_terms
from scannery.indexer.reader import OpenIndex, open_index
from scannery.indexer.records import Records
from scannery.indexer.search_settings import SearchSettings
from scannery.indexer.segment import Segment
from scannery.indexer.segment_writer import BuiltSegment, build_segment
from scannery.indexer.sharding import shard_of, shards_of_ids
from scannery.indexer.sparse import (
    MAX_SPARSE_ENTRIES,
    SPARSE_COLUMNS,
    SparsePostings,
    score_sparse,
    sparse_value,
)
from scannery.indexer.spec import (
    AttributeType,
    ChunkSpec,
    Distance,
    EncoderSpec,
    IndexSpec,
    Language,
    LexicalSpec,
    LiveSpec,
    ScannSpec,
    SourceFormat,
    SourceSpec,
)
from scannery.indexer.spec_files import load_spec, parse_spec, spec_json_schema
from scannery.indexer.store import Store, StoredObject
from scannery.indexer.tuning import expected_recall
from scannery.indexer.versions import (
    commit,
    latest_version,
    list_indexes,
    list_versions,
    manifest_key,
    new_index_id,
    read_manifest,
    segment_key,
)

__all__ = [
    "FEW_ROWS",
    "MAX_ID_BYTES",
    "MAX_MAGNITUDE",
    "MAX_SPARSE_ENTRIES",
    "REVISION_COLUMN",
    "SPARSE_COLUMNS",
    "SPOKEN_COLUMN",
    "WORD_COLUMNS",
    "AllowedRows",
    "AlreadyExistsError",
    "Analyser",
    "AttributeType",
    "BuildError",
    "BuiltSegment",
    "ChunkSpec",
    "CorpusStatistics",
    "CorruptError",
    "CurvePoint",
    "DeletedRows",
    "Distance",
    "EncoderSpec",
    "FormatError",
    "Found",
    "GarbageReport",
    "IndexSpec",
    "IndexerError",
    "InvalidRecordError",
    "InvalidSpecError",
    "KnownTerms",
    "Language",
    "LeaseHolder",
    "LexicalSpec",
    "LiveSpec",
    "Manifest",
    "MemorySegment",
    "NotFoundError",
    "OpenIndex",
    "Postings",
    "Recall",
    "Records",
    "ReplacedError",
    "ScannSpec",
    "SearchSettings",
    "Segment",
    "SegmentCache",
    "SegmentEntry",
    "SourceFormat",
    "SourceSpec",
    "SparsePostings",
    "Store",
    "StoreError",
    "StoreUriError",
    "StoredObject",
    "VerifyReport",
    "attribute_value",
    "attribute_values",
    "build_segment",
    "collect_garbage",
    "commit",
    "corpus_statistics",
    "datapoint_schema",
    "default_cache_folder",
    "encodable",
    "exact_search",
    "expected_recall",
    "id_hashes",
    "identifier",
    "latest_version",
    "leased_versions",
    "list_indexes",
    "list_versions",
    "load_spec",
    "manifest_key",
    "measure_recall",
    "new_index_id",
    "next_version",
    "open_index",
    "open_segment",
    "parse_spec",
    "python_command",
    "python_environment",
    "read_deleted",
    "read_live_mask",
    "read_manifest",
    "rollback",
    "score_rows",
    "score_sparse",
    "search_ready",
    "segment_key",
    "shard_of",
    "shards_of_ids",
    "sparse_value",
    "spec_json_schema",
    "unit_length",
    "vector_value",
    "vectors_of",
    "verify",
    "with_deleted",
    "with_known_terms",
    "with_terms",
    "written_schema",
]
