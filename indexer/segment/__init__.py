"""Segments: self-contained Parquet files, written once, and opened through a local cache."""
