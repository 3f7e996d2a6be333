"""Handlers of the calls of roots: a leaf answers for the shards of its group."""
