"""Queries that an index is tuned with, and the recall of a whole version."""
