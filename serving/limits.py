"""Limits of a request, as the comments in proto/scannery/v1 promise them."""

__all__ = [
    "DEFAULT_K",
    "MAX_BATCH_HITS",
    "MAX_FILTER_CONDITIONS",
    "MAX_FILTER_DEPTH",
    "MAX_FILTER_VALUES",
    "MAX_GET_IDS",
    "MAX_K",
    "MAX_LEAVES",
    "MAX_OFFSET",
    "MAX_QUERIES",
    "MAX_QUERY_TEXT_BYTES",
    "MAX_RESCORE",
    "MAX_RETURN_FIELDS",
]

DEFAULT_K = 10
MAX_K = 10_000
MAX_OFFSET = 10_000
MAX_QUERIES = 1_000
MAX_BATCH_HITS = 100_000
"""Queries × (k + offset) of one SearchMany."""
MAX_LEAVES = 1_000_000
"""More than a segment has are all of them."""
MAX_RESCORE = 100_000
MAX_GET_IDS = 1_000
MAX_QUERY_TEXT_BYTES = 32_768
MAX_RETURN_FIELDS = 256
MAX_FILTER_DEPTH = 16
MAX_FILTER_CONDITIONS = 256
MAX_FILTER_VALUES = 4_096
