"""Vectors to segments: the on-disk format, ScaNN, versions and the store."""

from scannery.indexer.datapoints.column_rules import SizeLimits
from scannery.indexer.datapoints.columns.conforming import conformed
from scannery.indexer.datapoints.field_mapping import FieldMapping
from scannery.indexer.datapoints.named_vectors import (
    NAMED_TYPE,
    vector_column,
    vectors_array,
    with_vectors,
    without_named,
)
from scannery.indexer.datapoints.passages import passage_rows, repeated_bytes, repetition_problem
from scannery.indexer.datapoints.row_records import Records
from scannery.indexer.datapoints.schema import (
    DYNAMIC_COLUMN,
    MAX_ID_BYTES,
    MAX_MAGNITUDE,
    REVISION_COLUMN,
    SPOKEN_COLUMN,
    attribute_columns,
    attribute_value,
    attribute_values,
    datapoint_schema,
    encodable,
    identifier,
    vector_value,
    vectors_of,
    written_schema,
)
from scannery.indexer.datapoints.searched_text import first_passages, named_texts, texts_of_field
from scannery.indexer.datapoints.sparse import (
    MAX_SPARSE_ENTRIES,
    SPARSE_COLUMNS,
    SparsePostings,
    score_sparse,
    sparse_value,
)
from scannery.indexer.datapoints.validation import SPAN, SPARSE, Field, Rejected, Validated, validate
from scannery.indexer.datapoints.vector_presence import (
    has_vector,
    is_vectorless,
    parts_by_vector,
    without_vectors,
)
from scannery.indexer.errors import (
    AlreadyExistsError,
    BuildError,
    CorruptError,
    FormatError,
    IndexerError,
    InUseError,
    InvalidRecordError,
    InvalidSpecError,
    NotFoundError,
    ReplacedError,
    StoreError,
    StoreUriError,
)
from scannery.indexer.hashes import id_hashes
from scannery.indexer.lexical.analyser import Analyser
from scannery.indexer.lexical.bm25 import (
    CorpusCounts,
    CorpusStatistics,
    corpus_counts,
    corpus_statistics,
    score_rows,
)
from scannery.indexer.lexical.inverted_index import (
    WORD_COLUMNS,
    KnownTerms,
    Postings,
    with_known_terms,
    with_terms,
)
from scannery.indexer.local.child_processes import python_command, python_environment
from scannery.indexer.maintenance import VerifyReport, measure_recall, rollback, verify
from scannery.indexer.manifest import (
    CurvePoint,
    DeletedRows,
    Manifest,
    NamedVectorsInfo,
    Recall,
    SegmentEntry,
)
from scannery.indexer.planning.allowed_rows import FEW_ROWS, AllowedRows
from scannery.indexer.planning.planner import Found
from scannery.indexer.reader import NamedIndex, OpenIndex, open_index
from scannery.indexer.scann.config import Effort
from scannery.indexer.segment.build import BuiltSegment, build_segment, store_segment
from scannery.indexer.segment.cache import SegmentCache, default_cache_folder
from scannery.indexer.segment.cold.page_reads import ColdReads
from scannery.indexer.segment.memory_segment import MemorySegment
from scannery.indexer.segment.named_vectors import NamedVectors
from scannery.indexer.segment.opening import open_segment
from scannery.indexer.segment.row_ids import RowIds, read_row_ids
from scannery.indexer.segment.segment import Segment
from scannery.indexer.shard_groups import NO_SHARDS, ShardGroup, Shards
from scannery.indexer.spec.sharding import shard_of, shards_of_ids
from scannery.indexer.spec.spec import (
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
from scannery.indexer.spec.spec_files import load_spec, parse_spec, spec_json_schema, spec_yaml
from scannery.indexer.store.object_store import Store, StoredObject
from scannery.indexer.tuning.search_settings import SearchSettings
from scannery.indexer.tuning.settings_choice import expected_recall
from scannery.indexer.vectors.exact_search import NO_ROW, exact_search, row_scores, search_ready, unit_length
from scannery.indexer.versions.aliases import (
    ALIASES_KEY,
    Aliases,
    change_aliases,
    check_no_alias,
    read_aliases,
)
from scannery.indexer.versions.altering import alter_index, altered_spec
from scannery.indexer.versions.creation import create_index
from scannery.indexer.versions.garbage_collection import GarbageReport, collect_garbage
from scannery.indexer.versions.leases import LeaseHolder, leased_versions
from scannery.indexer.versions.tombstones import next_version, read_deleted, read_live_mask, with_deleted
from scannery.indexer.versions.versions import (
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
    "ALIASES_KEY",
    "DYNAMIC_COLUMN",
    "FEW_ROWS",
    "MAX_ID_BYTES",
    "MAX_MAGNITUDE",
    "MAX_SPARSE_ENTRIES",
    "NAMED_TYPE",
    "NO_ROW",
    "NO_SHARDS",
    "REVISION_COLUMN",
    "SPAN",
    "SPARSE",
    "SPARSE_COLUMNS",
    "SPOKEN_COLUMN",
    "WORD_COLUMNS",
    "Aliases",
    "AllowedRows",
    "AlreadyExistsError",
    "Analyser",
    "AttributeType",
    "BuildError",
    "BuiltSegment",
    "ChunkSpec",
    "ColdReads",
    "CorpusCounts",
    "CorpusStatistics",
    "CorruptError",
    "CurvePoint",
    "DeletedRows",
    "Distance",
    "Effort",
    "EncoderSpec",
    "Field",
    "FieldMapping",
    "FormatError",
    "Found",
    "GarbageReport",
    "InUseError",
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
    "NamedIndex",
    "NamedVectors",
    "NamedVectorsInfo",
    "NotFoundError",
    "OpenIndex",
    "Postings",
    "Recall",
    "Records",
    "Rejected",
    "ReplacedError",
    "RowIds",
    "ScannSpec",
    "SearchSettings",
    "Segment",
    "SegmentCache",
    "SegmentEntry",
    "ShardGroup",
    "Shards",
    "SizeLimits",
    "SourceFormat",
    "SourceSpec",
    "SparsePostings",
    "Store",
    "StoreError",
    "StoreUriError",
    "StoredObject",
    "Validated",
    "VerifyReport",
    "alter_index",
    "altered_spec",
    "attribute_columns",
    "attribute_value",
    "attribute_values",
    "build_segment",
    "change_aliases",
    "check_no_alias",
    "collect_garbage",
    "commit",
    "conformed",
    "corpus_counts",
    "corpus_statistics",
    "create_index",
    "datapoint_schema",
    "default_cache_folder",
    "encodable",
    "exact_search",
    "expected_recall",
    "first_passages",
    "has_vector",
    "id_hashes",
    "identifier",
    "is_vectorless",
    "latest_version",
    "leased_versions",
    "list_indexes",
    "list_versions",
    "load_spec",
    "manifest_key",
    "measure_recall",
    "named_texts",
    "new_index_id",
    "next_version",
    "open_index",
    "open_segment",
    "parse_spec",
    "parts_by_vector",
    "passage_rows",
    "python_command",
    "python_environment",
    "read_aliases",
    "read_deleted",
    "read_live_mask",
    "read_manifest",
    "read_row_ids",
    "repeated_bytes",
    "repetition_problem",
    "rollback",
    "row_scores",
    "score_rows",
    "score_sparse",
    "search_ready",
    "segment_key",
    "shard_of",
    "shards_of_ids",
    "sparse_value",
    "spec_json_schema",
    "spec_yaml",
    "store_segment",
    "texts_of_field",
    "unit_length",
    "validate",
    "vector_column",
    "vector_value",
    "vectors_array",
    "vectors_of",
    "verify",
    "with_deleted",
    "with_known_terms",
    "with_terms",
    "with_vectors",
    "without_named",
    "without_vectors",
    "written_schema",
]
