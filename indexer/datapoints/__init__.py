"""Datapoints at rest: their schema, sparse vectors, searched texts, and access to single rows."""
