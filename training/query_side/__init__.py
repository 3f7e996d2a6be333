"""Trains the encoder of queries against the vectors of an index, which stay as they are."""
