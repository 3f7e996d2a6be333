"""Queries for tuning an index, and the recall of a whole version."""
