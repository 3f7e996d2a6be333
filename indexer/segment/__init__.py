"""Segments: one self-contained Parquet file each, written once, opened from a local cache."""
