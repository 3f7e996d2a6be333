"""Versions of an index: manifests, leases, tombstones and garbage collection."""
