"""Limits of a request, as documented in proto/scannery/v1."""

__all__ = [
    "DEFAULT_FACETS",
    "DEFAULT_FILTERED_WRITES",
    "DEFAULT_K",
    "DEFAULT_PROJECT_PAGE",
    "DEFAULT_RERANK_CANDIDATES",
    "DEFAULT_SCAN_PAGE",
    "MAX_ALIASES",
    "MAX_ATTRIBUTE_BYTES",
    "MAX_BATCH_HITS",
    "MAX_CLIENT_ID",
    "MAX_CONTEXT",
    "MAX_CONTEXT_PASSAGES",
    "MAX_CROWDINGS",
    "MAX_DELETES",
    "MAX_DIMENSIONS",
    "MAX_DIVERSE",
    "MAX_EMBED_TEXTS",
    "MAX_FACETS",
    "MAX_FACETS_BYTES",
    "MAX_FILTERED_WRITES",
    "MAX_FILTER_CONDITIONS",
    "MAX_FILTER_DEPTH",
    "MAX_FILTER_PARTS",
    "MAX_FILTER_VALUES",
    "MAX_GEO_RADIUS_M",
    "MAX_GET_IDS",
    "MAX_GROUP_QUERIES",
    "MAX_GROUP_WEIGHT",
    "MAX_HIGHLIGHTED",
    "MAX_HIGHLIGHTED_BATCH",
    "MAX_INDEXES",
    "MAX_K",
    "MAX_LEAF_IDS",
    "MAX_LEAF_KEYS",
    "MAX_LEAF_REQUEST_BYTES",
    "MAX_LEAF_ROWS",
    "MAX_LEAF_TERMS",
    "MAX_LEAF_VALUES_BYTES",
    "MAX_LEAVES",
    "MAX_OFFSET",
    "MAX_PAYLOAD_BYTES",
    "MAX_PHRASED_WORDS",
    "MAX_PHRASES",
    "MAX_PHRASE_SLOP",
    "MAX_PHRASE_WORDS",
    "MAX_QUANTILES",
    "MAX_QUERIES",
    "MAX_QUERY_TEXT_BYTES",
    "MAX_REQUEST_ID_BYTES",
    "MAX_RERANK_CANDIDATES",
    "MAX_RERANK_MS",
    "MAX_RESCORE",
    "MAX_RETURN_FIELDS",
    "MAX_SCAN_PAGE",
    "MAX_SCAN_PAGE_BYTES",
    "MAX_SORTED_ROWS",
    "MAX_SPEC_BYTES",
    "MAX_STRINGS",
    "MAX_TEXT_BYTES",
    "MAX_TITLE_BYTES",
    "MAX_TOKEN_BUDGET",
    "MAX_UPSERTS",
    "MAX_VECTOR_CHOICES",
]

DEFAULT_K = 10
DEFAULT_RERANK_CANDIDATES = 100
MAX_K = 10_000
MAX_OFFSET = 10_000
MAX_VECTOR_CHOICES = 17
"""The named vectors of an index, and the unnamed one."""
MAX_QUERIES = 1_000
MAX_BATCH_HITS = 100_000
"""Queries × (k + offset) of one SearchMany."""
MAX_DIVERSE = 1_000
"""Hits of a search with `diversity`, with those before its page."""
MAX_CLIENT_ID = 100
"""Characters of the id of whom a caller asks for."""
MAX_CONTEXT = 100
"""Passages before, and after, a hit."""
MAX_CONTEXT_PASSAGES = 10_000
"""Queries × k × (2 × passages + 1) of one call."""
MAX_TOKEN_BUDGET = 1_000_000
MAX_CROWDINGS = 8
"""Columns that the hits of a search are limited by."""
MAX_HIGHLIGHTED = 1_000
"""k + offset of a search that highlights its hits."""
MAX_HIGHLIGHTED_BATCH = 10_000
"""Queries × (k + offset) of one SearchMany that highlights."""
MAX_LEAVES = 1_000_000
"""A segment with fewer leaves searches all of them."""
MAX_LEAF_IDS = 8_000
"""Datapoints that a root fetches from a leaf with one call."""
MAX_LEAF_KEYS = 1_000_000
"""Rows whose order a leaf describes with one answer."""
MAX_LEAF_REQUEST_BYTES = 16 << 20
"""Bytes of the queries of one call of a root to a leaf, unless it has one: ids and texts become vectors for each name,
and so are far larger than in the request of the caller; a leaf accepts no larger messages than other servers do.
"""
MAX_LEAF_ROWS = 2_000_000
"""Queries × rows wanted by each vector and by words of one call of a root to a leaf, unless it has one query."""
MAX_LEAF_TERMS = 65_536
"""Distinct words of one query, or of one question for statistics: a query of 64 texts of 32 KiB may have more."""
MAX_LEAF_VALUES_BYTES = 256 << 20
"""Bytes of the distinct values of an attribute that a leaf returns."""
MAX_RESCORE = 100_000
MAX_RERANK_CANDIDATES = 1_000
MAX_RERANK_MS = 600_000
MAX_GET_IDS = 1_000
DEFAULT_FACETS = 100
MAX_FACETS = 10_000
MAX_FACETS_BYTES = 32 << 20
"""Bytes of the values of one answer: 10,000 strings of 1 MiB each would take all memory."""
MAX_QUANTILES = 100
MAX_GROUP_QUERIES = 64
MAX_GROUP_WEIGHT = 1e6
"""Absolute value of the weight of a query in a group."""
MAX_QUERY_TEXT_BYTES = 32_768
MAX_RETURN_FIELDS = 256
MAX_FILTER_DEPTH = 16
MAX_FILTER_CONDITIONS = 256
"""Conditions of a filter; phrases, which those of a query are added to, count by themselves."""
MAX_FILTER_VALUES = 4_096
MAX_FILTER_PARTS = 4_096
"""Nodes of a filter tree, empty ones included: 256 conditions, each at a depth of 16."""
MAX_GEO_RADIUS_M = 20_100_000
"""More than half the circumference of the Earth: all places."""
MAX_PHRASED_WORDS = 32
"""Words of a text in which quotes make phrases: longer ones are prose."""
MAX_PHRASES = 16
"""Pairs of quotes of a text in which they make phrases: words without spaces may have thousands."""
MAX_PHRASE_WORDS = 32
"""Words of a phrase, and characters of scripts without spaces: each may be anywhere in a long text."""
MAX_PHRASE_SLOP = 100
"""Other words between those of a phrase."""
MAX_DIMENSIONS = 16_384
MAX_ALIASES = 1_000
"""Aliases of a store: every process holds all of them."""
MAX_INDEXES = 1_000
"""Indexes of a store above which no request creates another: each takes memory and files of every server."""
MAX_SPEC_BYTES = 1 << 20
MAX_STRINGS = 65_536
"""Items of one string list."""
MAX_UPSERTS = 1_000
MAX_DELETES = 1_000
"""Most items, for ids and for document ids, each."""
DEFAULT_FILTERED_WRITES = 1_000
MAX_FILTERED_WRITES = 10_000
"""Datapoints of one DeleteWhere or UpdateWhere."""
MAX_TEXT_BYTES = 1 << 20
MAX_EMBED_TEXTS = 1_000
MAX_ATTRIBUTE_BYTES = 1 << 20
"""Total size of the strings of one value: every response with the row carries it."""
MAX_TITLE_BYTES = 1 << 16
MAX_PAYLOAD_BYTES = 1 << 20
MAX_REQUEST_ID_BYTES = 64
DEFAULT_SCAN_PAGE = 1_000
MAX_SCAN_PAGE = 10_000
"""Datapoints of a page of a scan."""
DEFAULT_PROJECT_PAGE = 5_000
MAX_SCAN_PAGE_BYTES = 3 << 20
"""Bytes of the datapoints of a page, unless it has only one: gRPC clients accept 4 MiB by default."""
MAX_SORTED_ROWS = 1 << 24
"""Datapoints that a scan sorts or samples: while it runs, its order takes 4 bytes for each."""
