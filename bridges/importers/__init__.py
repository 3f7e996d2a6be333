"""Readers of other vector databases, whose vectors, ids and payloads become an index: `scannery import`."""
