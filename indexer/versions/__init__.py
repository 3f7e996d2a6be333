"""Versions of an index: commits, leases, tombstones and garbage collection."""
